// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/clock.h"

#include <time.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace gpuscope::base {
namespace {

// Over 10 ms, an anchor's reading error (about 50 ns) is 5 ppm.
constexpr int64_t kCalibrationNs = 10'000'000;
constexpr int kAnchorTries = 5;

int64_t read_clock(clockid_t id) noexcept {
  timespec value{};
  clock_gettime(id, &value);
  return value.tv_sec * 1'000'000'000LL + value.tv_nsec;
}

}  // namespace

bool counter_is_invariant() noexcept {
#ifdef __x86_64__
  // CPUID 80000007h, EDX bit 8: invariant TSC (Intel SDM vol. 3, 18.17.1; AMD APM vol. 3, E.4.7).
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0x80000007U, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1U << 8)) != 0;
#else
  return true;
#endif
}

const bool kUseCounter = counter_is_invariant();

uint64_t monotonic_raw_ns() noexcept { return static_cast<uint64_t>(read_clock(CLOCK_MONOTONIC_RAW)); }

int64_t thread_cpu_ns() noexcept { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

Anchor take_anchor() noexcept {
  Anchor best{};
  uint64_t tightest = UINT64_MAX;
  for (int attempt = 0; attempt < kAnchorTries; ++attempt) {
    const uint64_t before = ticks();
    const int64_t realtime = read_clock(CLOCK_REALTIME);
    const int64_t monotonic = read_clock(CLOCK_MONOTONIC);
    const uint64_t after = ticks();
    if (after - before < tightest) {
      tightest = after - before;
      best = {before + (after - before) / 2, realtime, monotonic};
    }
  }
  return best;
}

Clock::Clock(const Anchor& first, const Anchor& second) noexcept
    : base_ticks_(second.ticks), base_ns_(second.realtime_ns), multiplier_(int64_t{1} << kShift) {
  const uint64_t elapsed_ticks = second.ticks - first.ticks;
  const int64_t elapsed_ns = second.monotonic_ns - first.monotonic_ns;
  if (elapsed_ticks > 0 && elapsed_ns > 0) {
    multiplier_ = static_cast<int64_t>((static_cast<__int128>(elapsed_ns) << kShift) / elapsed_ticks);
  }
}

const Clock& Clock::process() {
  static const Clock clock = [] {
    const Anchor first = take_anchor();
    const timespec pause{0, kCalibrationNs};
    nanosleep(&pause, nullptr);
    return Clock(first, take_anchor());
  }();
  return clock;
}

uint64_t Clock::to_ticks(int64_t ns) const noexcept {
  const auto delta = static_cast<__int128>(ns - base_ns_) << kShift;
  return base_ticks_ + static_cast<uint64_t>(static_cast<int64_t>(delta / multiplier_));
}

}  // namespace gpuscope::base
