// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/grouping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

#include "gpuscope/store/values.h"

namespace gpuscope::analysis {
namespace {

std::vector<int64_t> one_to(int64_t count) {
  std::vector<int64_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 1);
  std::shuffle(values.begin(), values.end(), std::mt19937(7));
  return values;
}

TEST(Measure, FindsCountTotalAndExtremes) {
  std::vector<int64_t> values = {30, 10, 20};
  const Durations result = measure(values);
  EXPECT_EQ(result.count, 3U);
  EXPECT_EQ(result.total_ns, 60);
  EXPECT_EQ(result.min_ns, 10);
  EXPECT_EQ(result.max_ns, 30);
}

TEST(Measure, FindsExactQuantiles) {
  std::vector<int64_t> values = one_to(1000);
  const Durations result = measure(values);
  EXPECT_EQ(result.p50_ns, 500);
  EXPECT_EQ(result.p95_ns, 950);
  EXPECT_EQ(result.p99_ns, 990);
}

TEST(Measure, TakesTheOnlyValueForEveryQuantile) {
  std::vector<int64_t> values = {42};
  const Durations result = measure(values);
  EXPECT_EQ(result.p50_ns, 42);
  EXPECT_EQ(result.p99_ns, 42);
}

TEST(Measure, OfNothingIsAllZero) {
  const Durations result = measure({});
  EXPECT_EQ(result.count, 0U);
  EXPECT_EQ(result.max_ns, 0);
}

TEST(FillQuantiles, StaysWithinTheWidthOfABin) {
  std::vector<BinCount> bins;
  for (const int64_t value : one_to(10'000)) {
    bins.push_back({store::histogram_bin(value), 1});
  }
  Durations known{.count = 10'000, .min_ns = 1, .max_ns = 10'000};
  fill_quantiles(known, bins);
  EXPECT_NEAR(static_cast<double>(known.p50_ns), 5000, 5000 / 32.0);
  EXPECT_NEAR(static_cast<double>(known.p99_ns), 9900, 9900 / 32.0);
}

TEST(FillQuantiles, StaysWithinMinAndMax) {
  std::vector<BinCount> bins = {{store::histogram_bin(1000), 5}};
  Durations known{.count = 5, .min_ns = 1000, .max_ns = 1000};
  fill_quantiles(known, bins);
  EXPECT_EQ(known.p50_ns, 1000);
}

TEST(FillQuantiles, WithoutBinsStaysWithinMinAndMax) {
  Durations known{.count = 5, .min_ns = 3, .max_ns = 9};
  fill_quantiles(known, {});
  EXPECT_GE(known.p50_ns, 3);
  EXPECT_LE(known.p50_ns, 9);
}

TEST(Merge, IgnoresTheExtremesOfAnEmptySet) {
  Durations into;
  merge(into, {.count = 1, .total_ns = 7, .min_ns = 7, .max_ns = 7});
  merge(into, {});
  EXPECT_EQ(into.min_ns, 7);
  EXPECT_EQ(into.total_ns, 7);
}

TEST(MeasureGroups, EachGroupHasItsOwnDurations) {
  const std::array<int64_t, 5> durations{5, 1, 9, 3, 7};
  const std::array<uint32_t, 5> group{0, 2, 0, 2, 0};
  const std::vector<Durations> measured = measure_groups(durations, group, 3);
  ASSERT_EQ(measured.size(), 3U);
  EXPECT_EQ(measured[0].count, 3U);
  EXPECT_EQ(measured[0].total_ns, 21);
  EXPECT_EQ(measured[0].p50_ns, 7);
  EXPECT_EQ(measured[1].count, 0U);
  EXPECT_EQ(measured[2].max_ns, 3);
}

}  // namespace
}  // namespace gpuscope::analysis
