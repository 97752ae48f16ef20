// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/pace.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "gpuscope/store/values.h"

namespace gpuscope::nvml {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kTooLong = 50;  // rounds longer than 1 / n of the interval are too long: 2 %
constexpr int64_t kShort = 200;   // rounds shorter than 1 / n are short: 0.5 %
constexpr unsigned kInARow = 3;
constexpr unsigned kWindows = 2;  // in a row, likewise
constexpr int64_t kCalmNs = 60 * kSecondNs;
constexpr int64_t kCommonNs = kSecondNs / 10;  // the interval on which the shares are based
constexpr std::size_t kInTurns = 3;            // parts before use

}  // namespace

Pace::Pace(std::chrono::nanoseconds interval, unsigned gpus)
    : interval_ns_(std::max<int64_t>(1, interval.count())),
      cpu_limit_ns_(static_cast<int64_t>(kRoundShare * std::max(gpus, 1U) *
                                         static_cast<double>(std::max(interval_ns_, kCommonNs)))),
      most_(std::bit_floor(static_cast<unsigned>(std::clamp<int64_t>(kSecondNs / interval_ns_, 1, 1U << 16)))),
      in_turns_(kInTurns * (std::bit_width(most_) - 1U)) {}

void Pace::end_round(int64_t took_ns, int64_t cpu_ns) {
  ++round_;
  too_long_ = took_ns * kTooLong > interval_ns_ ? too_long_ + 1 : 0;
  if (too_long_ == kInARow) {
    too_long_ = 0;
    slow_down();
  }
  if (runs_too_long(cpu_ns)) {
    while (slow_down() && steps_ < in_turns_ && steps_ % kInTurns != 0) {
    }
  }
  short_ = is_calm_ && took_ns * kShort < interval_ns_ ? short_ + 1 : 0;
  if (steps_ > 0 && static_cast<int64_t>(short_) * interval_ns_ >= kCalmNs) {
    short_ = 0;
    --steps_;
    divisor_of(steps_) /= 2;
  }
}

// A window has as many rounds as the largest divisor, so each part is read equally often in every window. A window may
// contain two reads of a part that is read once per second, or one slow call. So two windows in a row must be too long.
bool Pace::runs_too_long(int64_t cpu_ns) {
  cpu_ns_ += cpu_ns;
  if (round_ % most_ != 0) {
    return false;
  }
  const int64_t mean_ns = std::exchange(cpu_ns_, 0) / most_;
  if (round_ == most_) {
    return false;  // the first reads are slower once
  }
  is_calm_ = 2 * mean_ns < cpu_limit_ns_;
  busy_ = mean_ns > cpu_limit_ns_ ? busy_ + 1 : 0;
  if (busy_ < kWindows) {
    return false;
  }
  busy_ = 0;
  return true;
}

unsigned& Pace::divisor_of(uint64_t step) noexcept { return divisors_[step < in_turns_ ? step % kInTurns : kInTurns]; }

bool Pace::slow_down() {
  unsigned& divisor = divisor_of(steps_);
  if (divisor == most_) {
    return false;
  }
  divisor *= 2;
  ++steps_;
  return true;
}

void Seldom::has_taken(int64_t cpu_ns, Moment began) noexcept {
  const bool is_first = wait_ == std::chrono::nanoseconds::zero();
  const double affordable_ns = is_first ? 0.0 : static_cast<double>(cpu_ns) / share_;
  const auto most_ns = static_cast<double>(kLongest.count());
  const std::chrono::nanoseconds affordable(static_cast<int64_t>(std::min(affordable_ns, most_ns)));
  wait_ = std::max({interval_, kShortest, affordable});
  due_ = std::max((is_first ? began : due_) + wait_, began);  // deadlines do not shift
}

void Allowance::spend(int64_t now_ns, int64_t cpu_ns) {
  const auto earned_ns = static_cast<int64_t>(share_ * static_cast<double>(std::max<int64_t>(now_ns - at_ns_, 0)));
  left_ns_ = std::min(left_ns_ + earned_ns, most_ns_) - cpu_ns;
  at_ns_ = std::max(at_ns_, now_ns);
}

int64_t Allowance::free_ns() const noexcept {
  return left_ns_ < 0 ? at_ns_ + static_cast<int64_t>(static_cast<double>(-left_ns_) / share_) : at_ns_;
}

void Durations::add(int64_t ns) {
  ++bins_[std::min<std::size_t>(store::histogram_bin(ns), kBins - 1)];
  ++count_;
  sum_ns_ += ns;
}

int64_t Durations::quantile_ns(double share) const {
  const auto wanted = static_cast<uint64_t>(std::ceil(share * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (std::size_t bin = 0; bin < kBins && count_ > 0; ++bin) {
    seen += bins_[bin];
    if (seen >= std::max<uint64_t>(1, wanted)) {
      return store::histogram_middle(static_cast<uint32_t>(bin));
    }
  }
  return 0;
}

}  // namespace gpuscope::nvml
