// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/energy_ticks.h"

#include <algorithm>
#include <cmath>

namespace gpuscope::nvml {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSeekInterval = 8 * kMs;
// A counter with a period below 2 * kOften needs no search. That of a board that draws power steps within kStuck.
constexpr int64_t kOften = 25 * kMs;
constexpr int64_t kStuck = 1000 * kMs;
// The error of one tick, and the minimum relative variation of the period.
constexpr int64_t kJitter = 1 * kMs;
constexpr double kPeriodVaries = 5e-4;
// The distance of selected ticks is a sixth of the time since the window began: some thirty values in the first three
// seconds, forty in the first ten. With a quarter, regions are several times less exact.
constexpr int64_t kPartOfWindow = 6;
// The time for which the initial CPU budget lasts.
constexpr double kAtOnceLastsNs = 1e10;
// The CPU time that later searches may owe, and the periods that a search takes.
constexpr int64_t kMostOwed = 100 * kMs;
constexpr int64_t kPeriodsOfSearch = 3;
constexpr int64_t kLongestStep = 5000 * kMs;
constexpr int64_t kFirstSeconds = 3000 * kMs;
// A tick with narrower bounds needs no reading within them: two calls of 3 ms bound it no better.
constexpr int64_t kNarrow = 12 * kMs;
// After kMostSearches the ticks count as irregular and readings are no longer aimed. kRegular ticks at their expected
// times reset this count.
constexpr int kMostSearches = 3;
constexpr int64_t kRegular = 16;
constexpr int kMostFound = 8;  // ticks of one search

}  // namespace

EnergyTicks::Expected EnergyTicks::expect(int64_t number) const {
  const int64_t count = number - last_.number;
  return {number, last_.low_ns + count * shortest_ns_ - kJitter, last_.high_ns + count * longest_ns_ + kJitter};
}

/// Whether readings before and after the tick cannot be of other ticks.
bool EnergyTicks::can_aim_at(const Expected& tick) const { return tick.width() < (shortest_ns_ + longest_ns_) / 4; }

/// Starts a new search at `now_ns`. Without budget for it, reads at any moment instead, which bounds the latest tick by
/// a period.
void EnergyTicks::seek(int64_t now_ns) {
  searches_ = last_.number >= kRegular ? 1 : searches_ + 1;
  found_ = 0;
  can_wait_ = true;
  const int64_t search_ns = kPeriodsOfSearch * longest_ns_ / (call_ns_ + kSeekInterval) * call_ns_;
  if (longest_ns_ > 0 && (free_ns_ > now_ns || left_ns_ < search_ns - kMostOwed)) {
    read_at_any_moment(now_ns);
    return;
  }
  aim_ = Aim::Seek;
  due_ns_ = 0;
}

void EnergyTicks::read_at_any_moment(int64_t now_ns) {
  aim_ = Aim::Often;
  can_wait_ = true;
  due_ns_ = now_ns + std::max(interval_ns_, step_ns(now_ns));
}

/// The bounds of the last tick before a reading at any moment. Ticks were up to a fifth of a period late.
EnergyTicks::Tick EnergyTicks::latest(const Reading& reading) const {
  return {reading.begin_ns - longest_ns_ - longest_ns_ / 4, reading.end_ns};
}

/// The divisor of the time since the window began that gives the distance of selected ticks. It is smaller if the
/// budget does not last for kAtOnceLastsNs otherwise.
double EnergyTicks::parts_of_window(int64_t passed_ns) const {
  const auto parts = static_cast<double>(kPartOfWindow);
  const auto at_ns = static_cast<double>(std::max(passed_ns, kMs));
  if (at_ns >= kAtOnceLastsNs) {
    return parts;
  }
  const auto of_tick_ns = static_cast<double>(aim_ == Aim::Often ? call_ns_ : 2 * call_ns_);
  const double ticks = static_cast<double>(left_ns_) / of_tick_ns;
  return std::clamp(ticks / std::log(kAtOnceLastsNs / at_ns), 1.0, parts);
}

int64_t EnergyTicks::step_ns(int64_t now_ns) const {
  const int64_t passed_ns = now_ns - began_ns_;
  const auto part_ns = static_cast<int64_t>(static_cast<double>(passed_ns) / parts_of_window(passed_ns));
  const int64_t step_ns = std::min(part_ns, kLongestStep);
  return passed_ns < kFirstSeconds ? step_ns : std::max(step_ns, 2 * interval_ns_);
}

