// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "gpuscope/base/pages.h"
#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// The calls and the work of a recording, with their waits and latencies: see QueueModel.
struct Queues {
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int64_t kFar = int64_t{1} << 60;  // limits times of damaged recordings
  template <class T>
  using Rows = std::vector<T, base::ScratchAllocator<T>>;

  // Times are ns after `base`. Calls are sorted by start, work by its call.
  struct Call {
    int64_t start;
    int64_t end;
    int64_t piece;  // from the end of `after` to its start
    int64_t own;    // its duration without waiting
    uint32_t row;
    uint32_t after = kNone;       // the previous call on its thread, or on the thread for which it waited
    uint32_t first_work = 0;      // its work ends at the next call's first work
    uint32_t wait = kNone;        // the work for which it waits
    uint32_t queue_wait = kNone;  // the launch, as work, that must begin before there is room
    int32_t wake = 0;
    int32_t queue_wake = 0;
    uint16_t thread;
    uint16_t wait_device = 0;  // 1 + the device whose work it waits for
  };
  struct Work {
    int64_t start;
    int64_t end;
    uint32_t call;
    uint32_t after = kNone;   // begins `gap` after the end of this work
    uint32_t beside = kNone;  // begins as long after this work's beginning as recorded
    uint32_t held = kNone;    // begins after the end of this work on another stream
    int32_t latency = 0;      // from the end of its call, or from its start
    int32_t gap = 0;
    uint16_t device;
    bool from_start = false;
  };

  int64_t base = 0;
  std::size_t unlaunched = 0;  // work without a recorded call
  std::size_t devices = 0;
  int32_t held_gap = 0;
  Rows<Call> calls;
  Rows<Work> works;
  Rows<int64_t> done;  // before each call, and after the last: end of all work launched so far
  std::unordered_map<uint16_t, std::vector<uint32_t>> calls_of_thread;
  Rows<uint32_t> call_of_row;
  Rows<uint32_t> work_of_kernel;
  Rows<uint32_t> work_of_copy;

  int64_t after_base(int64_t time_ns) const noexcept;
  std::size_t works_before(std::size_t call) const noexcept {
    return call < calls.size() ? calls[call].first_work : works.size();
  }
};

/// Ignores references to missing rows, as in damaged files. Throws std::bad_alloc.
Queues read_queues(const store::Store& store);

}  // namespace gpuscope::analysis
