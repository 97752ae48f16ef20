// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "gpuscope/attribution/gpu_clocks.h"
#include "gpuscope/driver/libraries.h"
#include "gpuscope/timing/device_clock.h"

namespace gpuscope::session {

/// Reads the clocks of the GPUs that a process uses again and again while a recording has their raw timestamps: often
/// at first, as the first seconds tell how much faster one clock runs than the other, then every four seconds.
///
/// read: one thread at a time. take: any thread.
class GpuClockReader {
 public:
  using Device = uint32_t;  // CUDA's ordinal, which records have, too
  using Readings = std::vector<std::pair<Device, attribution::GpuClocks::Reading>>;

  explicit GpuClockReader(const driver::Cuda& cuda) : cuda_(cuda) {}

  /// Reads the clock of each GPU that has a primary context, where it is time for the next reading; false when one
  /// could not be read, as the GPU was busy for that long.
  bool read(std::chrono::nanoseconds limit) noexcept;
  Readings take();
  /// How many readings there were, and what asking took at most.
  struct Total {
    uint64_t count = 0;
    int64_t widest_ns = 0;
  };
  Total total() const;
  bool has_clocks() const noexcept { return !clocks_.empty(); }

 private:
  struct Clock {
    Clock(const driver::Cuda& cuda, int ordinal) : clock(cuda, ordinal) {}
    timing::DeviceClock clock;
    std::chrono::steady_clock::time_point next;
    std::chrono::nanoseconds interval = std::chrono::milliseconds(50);
  };

  bool read_device(int ordinal, std::chrono::nanoseconds limit);

  driver::Cuda cuda_;
  std::map<int, Clock> clocks_;  // the reading thread's
  mutable std::mutex mutex_;     // guards what follows
  Readings readings_;
  Total total_;
};

}  // namespace gpuscope::session
