// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/energy_ticks.h"

#include <algorithm>
#include <cmath>

namespace gpuscope::nvml {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSeekInterval = 8 * kMs;
// A counter that goes on at each reading while it is sought does so often enough, and that of a board which draws some
// watts never stands still for so long.
constexpr int64_t kOften = 25 * kMs;
constexpr int64_t kStuck = 1000 * kMs;
// What a tick may be beside its period, and the least that the period is taken to vary by.
constexpr int64_t kJitter = 1 * kMs;
constexpr double kPeriodVaries = 5e-4;
// Ticks that are read lie a sixth of the time apart that has passed in the window: some thirty values of the first
// three seconds, and forty of the first ten. A quarter gives three quarters of these, and regions several times less
// exact.
constexpr int64_t kPartOfWindow = 6;
// What may be spent at once lasts so long.
constexpr double kAtOnceLastsNs = 1e10;
// What a search that is not the first may owe, and how many periods one takes.
constexpr int64_t kMostOwed = 100 * kMs;
constexpr int64_t kPeriodsOfSearch = 3;
constexpr int64_t kLongestStep = 5000 * kMs;
constexpr int64_t kFirstSeconds = 3000 * kMs;
// A tick that is known this well needs no reading in between; two calls of 3 ms bound it no better.
constexpr int64_t kNarrow = 12 * kMs;
// After so many searches its ticks are taken for irregular, and no reading is aimed any more; unless so many ticks were
// where they were expected in between.
constexpr int kMostSearches = 3;
constexpr int64_t kRegular = 16;
constexpr int kMostFound = 8;  // ticks of one search

}  // namespace

EnergyTicks::Expected EnergyTicks::expect(int64_t number) const {
  const int64_t count = number - last_.number;
  return {number, last_.low_ns + count * shortest_ns_ - kJitter, last_.high_ns + count * longest_ns_ + kJitter};
}

/// A reading before it and one after it are of no other tick.
bool EnergyTicks::can_aim_at(const Expected& tick) const { return tick.width() < (shortest_ns_ + longest_ns_) / 4; }

/// Anew, from `now_ns` on. A search that may not be paid for would take all of what later readings may: then it reads
/// at any moment, which bounds the latest tick by a period.
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

/// When it went on last before a reading, as far as that is known of one at any moment: ticks were seen to come up to a
/// fifth of a period late.
EnergyTicks::Tick EnergyTicks::latest(const Reading& reading) const {
  return {reading.begin_ns - longest_ns_ - longest_ns_ / 4, reading.end_ns};
}

/// A tick is read that part of the time that has passed after the one before it: a greater part where what may be spent
/// does not pay for so many until it should.
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

/// Every other tick at most, as a reading before and one after it tell both values.
void EnergyTicks::aim_at(int64_t from_ns) {
  const int64_t period_ns = (shortest_ns_ + longest_ns_) / 2;
  const int64_t wanted = std::max<int64_t>(2, step_ns(from_ns) / period_ns);
  const int64_t soonest = (from_ns + call_ns_ + 2 * kJitter - last_.low_ns) / shortest_ns_ + 1;
  for (int64_t count = std::max(wanted, soonest); count >= std::max<int64_t>(soonest, 1); --count) {
    next_ = expect(last_.number + count);
    if (can_aim_at(next_)) {
      // Ticks nearby would tell the period better, at what the farther ones that are wanted may take.
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
  if (is_first || reading.begin_ns - before.end_ns > 2 * kOften) {  // nobody knows when it went on, or how often
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
  } else {  // of all that were found: each narrows it, as far as they come at one interval
    shortest_ns_ = std::max({shortest_ns_, shortest_ns, (tick.low_ns - first_.high_ns) / tick.number});
    longest_ns_ = std::min({longest_ns_, longest_ns, (tick.high_ns - first_.low_ns) / tick.number});
  }
  last_ = tick;
  if (shortest_ns_ > longest_ns_) {
    longest_ns_ = longest_ns;
    seek(reading.end_ns);
    return {.tick = Tick{tick.low_ns, tick.high_ns}, .is_new = true};
  }
  // The latest tick is never far, or not to be foreseen, or to search on takes what later readings may.
  const bool takes_too_long = search_left_ns_ <= 0 && parts_of_window(reading.end_ns - began_ns_) < kPartOfWindow;
  if (longest_ns_ < 2 * kOften || searches_ > kMostSearches || takes_too_long) {
    read_at_any_moment(reading.end_ns);
    return {.tick = Tick{tick.low_ns, tick.high_ns}, .is_new = true};
  }
  // Where calls take long, two ticks do not tell the period well enough to aim by it: some more in a row do.
  if (found_ == kMostFound || can_aim_at(expect(last_.number + 1))) {
    aim_at(reading.end_ns);
  }
  return {.tick = Tick{tick.low_ns, tick.high_ns}, .is_new = true};
}

EnergyTicks::Taken EnergyTicks::take(const Reading& reading) {
  // A call that was held up once says nothing of the others.
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
    // It came so early, or so late, that another tick may have been meanwhile.
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
  Expected tick =
      last_;  // the latest that was surely before the call, and the latest that may have been before its end
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
