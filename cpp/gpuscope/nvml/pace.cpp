// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/pace.h"

#include <algorithm>
#include <cmath>

#include "gpuscope/store/values.h"

namespace gpuscope::nvml {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kTooLong = 50;  // a round takes more than this part of the interval: 2 %
constexpr int64_t kShort = 200;   // and less than this: 0.5 %
constexpr unsigned kInARow = 3;
constexpr int64_t kCalmNs = 60 * kSecondNs;

}  // namespace

Pace::Pace(std::chrono::nanoseconds interval)
    : interval_ns_(std::max<int64_t>(1, interval.count())),
      most_(static_cast<unsigned>(std::clamp<int64_t>(kSecondNs / interval_ns_, 1, 1U << 16))) {}

void Pace::end_round(int64_t took_ns) {
  ++round_;
  too_long_ = took_ns * kTooLong > interval_ns_ ? too_long_ + 1 : 0;
  short_ = took_ns * kShort < interval_ns_ ? short_ + 1 : 0;
  if (too_long_ == kInARow) {
    too_long_ = 0;
    slow_down();
  } else if (steps_ > 0 && static_cast<int64_t>(short_) * interval_ns_ >= kCalmNs) {
    short_ = 0;
    --steps_;
    divisors_[steps_ % divisors_.size()] /= 2;
  }
}

void Pace::slow_down() {
  unsigned& divisor = divisors_[steps_ % divisors_.size()];
  if (divisor * 2 > most_) {
    return;  // all parts are halved in turns, so that the others have come as far
  }
  divisor *= 2;
  ++steps_;
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
