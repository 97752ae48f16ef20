// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpuscope::attribution {

/// Converts times of GPUs' own clocks to ns of the process's clock, from simultaneous readings of both.
///
/// The rates differ by some ppm, and change with temperature. A time is computed from the latest reading, with the rate
/// between it and the oldest kept reading. One thread.
class GpuClocks {
 public:
  struct Reading {
    uint64_t device_ns;
    int64_t host_ns;
  };

  /// `device`: the device number in records.
  void add(uint32_t device, const Reading& reading);
  bool knows(uint32_t device) const noexcept { return device < clocks_.size() && clocks_[device].count != 0; }
  /// The time is unchanged for unknown devices.
  int64_t to_ns(uint32_t device, uint64_t device_ns) const noexcept;
  /// Whether one of the latest readings is in that time range.
  bool was_read_between(uint32_t device, uint64_t first, uint64_t last) const noexcept;
  /// The rate of the process's clock relative to the device's, minus 1.
  double rate(uint32_t device) const noexcept { return knows(device) ? clocks_[device].rate : 0.0; }

 private:
  /// Readings with 0.3 us error over some minutes give the rate to 1e-9, and follow its changes.
  static constexpr std::size_t kKept = 32;
  /// Closer readings give no rate: 0.3 us in 50 ms are 6 ppm.
  static constexpr int64_t kNearestNs = 50'000'000;

  struct Clock {
    std::array<Reading, kKept> readings{};
    std::size_t count = 0;  // ever
    double rate = 0.0;
  };

  std::vector<Clock> clocks_;
};

}  // namespace gpuscope::attribution
