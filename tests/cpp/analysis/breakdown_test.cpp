// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/breakdown.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gpuscope/base/errors.h"

namespace gpuscope::analysis {
namespace {

using Values = std::vector<int64_t>;

const std::vector<Interval> kWindow = {{0, 100}};

TEST(DivideTime, GivesAMomentToTheLowestOfTheClassesThatFillIt) {
  const Division got = divide_time(kWindow, std::vector<Interval>{{10, 40}, {30, 60}}, std::vector<uint8_t>{1, 0}, 2);
  EXPECT_EQ(got.exclusive_ns, (Values{30, 20, 50}));
  EXPECT_EQ(got.covered_ns, (Values{30, 30}));
}

TEST(DivideTime, CountsWhatOneClassFillsTwiceOnce) {
  const Division got = divide_time(kWindow, std::vector<Interval>{{10, 40}, {20, 50}}, std::vector<uint8_t>{0, 0}, 1);
  EXPECT_EQ(got.exclusive_ns, (Values{40, 60}));
}

TEST(DivideTime, CutsWorkAtTheBordersOfWindowsAndLeavesOutWhatLiesBetween) {
  const std::vector<Interval> windows = {{0, 10}, {20, 30}, {30, 40}};
  const Division got = divide_time(windows, std::vector<Interval>{{5, 33}}, std::vector<uint8_t>{0}, 1);
  EXPECT_EQ(got.exclusive_ns, (Values{5, 5, 10, 0, 3, 7}));
}

TEST(DivideTime, FillsNothingByWorkThatEndsBeforeItStarts) {
  const Division got = divide_time(kWindow, std::vector<Interval>{{50, 20}, {7, 7}}, std::vector<uint8_t>{0, 0}, 1);
  EXPECT_EQ(got.exclusive_ns, (Values{0, 100}));
}

TEST(DivideTime, OfNoWindowIsNothing) {
  EXPECT_TRUE(divide_time({}, std::vector<Interval>{{1, 2}}, std::vector<uint8_t>{0}, 1).exclusive_ns.empty());
}

TEST(DivideTime, EqualsLookingAtEveryMoment) {
  std::mt19937 random(1);
  const auto below = [&](int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(random); };
  for (int round = 0; round < 500; ++round) {
    Values borders(static_cast<std::size_t>(2 * below(5)));
    std::generate(borders.begin(), borders.end(), [&] { return below(200); });
    std::sort(borders.begin(), borders.end());
    std::vector<Interval> windows;
    for (std::size_t at = 0; at < borders.size(); at += 2) {
      windows.push_back({borders[at], borders[at + 1]});
    }
    const auto count = static_cast<std::size_t>(1 + below(4));
    std::vector<Interval> work(static_cast<std::size_t>(below(30)));
    std::vector<uint8_t> classes;
    for (Interval& each : work) {
      each.start_ns = below(220) - 10;
      each.end_ns = each.start_ns + below(40) - 3;
      classes.push_back(static_cast<uint8_t>(below(static_cast<int64_t>(count))));
    }
    Values exclusive;
    Values covered;
    for (const Interval& window : windows) {
      Values in_class(count + 1);
      Values fills(count);
      for (int64_t at = window.start_ns; at < window.end_ns; ++at) {
        std::size_t lowest = count;
        std::vector<bool> seen(count);
        for (std::size_t each = 0; each < work.size(); ++each) {
          if (work[each].start_ns <= at && at < work[each].end_ns) {
            lowest = std::min<std::size_t>(lowest, classes[each]);
            seen[classes[each]] = true;
          }
        }
        ++in_class[lowest];
        for (std::size_t each = 0; each < count; ++each) {
          fills[each] += seen[each] ? 1 : 0;
        }
      }
      exclusive.insert(exclusive.end(), in_class.begin(), in_class.end());
      covered.insert(covered.end(), fills.begin(), fills.end());
    }
    const Division got = divide_time(windows, work, classes, count);
    ASSERT_EQ(got.exclusive_ns, exclusive) << "round " << round;
    ASSERT_EQ(got.covered_ns, covered) << "round " << round;
  }
}

TEST(DivideTime, RefusesWhatCannotBeDivided) {
  const std::vector<Interval> work = {{0, 1}};
  const std::vector<uint8_t> classes = {0};
  EXPECT_THROW(divide_time(kWindow, work, classes, 65), base::InvalidArgument);
  EXPECT_THROW(divide_time(kWindow, work, {}, 1), base::InvalidArgument);
  EXPECT_THROW(divide_time(kWindow, work, classes, 0), base::InvalidArgument);
  EXPECT_THROW(divide_time(std::vector<Interval>{{10, 20}, {15, 30}}, work, classes, 1), base::InvalidArgument);
  EXPECT_THROW(divide_time(std::vector<Interval>{{20, 10}}, work, classes, 1), base::InvalidArgument);
}

std::vector<uint32_t> repeated(const std::vector<uint32_t>& before, const std::vector<uint32_t>& part, int times) {
  std::vector<uint32_t> all = before;
  for (int round = 0; round < times; ++round) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(FindRepetition, FindsTheShortestPartOfTheLongestEnd) {
  const Repetition found = find_repetition(repeated({9, 8, 7}, {1, 1, 2, 3}, 6), 5);
  EXPECT_EQ(found.begin, 3U);
  EXPECT_EQ(found.period, 4U);
}

TEST(FindRepetition, TakesWhatIsLeftOfAFirstPartAlong) {
  const Repetition found = find_repetition(repeated({3}, {1, 2, 3}, 5), 5);
  EXPECT_EQ(found.begin, 0U);
  EXPECT_EQ(found.period, 3U);
}

TEST(FindRepetition, PrefersTheLongRunOfStepsToTheShortRunAtItsEnd) {
  // Each step ends with equal kernels, which repeat by themselves too.
  const Repetition found = find_repetition(repeated({}, {1, 2, 5, 5, 5, 5, 5, 5}, 7), 5);
  EXPECT_EQ(found.begin, 0U);
  EXPECT_EQ(found.period, 8U);
}

TEST(FindRepetition, FindsNoneInFewerParts) {
  EXPECT_EQ(find_repetition(repeated({}, {1, 2, 3}, 4), 5).period, 0U);
  EXPECT_EQ(find_repetition({}, 5).period, 0U);
}

}  // namespace
}  // namespace gpuscope::analysis
