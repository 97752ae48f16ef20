// SPDX-License-Identifier: Apache-2.0
// Counters whose ticks are known, read as the tracker of ticks wants it.

#include "gpuscope/nvml/energy_ticks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "gpuscope/nvml/pace.h"

namespace gpuscope::nvml {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kWholeSecond = 1000 * kMillisecond;
constexpr int64_t kBegin = 100 * kWholeSecond;

/// A counter that counts its ticks.
class Counter {
 public:
  Counter(int64_t period_ns, int64_t phase_ns, std::function<int64_t(int64_t tick)> jitter = {})
      : period_ns_(period_ns), phase_ns_(phase_ns), jitter_(std::move(jitter)) {}

  int64_t tick_ns(int64_t number) const { return phase_ns_ + number * period_ns_ + (jitter_ ? jitter_(number) : 0); }
  int64_t at(int64_t moment_ns) const {
    int64_t number = (moment_ns - phase_ns_) / period_ns_ + 1;
    while (tick_ns(number) > moment_ns) {
      --number;
    }
    return number;
  }

 private:
  int64_t period_ns_;
  int64_t phase_ns_;
  std::function<int64_t(int64_t)> jitter_;
};

struct Watched {
  int reads = 0;
  int rows = 0;
  int told = 0;                    // rows with a tick
  int wrong = 0;                   // ticks out of their bounds
  std::vector<int64_t> widths_ns;  // of bounds
  std::vector<int64_t> ticks_ns;   // that were told
  int64_t busy_ns = 0;             // inside calls
};

/// `call`: how long the reading of that number takes. The value is had at a random moment within. `allowance`: that it
/// waits for.
Watched watch(const Counter& counter, int64_t seconds, int64_t interval_ns, std::function<int64_t(int)> call,
              Allowance* allowance = nullptr) {
  Watched run;
  EnergyTicks ticks(interval_ns);
  std::mt19937 random(1);
  int64_t now = kBegin;
  ticks.begin_window(now);
  const int64_t end = now + seconds * kWholeSecond;
  while ((now = ticks.next_ns(now)) < end) {
    const int64_t took = call(run.reads);
    const int64_t value_ns = now + std::uniform_int_distribution<int64_t>(0, took)(random);
    const int64_t value = counter.at(value_ns);
    const EnergyTicks::Taken taken = ticks.take({now, now + took, value});
    ++run.reads;
    run.busy_ns += took;
    if (allowance != nullptr) {
      allowance->spend(now + took, ticks.charge(took));
      ticks.allow(allowance->left_ns(), allowance->free_ns());
    }
    run.rows += taken.is_new ? 1 : 0;
    if (taken.tick) {
      ++run.told;
      const int64_t tick = counter.tick_ns(value);
      run.wrong += tick < taken.tick->first_ns || tick > taken.tick->last_ns ? 1 : 0;
      run.ticks_ns.push_back(tick);
      run.widths_ns.push_back(taken.tick->last_ns - taken.tick->first_ns);
    }
    now += took + 50'000;
  }
  return run;
}

int64_t median(std::vector<int64_t> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

TEST(EnergyTicks, KnowWhenTheCounterOfAnH100WentOn) {
  for (int64_t phase = 0; phase < 99; phase += 7) {
    const Counter counter(99'500'000, 99 * kWholeSecond + phase * kMillisecond);
    const Watched run =
        watch(counter, 20, 100 * kMillisecond, [](int read) { return (22 + read % 17) * kMillisecond / 10; });
    EXPECT_EQ(run.wrong, 0) << phase;
    EXPECT_GE(run.told, 30) << phase;
    EXPECT_LE(median(run.widths_ns), 21 * kMillisecond) << phase;
    EXPECT_LE(run.reads, 95) << phase;  // of 201 ticks
  }
}

TEST(EnergyTicks, AreSomeInARecordingOfAnyLengthAndFewInALongOne) {
  const Counter counter(99'500'000, 99 * kWholeSecond);
  Allowance allowance(kSamplingShare, 180 * kMillisecond, kBegin);
  const Watched run = watch(
      counter, 600, 100 * kMillisecond, [](int) { return 3 * kMillisecond; }, &allowance);
  const auto told_until = [&](int64_t moment_ns) {
    return std::ranges::count_if(run.ticks_ns, [&](int64_t tick) { return tick < kBegin + moment_ns; });
  };
  EXPECT_GE(told_until(1 * kWholeSecond), 8);
  EXPECT_GE(told_until(3 * kWholeSecond), 22);
  EXPECT_GE(told_until(10 * kWholeSecond), 32);
  EXPECT_GE(told_until(20 * kWholeSecond), 38);
  EXPECT_EQ(run.wrong, 0);
  int64_t longest = 0;
  for (std::size_t at = 1; at < run.ticks_ns.size(); ++at) {
    longest = std::max(longest, run.ticks_ns[at] - run.ticks_ns[at - 1]);
  }
  EXPECT_LE(longest, 8 * kWholeSecond);
  EXPECT_LE(run.busy_ns, 1200 * kMillisecond + 180 * kMillisecond + 12 * kMillisecond);
}

TEST(EnergyTicks, AreFoundByOneSearchWhereCallsTakeLong) {
  for (int64_t phase = 0; phase < 99; phase += 7) {
    const Counter counter(99'500'000, 99 * kWholeSecond + phase * kMillisecond);
    Allowance allowance(kSamplingShare, 180 * kMillisecond, kBegin);
    const Watched run = watch(
        counter, 30, 100 * kMillisecond, [](int read) { return (60 + read % 31) * kMillisecond / 10; }, &allowance);
    EXPECT_EQ(run.wrong, 0) << phase;
    EXPECT_GE(run.told, 14) << phase;
    EXPECT_LE(median(run.widths_ns), 40 * kMillisecond) << phase;
  }
}

TEST(EnergyTicks, AreSomeInEachOfTheFirstSecondsWhereCallsTakeLong) {
  for (const int64_t took : {5, 8, 12, 20}) {
    const Counter counter(99'500'000, 99 * kWholeSecond);
    Allowance allowance(kSamplingShare, 180 * kMillisecond, kBegin);
    const Watched run = watch(
        counter, 10, 100 * kMillisecond, [took](int) { return took * kMillisecond; }, &allowance);
    EXPECT_EQ(run.wrong, 0) << took;
    int64_t before = kBegin;
    for (const int64_t tick : run.ticks_ns) {
      EXPECT_LE(tick - before, 400 * kMillisecond + (before - kBegin)) << took << " at " << before - kBegin;
      before = tick;
    }
    EXPECT_GE(before, kBegin + 6 * kWholeSecond) << took;
  }
}

TEST(EnergyTicks, ThatAreUnevenBoundAReadingAtAnyMomentOnceAPeriodIsKnown) {
  const Counter counter(99'500'000, 99 * kWholeSecond, [](int64_t number) {
    return number * 7919 % 17 * kMillisecond;  // two are 83 to 116 ms apart
  });
  Allowance allowance(kSamplingShare, 180 * kMillisecond, kBegin);
  EnergyTicks ticks(100 * kMillisecond);
  ticks.begin_window(kBegin);
  const auto read = [&](int64_t now) { return EnergyTicks::Reading{now, now + 5 * kMillisecond, counter.at(now)}; };
  for (int64_t now = kBegin; (now = ticks.next_ns(now)) < kBegin + 120 * kWholeSecond; now += 6 * kMillisecond) {
    ticks.take(read(now));
    allowance.spend(now + 5 * kMillisecond, ticks.charge(5 * kMillisecond));
    ticks.allow(allowance.left_ns(), allowance.free_ns());
    if (now > kBegin + kWholeSecond) {
      const EnergyTicks::Reading later = read(now + 300 * kMillisecond);
      const auto tick = ticks.find_tick(later);
      ASSERT_TRUE(tick);
      EXPECT_LE(tick->last_ns - tick->first_ns, 250 * kMillisecond);
    }
  }
}

TEST(EnergyTicks, OfAWindowThatBeginsAnewAreReadOftenAgain) {
  const Counter counter(99'500'000, 99 * kWholeSecond);
  EnergyTicks ticks(100 * kMillisecond);
  ticks.begin_window(kBegin);
  int64_t now = kBegin;
  const auto reads_until = [&](int64_t end) {
    int reads = 0;
    for (; (now = ticks.next_ns(now)) < end; now += 3 * kMillisecond, ++reads) {
      ticks.take({now, now + 3 * kMillisecond, counter.at(now + kMillisecond)});
    }
    return reads;
  };
  reads_until(kBegin + 60 * kWholeSecond);
  EXPECT_LE(reads_until(kBegin + 63 * kWholeSecond), 3);
  ticks.begin_window(now);
  EXPECT_GE(reads_until(kBegin + 73 * kWholeSecond), 20);
}

TEST(EnergyTicks, WaitForWhatReadingThemMayCost) {
  for (const int64_t period : {99, 20, 400}) {
    const Counter counter(period * kMillisecond + 500'000, 99 * kWholeSecond);
    Allowance allowance(kSamplingShare, 180 * kMillisecond, kBegin);
    const Watched run = watch(
        counter, 600, 100 * kMillisecond, [](int) { return 4 * kMillisecond; }, &allowance);
    EXPECT_EQ(run.wrong, 0) << period;
    const int64_t search = 250 * kMillisecond;  // the first
    EXPECT_LE(run.busy_ns, search + 1200 * kMillisecond + 180 * kMillisecond + 16 * kMillisecond) << period;
    EXPECT_GE(run.told, 60) << period;
  }
}

TEST(EnergyTicks, ThatComeAnyhowAreToldAsFarAsTheyAreKnown) {
  for (int64_t seed = 1; seed < 20; ++seed) {
    const Counter counter(99'500'000, 99 * kWholeSecond, [seed](int64_t number) {
      return (number * 7919 + seed * 104729) % 61 * kMillisecond;  // two may be 40 ms apart, or 160
    });
    Allowance allowance(kSamplingShare, 180 * kMillisecond, kBegin);
    const Watched run = watch(
        counter, 60, 100 * kMillisecond, [](int) { return 3 * kMillisecond; }, &allowance);
    EXPECT_LE(run.wrong, run.told / 4) << seed;
    EXPECT_GE(run.told, 14) << seed;
    EXPECT_LE(median(run.widths_ns), 180 * kMillisecond) << seed;
    EXPECT_LE(run.busy_ns, 120 * kMillisecond + 180 * kMillisecond + 100 * kMillisecond) << seed;
  }
}

TEST(EnergyTicks, OfACounterThatStandsStillAreNotLookedForMoreThanTheyMayCost) {
  const Counter counter(1000 * kWholeSecond, 99 * kWholeSecond);
  Allowance allowance(kSamplingShare, 180 * kMillisecond, kBegin);
  const Watched run = watch(
      counter, 600, 100 * kMillisecond, [](int) { return 3 * kMillisecond; }, &allowance);
  EXPECT_LE(run.busy_ns, 1200 * kMillisecond + 180 * kMillisecond + 300 * kMillisecond);
}

TEST(EnergyTicks, KeepUpWithTicksThatComeALittleEarlyOrLate) {
  const Counter counter(99'500'000, 99 * kWholeSecond,
                        [](int64_t number) { return (number * 7919 % 1000 - 500) * 1000; });
  const Watched run = watch(counter, 60, 100 * kMillisecond, [](int) { return 3 * kMillisecond; });
  EXPECT_LE(run.wrong, run.told / 100);
  EXPECT_GE(run.told, 45);
}

TEST(EnergyTicks, AreFoundAgainWhereThePeriodChanges) {
  // From its 100th tick on each comes 5 ms later than before.
  const Counter counter(99'500'000, 99 * kWholeSecond,
                        [](int64_t number) { return number < 100 ? 0 : (number - 100) * 5 * kMillisecond; });
  const Watched run = watch(counter, 40, 100 * kMillisecond, [](int) { return 3 * kMillisecond; });
  EXPECT_LE(run.wrong, 12);
  EXPECT_GE(run.told, 40);
}

TEST(EnergyTicks, OfACounterThatGoesOnOftenAreNeverFar) {
  const Counter counter(20 * kMillisecond, 99 * kWholeSecond);
  const Watched run = watch(counter, 10, 100 * kMillisecond, [](int) { return 1 * kMillisecond; });
  EXPECT_EQ(run.wrong, 0);
  EXPECT_LE(run.reads, 120);
  EXPECT_LE(median(run.widths_ns), 50 * kMillisecond);
}

TEST(EnergyTicks, OfAnyPeriodTakeFewReadings) {
  for (int64_t period = 5; period <= 1000; period += 15) {
    const Counter counter(period * kMillisecond, 98 * kWholeSecond);
    const Watched run = watch(counter, 60, 100 * kMillisecond, [](int) { return 3 * kMillisecond; });
    EXPECT_EQ(run.wrong, 0) << period;
    EXPECT_LE(run.busy_ns, 60 * kWholeSecond / 12) << period;
    EXPECT_GT(run.told, 15) << period;
  }
}

TEST(EnergyTicks, OfACounterThatStandsStillAreLookedForSeldom) {
  const Counter counter(1000 * kWholeSecond, 99 * kWholeSecond);
  const Watched run = watch(counter, 60, 100 * kMillisecond, [](int) { return 3 * kMillisecond; });
  EXPECT_EQ(run.told, 0);
  EXPECT_EQ(run.rows, 1);
  EXPECT_LE(run.reads, 180);
}

TEST(EnergyTicks, AreFoundThoughTheThreadIsHeldUpNowAndThen) {
  const Counter counter(99'500'000, 99 * kWholeSecond);
  const Watched run = watch(counter, 60, 100 * kMillisecond,
                            [](int read) { return read % 23 == 22 ? 130 * kMillisecond : 3 * kMillisecond; });
  EXPECT_EQ(run.wrong, 0);
  EXPECT_GE(run.told, 35);
}

TEST(EnergyTicks, BoundAReadingAtAnyMoment) {
  const Counter counter(99'500'000, 99 * kWholeSecond);
  EnergyTicks ticks(100 * kMillisecond);
  int64_t now = 100 * kWholeSecond;
  EXPECT_FALSE(ticks.find_tick({now, now + kMillisecond, counter.at(now)}));  // nothing is known yet
  for (int read = 0; read < 100; ++read) {
    now = ticks.next_ns(now);
    ticks.take({now, now + 3 * kMillisecond, counter.at(now + kMillisecond)});
    now += 3 * kMillisecond;
  }
  for (int64_t later = 0; later < 1000; later += 13) {
    const int64_t begin = now + later * kMillisecond;
    const int64_t value = counter.at(begin + kMillisecond);
    const auto tick = ticks.find_tick({begin, begin + 3 * kMillisecond, value});
    ASSERT_TRUE(tick);
    EXPECT_LE(tick->first_ns, counter.tick_ns(value)) << later;
    EXPECT_GE(tick->last_ns, counter.tick_ns(value)) << later;
    EXPECT_LE(tick->last_ns - tick->first_ns, 130 * kMillisecond);
  }
}

TEST(EnergyTicks, BeginAnewAfterARest) {
  const Counter counter(99'500'000, 99 * kWholeSecond);
  EnergyTicks ticks(100 * kMillisecond);
  ticks.rest_until(101 * kWholeSecond);
  EXPECT_EQ(ticks.next_ns(100 * kWholeSecond), 101 * kWholeSecond);
}

}  // namespace
}  // namespace gpuscope::nvml
