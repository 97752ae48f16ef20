// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::nvml {

/// An error that the driver told of a GPU (Xid), since it was watched.
struct XidCount {
  uint64_t xid = 0;
  uint64_t count = 0;
  int64_t last_ns = 0;  // when it was read that it happened, since the Unix epoch
};

/// Errors of GPUs as NVML tells them when they happen: nothing of what was before. Nothing waits. One thread.
class XidReader {
 public:
  explicit XidReader(const driver::Nvml& nvml);
  ~XidReader();
  XidReader(const XidReader&) = delete;
  XidReader& operator=(const XidReader&) = delete;

  /// Has errors of the GPU told, where its handle is another than before; null: it is lost for now.
  void watch(unsigned gpu, driver::NvmlDevice device);
  /// Takes what was told since the last call.
  void read(int64_t now_ns);
  /// Errors of a GPU, by number; none where they are not told.
  std::optional<std::vector<XidCount>> counts(unsigned gpu) const;
  /// Why they are not; empty where they are.
  std::string why(unsigned gpu) const;

 private:
  struct Watched {
    driver::NvmlDevice device = nullptr;
    std::string why;
    bool was_told = false;  // it was registered once: what was counted stays true
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
