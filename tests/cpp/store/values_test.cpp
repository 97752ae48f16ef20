// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/values.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>

namespace gpuscope::store {
namespace {

constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();

// Durations spread evenly over the octaves.
int64_t random_duration(std::mt19937_64& random) {
  const auto octave = static_cast<int>(random() % 63);
  return static_cast<int64_t>((uint64_t{1} << octave) | (random() & ((uint64_t{1} << octave) - 1)));
}

TEST(Histogram, KeepsTheFirstSixteenNanosecondsExact) {
  for (int64_t duration = 0; duration < 16; ++duration) {
    EXPECT_EQ(histogram_middle(histogram_bin(duration)), duration);
  }
}

TEST(Histogram, CountsNegativeDurationsAsZero) {
  EXPECT_EQ(histogram_bin(-1), 0U);
  EXPECT_EQ(histogram_bin(std::numeric_limits<int64_t>::min()), 0U);
}

TEST(Histogram, MiddleIsWithinOneThirtySecondOfTheDuration) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100'000; ++round) {
    const int64_t duration = random_duration(random);
    const int64_t error = std::llabs(histogram_middle(histogram_bin(duration)) - duration);
    ASSERT_LE(static_cast<double>(error), static_cast<double>(duration) / 32) << duration << " ns";
  }
}

TEST(Histogram, LongerDurationsNeverLieInALowerBin) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100'000; ++round) {
    const int64_t one = random_duration(random);
    const int64_t other = random_duration(random);
    ASSERT_EQ(one < other || histogram_bin(one) >= histogram_bin(other), true) << one << " and " << other;
    ASSERT_EQ(one > other || histogram_bin(one) <= histogram_bin(other), true) << one << " and " << other;
  }
}

TEST(Histogram, BinsFollowOneAnotherWithoutAGap) {
  for (int64_t duration = 1; duration < 1 << 16; ++duration) {
    const uint32_t step = histogram_bin(duration) - histogram_bin(duration - 1);
    ASSERT_LE(step, 1U) << "at " << duration << " ns";
  }
}

TEST(Histogram, TheMiddleOfABinLiesInThatBin) {
  for (uint32_t bin = 0; bin <= histogram_bin(kLongest); ++bin) {
    ASSERT_EQ(histogram_bin(histogram_middle(bin)), bin);
  }
}

TEST(Histogram, HoldsTheLongestDurationInSixtyOctaves) { EXPECT_EQ(histogram_bin(kLongest), 60U * 16U - 1U); }

}  // namespace
}  // namespace gpuscope::store
