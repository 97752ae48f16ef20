// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/pace.h"

#include <gtest/gtest.h>

namespace gpuscope::nvml {
namespace {

using namespace std::chrono_literals;

void run(Pace& pace, int rounds, std::chrono::nanoseconds took, std::chrono::nanoseconds cpu = 0ns) {
  for (int round = 0; round < rounds; ++round) {
    pace.end_round(took.count(), cpu.count());
  }
}

TEST(Paces, ReadEverythingWhereItIsQuick) {
  Pace pace(100ms, 1);
  run(pace, 1000, 2ms);
  EXPECT_EQ(pace.divisors(), (Divisors{1, 1, 1, 1}));
}

TEST(Paces, HalveTheNextPartAfterThreeRoundsInARowThatTookTooLong) {
  Pace pace(100ms, 1);
  run(pace, 2, 3ms);
  run(pace, 1, 1ms);
  run(pace, 2, 3ms);
  EXPECT_EQ(pace.divisors(), (Divisors{1, 1, 1, 1}));
  run(pace, 1, 3ms);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 1, 1, 1}));
  run(pace, 3, 3ms);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 2, 1, 1}));
  run(pace, 9, 3ms);
  EXPECT_EQ(pace.divisors(), (Divisors{4, 4, 2, 1}));
}

TEST(Paces, ReadUseEachRoundUntilAllOthersAreReadOnceASecond) {
  Pace pace(100ms, 1);
  run(pace, 3 * 9, 3ms);
  EXPECT_EQ(pace.divisors(), (Divisors{8, 8, 8, 1}));
  run(pace, 3, 3ms);
  EXPECT_EQ(pace.divisors(), (Divisors{8, 8, 8, 2}));
}

TEST(Paces, HalveAllPartsButUseWhereRoundsRunForMoreThanTheirShareOfACore) {
  Pace pace(100ms, 1);
  run(pace, 8, 1ms, 400us);  // what beginning takes
  run(pace, 16, 1ms, 120us);
  EXPECT_EQ(pace.divisors(), (Divisors{1, 1, 1, 1}));
  run(pace, 8, 1ms, 200us);
  run(pace, 4, 1ms, 200us);
  run(pace, 4, 1ms, 160us);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 2, 2, 1}));
  run(pace, 2 * 16, 1ms, 160us);
  EXPECT_EQ(pace.divisors(), (Divisors{8, 8, 8, 1}));
  run(pace, 16, 1ms, 160us);
  EXPECT_EQ(pace.divisors(), (Divisors{8, 8, 8, 2}));
}

TEST(Paces, GiveNothingUpForACallThatOnceTakesLong) {
  Pace pace(100ms, 1);
  run(pace, 16, 1ms, 50us);
  for (int minute = 0; minute < 10; ++minute) {
    run(pace, 1, 10ms, 5ms);
    run(pace, 599, 1ms, 50us);
  }
  EXPECT_EQ(pace.divisors(), (Divisors{1, 1, 1, 1}));
}

TEST(Paces, GiveEachGpuItsShare) {
  Pace pace(100ms, 4);
  run(pace, 96, 1ms, 590us);
  EXPECT_EQ(pace.divisors(), (Divisors{1, 1, 1, 1}));
  run(pace, 16, 1ms, 610us);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 2, 2, 1}));
}

TEST(Paces, LetRoundsThatComeMoreOftenThanAtTenHertzRunForAsLong) {
  Pace pace(10ms, 1);
  run(pace, 1000, 120us, 120us);
  EXPECT_EQ(pace.divisors(), (Divisors{1, 1, 1, 1}));
}

TEST(Paces, KeepWhatTheyGaveUpWhileMoreThanHalfOfTheShareIsUsed) {
  Pace pace(100ms, 1);
  run(pace, 8, 100us);
  run(pace, 16, 100us, 200us);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 2, 2, 1}));
  run(pace, 10'000, 100us, 80us);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 2, 2, 1}));
  run(pace, 620, 100us, 60us);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 2, 1, 1}));
}

TEST(Paces, ReadEachPartOnceASecondAtLeast) {
  Pace pace(100ms, 1);
  run(pace, 1000, 90ms);
  EXPECT_EQ(pace.divisors(), (Divisors{8, 8, 8, 8}));
  Pace slow(1s, 1);
  run(slow, 1000, 900ms);
  EXPECT_EQ(slow.divisors(), (Divisors{1, 1, 1, 1}));
}