/// Selects every second tick at most: its two readings give two values.
void EnergyTicks::aim_at(int64_t from_ns) {
  const int64_t period_ns = (shortest_ns_ + longest_ns_) / 2;
  const int64_t wanted = std::max<int64_t>(2, step_ns(from_ns) / period_ns);
  const int64_t soonest = (from_ns + call_ns_ + 2 * kJitter - last_.low_ns) / shortest_ns_ + 1;
  for (int64_t count = std::max(wanted, soonest); count >= std::max<int64_t>(soonest, 1); --count) {
    next_ = expect(last_.number + count);
    if (can_aim_at(next_)) {
      // Nearby ticks would improve the period, but use the budget of the wanted ones.
      if (2 * count < wanted && parts_of_window(from_ns - began_ns_) < kPartOfWindow) {
        read_at_any_moment(from_ns);
        return;
      }
      aim_ = Aim::Before;
      due_ns_ = next_.low_ns - kJitter - call_ns_;
      return;
    }
  }
  seek(from_ns);
}

int64_t EnergyTicks::next_ns(int64_t now_ns) {
  const bool is_late = now_ns > next_.low_ns - call_ns_;
  if (aim_ == Aim::Before && (is_late || due_ns_ < free_ns_)) {
    aim_at(std::max(now_ns, free_ns_));
  }
  return std::max({now_ns, due_ns_, can_wait_ ? free_ns_ : 0});
}

int64_t EnergyTicks::charge(int64_t cpu_ns) noexcept {
  const int64_t free_ns = std::min(cpu_ns, search_left_ns_);
  search_left_ns_ = aim_ == Aim::Seek ? search_left_ns_ - free_ns : 0;
  return cpu_ns - free_ns;
}

void EnergyTicks::narrow_period() {
  const int64_t count = last_.number - first_.number;
  if (count == 0) {
    return;
  }
  const auto varies = static_cast<int64_t>(kPeriodVaries * static_cast<double>(longest_ns_));
  const int64_t shortest_ns = std::max(shortest_ns_, (last_.low_ns - first_.high_ns) / count - varies);
  const int64_t longest_ns = std::min(longest_ns_, (last_.high_ns - first_.low_ns) / count + varies);
  if (shortest_ns > longest_ns) {
    seek(last_.high_ns);
  } else {
    shortest_ns_ = shortest_ns;
    longest_ns_ = longest_ns;
  }
}

EnergyTicks::Taken EnergyTicks::take_seeking(const Reading& reading) {
  const Reading before = before_.value_or(reading);
  const bool is_first = !before_.has_value();
  before_ = reading;
  due_ns_ = reading.end_ns + kSeekInterval;
  can_wait_ = false;
  if (!is_first && reading.value == before.value) {
    if (reading.end_ns - unchanged_since_ns_ > kStuck) {
      due_ns_ = reading.end_ns + std::max(interval_ns_, kStuck);
      can_wait_ = true;
    }
    return {};
  }
  if (is_first || reading.begin_ns - before.end_ns > 2 * kOften) {  // the time of the last tick is unknown
    found_ = 0;
    unchanged_since_ns_ = reading.begin_ns;
    return {.tick = {}, .is_new = true};
  }
  unchanged_since_ns_ = reading.begin_ns;
  const Expected tick{found_, before.begin_ns, reading.end_ns};
  ++found_;
  if (found_ == 1) {
    first_ = last_ = tick;
    return {.tick = Tick{tick.low_ns, tick.high_ns}, .is_new = true};
  }
  const int64_t shortest_ns = std::max<int64_t>(tick.low_ns - last_.high_ns, 1);
  const int64_t longest_ns = tick.high_ns - last_.low_ns;
  if (found_ == 2) {
    shortest_ns_ = shortest_ns;
    longest_ns_ = longest_ns;
  } else {  // each tick narrows the period if the ticks are regular
    shortest_ns_ = std::max({shortest_ns_, shortest_ns, (tick.low_ns - first_.high_ns) / tick.number});
    longest_ns_ = std::min({longest_ns_, longest_ns, (tick.high_ns - first_.low_ns) / tick.number});
  }
  last_ = tick;
  if (shortest_ns_ > longest_ns_) {
    longest_ns_ = longest_ns;
    seek(reading.end_ns);
    return {.tick = Tick{tick.low_ns, tick.high_ns}, .is_new = true};
  }
  // The period is short, ticks are irregular, or a longer search would use the budget of later readings.
  const bool takes_too_long = search_left_ns_ <= 0 && parts_of_window(reading.end_ns - began_ns_) < kPartOfWindow;
  if (longest_ns_ < 2 * kOften || searches_ > kMostSearches || takes_too_long) {
    read_at_any_moment(reading.end_ns);
    return {.tick = Tick{tick.low_ns, tick.high_ns}, .is_new = true};
  }
  // With slow calls, two ticks do not give the period precisely enough to aim; a few more do.
  if (found_ == kMostFound || can_aim_at(expect(last_.number + 1))) {
    aim_at(reading.end_ns);
  }
  return {.tick = Tick{tick.low_ns, tick.high_ns}, .is_new = true};
}

