// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "gpuscope/bindings/vendor.h"
#include "gpuscope/driver/nvml.h"

namespace gpuscope::bindings {

/// The process's reader of a device's figures, kept, as finding a device takes NVML longer than reading it. Never
/// destroyed: exit may come while others read. With the GIL.
template <class Reader>
Reader& reader_of(int ordinal) {
  static auto& readers = *new std::map<int, Reader>();
  auto reader = readers.find(ordinal);
  if (reader == readers.end()) {
    reader = readers.try_emplace(ordinal, driver::Nvml::open(), vendor().cuda, ordinal).first;
  }
  return reader->second;
}

}  // namespace gpuscope::bindings