TEST(Paces, ReadAPartEachSoManiethRound) {
  Pace pace(10ms, 1);
  run(pace, 3, 1ms);
  int read = 0;
  for (int round = 0; round < 100; ++round) {
    read += pace.has(Part::kCounters) ? 1 : 0;
    EXPECT_TRUE(pace.has(Part::kUse));
    pace.end_round(100'000, 0);
  }
  EXPECT_EQ(read, 50);
}

TEST(Paces, GoBackAfterAMinuteThatTookLittle) {
  Pace pace(100ms, 1);
  run(pace, 6, 3ms);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 2, 1, 1}));
  run(pace, 599, 100us);
  run(pace, 1, 1ms);  // not so little
  run(pace, 599, 100us);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 2, 1, 1}));
  run(pace, 1, 100us);
  EXPECT_EQ(pace.divisors(), (Divisors{2, 1, 1, 1}));
  run(pace, 10'000, 100us);
  EXPECT_EQ(pace.divisors(), (Divisors{1, 1, 1, 1}));
}

TEST(Seldom, IsOnceASecondOrKeepsToItsShareOfACore) {
  const Seldom::Moment begin{1h};
  Seldom seldom(0.0003, 100ms);
  EXPECT_TRUE(seldom.is_due(begin));
  seldom.has_taken(900'000'000, begin);  // what beginning takes
  EXPECT_EQ(seldom.wait(), 1s);
  seldom.has_taken(30'000, begin);
  EXPECT_EQ(seldom.wait(), 1s);
  seldom.has_taken(900'000, begin);
  EXPECT_NEAR(std::chrono::duration<double>(seldom.wait()).count(), 3.0, 1e-6);
  seldom.has_taken(900'000'000, begin);
  EXPECT_EQ(seldom.wait(), 30s);
}

TEST(Seldom, IsDueASecondAfterItWasDueHoweverLateItWasRead) {
  const Seldom::Moment begin{1h};
  Seldom seldom(0.0003, 100ms);
  seldom.has_taken(0, begin);
  EXPECT_FALSE(seldom.is_due(begin + 999ms));
  EXPECT_TRUE(seldom.is_due(begin + 1s));
  seldom.has_taken(0, begin + 1300ms);
  EXPECT_FALSE(seldom.is_due(begin + 1999ms));
  EXPECT_TRUE(seldom.is_due(begin + 2s));
}

TEST(Seldom, IsNotMoreOftenThanTheRounds) {
  Seldom seldom(0.0003, 5s);
  seldom.has_taken(30'000, Seldom::Moment{1h});
  EXPECT_EQ(seldom.wait(), 5s);
}

TEST(Allowances, GiveSoMuchAtOnceAndAShareLater) {
  constexpr int64_t kMs = 1'000'000;
  Allowance allowance(0.002, 10 * kMs, 0);
  EXPECT_EQ(allowance.free_ns(), 0);
  allowance.spend(1 * kMs, 10 * kMs);
  EXPECT_LE(allowance.free_ns(), 1 * kMs);
  allowance.spend(2 * kMs, 4 * kMs);
  EXPECT_NEAR(static_cast<double>(allowance.free_ns()), 2002e6, 2e6);  // 4 ms are 0.2 % of 2 s
  allowance.spend(1002 * kMs, 1 * kMs);
  EXPECT_NEAR(static_cast<double>(allowance.free_ns()), 2502e6, 2e6);
  allowance.spend(100'000 * kMs, 10 * kMs);  // what nobody spent is kept up to what is given at once
  EXPECT_LE(allowance.free_ns(), 100'000 * kMs);
  allowance.spend(100'000 * kMs, 1 * kMs);
  EXPECT_GT(allowance.free_ns(), 100'400 * kMs);
}

TEST(DurationsOfSamples, HaveQuantilesWithinThreePercent) {
  Durations durations;
  EXPECT_EQ(durations.quantile_ns(0.99), 0);
  for (int64_t us = 1; us <= 1000; ++us) {
    durations.add(us * 1000);
  }
  EXPECT_EQ(durations.count(), 1000U);
  EXPECT_EQ(durations.sum_ns(), 500'500'000);
  EXPECT_NEAR(static_cast<double>(durations.quantile_ns(0.99)), 990'000, 31'000);
  EXPECT_NEAR(static_cast<double>(durations.quantile_ns(0.5)), 500'000, 16'000);
}

TEST(DurationsOfSamples, HoldTheLongestThereCanBe) {
  Durations durations;
  durations.add(INT64_MAX);
  EXPECT_GT(durations.quantile_ns(1), INT64_MAX / 2);
}

}  // namespace
}  // namespace gpuscope::nvml