EnergyTicks::Taken EnergyTicks::take(const Reading& reading) {
  // Limits the effect of a single slow call.
  call_ns_ = std::clamp(reading.end_ns - reading.begin_ns, call_ns_ - call_ns_ / 8, 2 * call_ns_);
  if (aim_ == Aim::Seek) {
    return take_seeking(reading);
  }
  if (aim_ == Aim::Often) {
    read_at_any_moment(reading.end_ns);
    return {.tick = latest(reading), .is_new = true};
  }
  before_ = reading;
  unchanged_since_ns_ = reading.begin_ns;
  if (aim_ == Aim::Before) {
    value_before_ = reading.value;
    const Expected tick = expect(next_.number - 1);
    const bool is_wide = next_.width() > kNarrow;
    aim_ = is_wide ? Aim::Middle : Aim::After;
    due_ns_ = is_wide ? next_.low_ns + next_.width() / 2 - call_ns_ / 2 : next_.high_ns + kJitter;
    // Sure only if the previous tick has come and the next one has not.
    const bool is_sure = reading.begin_ns >= tick.high_ns && reading.end_ns <= next_.low_ns;
    if (!is_sure) {
      seek(reading.end_ns);
      return {.tick = latest(reading), .is_new = true};
    }
    return {.tick = Tick{tick.low_ns, tick.high_ns}, .is_new = true};
  }
  const bool went_on = reading.value != value_before_;
  if (aim_ == Aim::Middle && !went_on) {
    next_.low_ns = std::max(next_.low_ns, reading.begin_ns);
    aim_ = Aim::After;
    due_ns_ = next_.high_ns + kJitter;
    return {};
  }
  const bool is_sure = reading.end_ns <= expect(next_.number + 1).low_ns;
  if (!went_on || !is_sure) {
    seek(reading.end_ns);
    return {.tick = latest(reading), .is_new = true};
  }
  next_.high_ns = std::max(next_.low_ns, std::min(next_.high_ns, reading.end_ns));
  last_ = next_;
  const Tick tick{last_.low_ns, last_.high_ns};
  aim_ = Aim::Before;
  narrow_period();
  if (aim_ != Aim::Seek) {
    aim_at(reading.end_ns);
  }
  return {.tick = tick, .is_new = true};
}

std::optional<EnergyTicks::Tick> EnergyTicks::find_tick(const Reading& reading) const {
  if (aim_ == Aim::Seek || aim_ == Aim::Often) {
    return longest_ns_ > 0 ? std::optional(latest(reading)) : std::nullopt;
  }
  // From the latest tick surely before the call to the latest one possibly before its end.
  Expected tick = last_;
  int64_t number = last_.number + std::max<int64_t>((reading.begin_ns - last_.high_ns) / longest_ns_ - 1, 0);
  while (expect(number).high_ns <= reading.begin_ns) {
    tick = expect(number++);
  }
  int64_t high_ns = tick.high_ns;
  for (; expect(number).low_ns < reading.end_ns; ++number) {
    high_ns = std::min(expect(number).high_ns, reading.end_ns);
  }
  return Tick{tick.low_ns, std::max(tick.low_ns, high_ns)};
}

}  // namespace gpuscope::nvml
