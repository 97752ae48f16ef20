// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#ifdef __x86_64__
#include <x86intrin.h>
#endif

namespace gpuscope::base {

/// True if the CPU's time-stamp counter runs at one rate on all cores and in all power states.
bool counter_is_invariant() noexcept;
extern const bool kUseCounter;

/// CLOCK_MONOTONIC_RAW in ns. Replaces the counter if it is not invariant.
uint64_t monotonic_raw_ns() noexcept;

/// Reads the machine's counter: the only clock of the hot paths. Any thread.
inline uint64_t ticks() noexcept {
#ifdef __x86_64__
  if (kUseCounter) [[likely]] {
    return __rdtsc();
  }
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#endif
  return monotonic_raw_ns();
}

/// The CPU time of the calling thread, in ns.
int64_t thread_cpu_ns() noexcept;

/// One moment on three clocks, read as close together as the machine allows.
struct Anchor {
  uint64_t ticks;
  int64_t realtime_ns;
  int64_t monotonic_ns;
};

Anchor take_anchor() noexcept;

/// Converts ticks to ns since the Unix epoch with one fixed line. Immutable, any thread.
///
/// The line never changes within a process. CUPTI's timestamps and the region log both use it, so they cannot drift
/// apart. Anchors stored with a trace show its drift from the wall clock.
class Clock {
 public:
  Clock(const Anchor& first, const Anchor& second) noexcept;

  /// The process's clock. The first call measures the counter's rate for about 10 ms.
  static const Clock& process();

  int64_t to_ns(uint64_t at_ticks) const noexcept {
    const auto delta = static_cast<int64_t>(at_ticks - base_ticks_);
    return base_ns_ + static_cast<int64_t>((static_cast<__int128>(delta) * multiplier_) >> kShift);
  }
  uint64_t to_ticks(int64_t ns) const noexcept;
  int64_t now_ns() const noexcept { return to_ns(ticks()); }

 private:
  static constexpr int kShift = 40;
  uint64_t base_ticks_;
  int64_t base_ns_;
  int64_t multiplier_;  // ns per tick in 2^-40 units: 1e-3 ppb steps at 3 GHz
};

}  // namespace gpuscope::base
