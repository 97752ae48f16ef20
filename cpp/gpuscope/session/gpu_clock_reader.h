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
#include "gpuscope/session/sources.h"
#include "gpuscope/timing/device_clock.h"

namespace gpuscope::session {

/// Reads the clocks of the used GPUs repeatedly, while a recording has their raw timestamps. Often in the first
/// seconds, to get the ratio of the clocks' rates, then every four seconds.
///
/// read: one thread at a time.
class GpuClockReader final : public Source {
 public:
  explicit GpuClockReader(const driver::Cuda& cuda) : cuda_(cuda) {}

  /// Reads the clock of each GPU with a primary context, if a reading is due. False if one could not be read because
  /// the GPU was busy for `limit`.
  bool read(std::chrono::nanoseconds limit) noexcept;
  bool has_clocks() const noexcept { return !clocks_.empty(); }

  /// Passes the readings to the decoder's records, which must not outlive this.
  void take(attribution::Decoder& decoder) override;
  void facts(Facts& facts) override;

 private:
  struct Clock {
    Clock(const driver::Cuda& cuda, int ordinal) : clock(cuda, ordinal) {}
    timing::DeviceClock clock;
    std::chrono::steady_clock::time_point next;
    std::chrono::nanoseconds interval = std::chrono::milliseconds(50);
  };

  bool read_device(int ordinal, std::chrono::nanoseconds limit);

  driver::Cuda cuda_;
  std::map<int, Clock> clocks_;                                                 // the reading thread's
  attribution::GpuClocks passed_;                                               // the decode thread's: readings so far
  std::mutex mutex_;                                                            // guards the members below
  std::vector<std::pair<uint32_t, attribution::GpuClocks::Reading>> readings_;  // by CUDA's ordinal, as in records
  uint64_t count_ = 0;                                                          // of readings
  int64_t widest_ns_ = 0;                                                       // the longest
};

}  // namespace gpuscope::session
