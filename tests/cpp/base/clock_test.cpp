// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

namespace gpuscope::base {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kEpoch = 1'700'000'000 * kSecond;

// A counter of `hertz`, read twice 10 ms apart.
Clock make_clock(int64_t hertz, uint64_t start = 5'000'000'000'000) {
  const uint64_t end = start + static_cast<uint64_t>(hertz / 100);
  return Clock({start, kEpoch, 7 * kSecond}, {end, kEpoch + 10'000'000, 7 * kSecond + 10'000'000});
}

TEST(Clock, ReadsTheSecondAnchorAsItsWallTime) {
  const Clock clock = make_clock(3'000'000'000, 1000);
  EXPECT_EQ(clock.to_ns(1000 + 30'000'000), kEpoch + 10'000'000);
}

TEST(Clock, KeepsTheMeasuredRateForADay) {
  for (const int64_t hertz : {24'000'000LL, 1'000'000'000LL, 2'000'000'000LL, 2'400'000'000LL}) {
    const Clock clock = make_clock(hertz);
    const uint64_t base = 5'000'000'000'000 + static_cast<uint64_t>(hertz / 100);
    for (const int64_t seconds : {1, 60, 3600, 86'400}) {
      const int64_t ns = clock.to_ns(base + static_cast<uint64_t>(hertz * seconds));
      // The multiplier has 40 binary places: its rounding adds at most 2^-40 ns a tick.
      const int64_t rounding = (hertz * seconds >> 40) + 1;
      EXPECT_LE(std::abs(ns - (kEpoch + 10'000'000 + seconds * kSecond)), rounding)
          << hertz << " Hz, " << seconds << " s";
    }
  }
}

TEST(Clock, ReadsMomentsBeforeTheAnchors) {
  const Clock clock = make_clock(2'000'000'000);
  EXPECT_EQ(clock.to_ns(5'000'000'000'000 + 20'000'000 - 2'000'000'000), kEpoch + 10'000'000 - kSecond);
}

TEST(Clock, RateComesFromTheMonotonicClockNotFromASteppedWallClock) {
  for (const int64_t step : {-3600 * kSecond, 3600 * kSecond}) {
    const Clock clock({0, kEpoch, 0}, {20'000'000, kEpoch + step, 10'000'000});
    EXPECT_EQ(clock.to_ns(40'000'000) - clock.to_ns(20'000'000), 10'000'000) << "stepped by " << step << " ns";
  }
}

TEST(Clock, NeverRunsBackward) {
  const Clock clock = make_clock(2'893'202'000);
  int64_t last = clock.to_ns(0);
  for (uint64_t step = 1, at = 0; at < (uint64_t{1} << 44); at += step, step = step * 5 / 4 + 1) {
    const int64_t now = clock.to_ns(at);
    ASSERT_GE(now, last) << "at tick " << at;
    last = now;
  }
}

TEST(Clock, TurnsNanosecondsBackIntoTicksOfTheSameNanosecond) {
  for (const int64_t hertz : {24'000'000LL, 1'000'000'000LL, 3'700'000'000LL}) {
    const Clock clock = make_clock(hertz);
    const int64_t tick_ns = kSecond / hertz + 1;
    for (int64_t offset = -10 * kSecond; offset <= 10 * kSecond; offset += 123'456'789) {
      const int64_t ns = kEpoch + offset;
      EXPECT_LE(std::abs(clock.to_ns(clock.to_ticks(ns)) - ns), tick_ns) << hertz << " Hz, " << offset << " ns";
    }
  }
}

TEST(Clock, CountsOneTickAsOneNanosecondWhenTheAnchorsAreOneMoment) {
  const Anchor moment{1000, kEpoch, 0};
  EXPECT_EQ(Clock(moment, moment).to_ns(1500), kEpoch + 500);
}

TEST(Clock, ProcessClockAgreesWithTheWallClock) {
  const Clock& clock = Clock::process();
  const Anchor now = take_anchor();
  EXPECT_LT(std::abs(clock.to_ns(now.ticks) - now.realtime_ns), kSecond / 10);
}

TEST(Clock, ProcessClockIsOneForAllThreads) {
  std::vector<const Clock*> seen(4, nullptr);
  std::vector<std::thread> threads;
  for (auto& slot : seen) {
    threads.emplace_back([&slot] { slot = &Clock::process(); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const Clock* clock : seen) {
    EXPECT_EQ(clock, &Clock::process());
  }
}

TEST(Ticks, NeverRunBackwardOnOneThread) {
  uint64_t last = ticks();
  for (int read = 0; read < 100'000; ++read) {
    const uint64_t now = ticks();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Anchor, LiesBetweenTheTicksReadAroundIt) {
  const uint64_t before = ticks();
  const Anchor anchor = take_anchor();
  const uint64_t after = ticks();
  EXPECT_GE(anchor.ticks, before);
  EXPECT_LE(anchor.ticks, after);
}

}  // namespace
}  // namespace gpuscope::base
