// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::nvml {

/// A GPU error reported by the driver (Xid), since the watch began.
struct XidCount {
  uint64_t xid = 0;
  uint64_t count = 0;
  int64_t last_ns = 0;  // when it was read, since the Unix epoch
};

/// GPU errors, reported by NVML as they happen, without earlier ones. Never waits. One thread.
class XidReader {
 public:
  explicit XidReader(const driver::Nvml& nvml);
  ~XidReader();
  XidReader(const XidReader&) = delete;
  XidReader& operator=(const XidReader&) = delete;

  /// Watches the GPU's errors, if its handle has changed. Null: the GPU is currently lost.
  void watch(unsigned gpu, driver::NvmlDevice device);
  /// Counts the errors since the last call.
  void read(int64_t now_ns);
  /// Errors of a GPU, by number. None if they are not reported.
  std::optional<std::vector<XidCount>> counts(unsigned gpu) const;
  /// Why they are not reported. Empty if they are.
  std::string why(unsigned gpu) const;

 private:
  struct Watched {
    driver::NvmlDevice device = nullptr;
    std::string why;
    bool was_told = false;  // it was registered once: its counts stay valid
    std::map<uint64_t, XidCount> counts;
  };
  bool has_set();
  void drop_set();

  driver::Nvml nvml_;
  driver::NvmlEventSet set_ = nullptr;
  std::string set_why_;
  std::map<unsigned, Watched> gpus_;
};

}  // namespace gpuscope::nvml
