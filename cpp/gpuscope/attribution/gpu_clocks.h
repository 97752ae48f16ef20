// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpuscope::attribution {

/// Turns times of GPUs' own clocks into ns of the process's clock, by readings of both at one moment.
///
/// Both run at nearly the same rate: some millionths apart, which changes with temperature. A time is counted from the
/// latest reading, at the rate between it and the oldest of those that are kept. One thread.
class GpuClocks {
 public:
  struct Reading {
    uint64_t device_ns;
    int64_t host_ns;
  };

  /// `device`: the number that records have.
  void add(uint32_t device, const Reading& reading);
  bool knows(uint32_t device) const noexcept { return device < clocks_.size() && clocks_[device].count != 0; }
  /// Of a device that is not known, as it is.
  int64_t to_ns(uint32_t device, uint64_t device_ns) const noexcept;
  /// Whether one of the latest readings is of that time.
  bool was_read_between(uint32_t device, uint64_t first, uint64_t last) const noexcept;
  /// How much more the process's clock runs than the device's, as a fraction.
  double rate(uint32_t device) const noexcept { return knows(device) ? clocks_[device].rate : 0.0; }

 private:
  /// Readings of 0.3 us over some minutes give the rate to 1e-9, and follow what changes it.
  static constexpr std::size_t kKept = 32;
  /// From nearer ones no rate is worked out: 0.3 us in 50 ms are 6 millionths.
  static constexpr int64_t kNearestNs = 50'000'000;

  struct Clock {
    std::array<Reading, kKept> readings{};
    std::size_t count = 0;  // ever
    double rate = 0.0;
  };

  std::vector<Clock> clocks_;
};

}  // namespace gpuscope::attribution
