// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpuscope/activity/layout.h"
#include "gpuscope/attribution/decode_state.h"

namespace gpuscope::attribution {

/// Turns CUPTI's records of memory taken from the driver and given back into rows, each with the region of the call
/// that asked for it. They are no GPU work: the audit does not count them, and the end of a window does not wait for
/// them, as each is complete when its call returns. The decode thread's.
class MemoryRecords {
 public:
  explicit MemoryRecords(DecodeState& state) : state_(&state) {}

  /// Records are as long as CUDA 12.6 and later write them, and name a library.
  void set_names_libraries(bool names_libraries) { names_libraries_ = names_libraries; }
  std::size_t record_bytes() const noexcept {
    return names_libraries_ ? sizeof(activity::SourcedMemoryRecord) : sizeof(activity::MemoryRecord);
  }

  /// `at_ns`: the record's time on the process's clock.
  void memory(const activity::MemoryRecord& record, int64_t at_ns);
  void pool(const activity::MemoryPoolRecord& record, int64_t at_ns);

 private:
  struct Row {
    int64_t start_ns;
    Reference reference;
    uint16_t flags;
    bool keep;
  };

  Row place(uint64_t timestamp, uint32_t correlation, int64_t at_ns);
  uint32_t library(const activity::MemoryRecord& record);

  DecodeState* state_;
  bool names_libraries_ = false;
};

}  // namespace gpuscope::attribution
