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

/// Reads the clocks of the used GPUs repeatedly, while a recording has their raw timestamps. Often in the first
/// seconds, to get the ratio of the clocks' rates, then every four seconds.
///
/// read: one thread at a time. take: any thread.
class GpuClockReader {
 public:
  using Device = uint32_t;  // CUDA's ordinal, as in records
  using Readings = std::vector<std::pair<Device, attribution::GpuClocks::Reading>>;

  explicit GpuClockReader(const driver::Cuda& cuda) : cuda_(cuda) {}

  /// Reads the clock of each GPU with a primary context, if a reading is due. False if one could not be read because
  /// the GPU was busy for `limit`.
  bool read(std::chrono::nanoseconds limit) noexcept;
  Readings take();
  /// The number of readings, and the longest one.
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
  mutable std::mutex mutex_;     // guards the members below
  Readings readings_;
  Total total_;
};

}  // namespace gpuscope::session
