// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace gpuscope::attribution {

/// When something was switched off and on again: times that rise and take turns, off first. One thread switches while
/// another asks; no lock, and a switch that was never used costs one load to ask.
class Switch {
 public:
  /// Whether it was off at a moment.
  bool off_at(int64_t at_ns) const noexcept {
    const std::size_t count = count_.load(std::memory_order_acquire);
    if (count == 0) [[likely]] {
      return false;
    }
    std::size_t low = 0;  // up to here lie before or at the moment, from `high` on after it
    for (std::size_t high = count; low < high;) {
      const std::size_t middle = (low + high) / 2;
      (at(middle) <= at_ns ? low : high) = at(middle) <= at_ns ? middle + 1 : middle;
    }
    return low % 2 == 1;
  }

  /// Switches; a second turn to the same side does nothing. Throws std::bad_alloc, and then nothing has changed.
  void turn(bool on, int64_t at_ns) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    if ((count % 2 == 0) == on || segment_of(count) == kSegments) {
      return;
    }
    std::unique_ptr<int64_t[]>& segment = segments_[segment_of(count)];
    if (segment == nullptr) {
      segment = std::make_unique<int64_t[]>(kFirst << segment_of(count));
    }
    segment[place_of(count)] = at_ns;
    count_.store(count + 1, std::memory_order_release);
  }

  /// On, as if it had always been. While nobody asks.
  void reset() noexcept { count_.store(0, std::memory_order_relaxed); }

  struct Total {
    uint64_t times = 0;
    int64_t duration_ns = 0;
  };
  /// How often it was off until a moment, and for how long in all.
  Total off_until(int64_t end_ns) const noexcept {
    const std::size_t count = count_.load(std::memory_order_acquire);
    Total total;
    for (std::size_t index = 0; index < count && at(index) < end_ns; index += 2) {
      const int64_t on_ns = index + 1 < count ? at(index + 1) : end_ns;
      total.duration_ns += (on_ns < end_ns ? on_ns : end_ns) - at(index);
      ++total.times;
    }
    return total;
  }

 private:
  // Segments of doubling size: those that hold times never move.
  static constexpr std::size_t kFirst = 64;
  static constexpr std::size_t kSegments = 24;
  static std::size_t segment_of(std::size_t index) noexcept {
    return static_cast<std::size_t>(std::bit_width(index / kFirst + 1)) - 1;
  }
  static std::size_t place_of(std::size_t index) noexcept {
    return index - kFirst * ((std::size_t{1} << segment_of(index)) - 1);
  }
  int64_t at(std::size_t index) const noexcept { return segments_[segment_of(index)][place_of(index)]; }

  std::array<std::unique_ptr<int64_t[]>, kSegments> segments_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace gpuscope::attribution
