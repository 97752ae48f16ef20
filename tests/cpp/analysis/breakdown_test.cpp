// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/breakdown.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

#include "gpuscope/base/errors.h"

namespace gpuscope::analysis {
namespace {

using Values = std::vector<int64_t>;

struct Interval {
  int64_t start_ns;
  int64_t end_ns;
};

struct Divided {
  Values exclusive_ns;
  Values covered_ns;
};

// The work goes to the lists in turns.
Divided divided(const std::vector<Interval>& windows, const std::vector<Interval>& work,
                const std::vector<uint8_t>& classes, std::size_t count, std::size_t lists = 1) {
  const auto column = [](const std::vector<Interval>& of, int64_t Interval::*which) {
    Values values;
    std::transform(of.begin(), of.end(), std::back_inserter(values), [=](const Interval& each) { return each.*which; });
    return values;
  };
  const Values window_starts = column(windows, &Interval::start_ns);
  const Values window_ends = column(windows, &Interval::end_ns);
  std::vector<std::vector<Interval>> spans(lists);
  std::vector<std::vector<uint8_t>> classes_of(lists);
  for (std::size_t at = 0; at < work.size(); ++at) {
    spans[at % lists].push_back(work[at]);
  }
  for (std::size_t at = 0; at < classes.size(); ++at) {
    classes_of[at % lists].push_back(classes[at]);
  }
  std::vector<Values> columns;
  for (const std::vector<Interval>& each : spans) {
    columns.push_back(column(each, &Interval::start_ns));
    columns.push_back(column(each, &Interval::end_ns));
  }
  std::vector<ClassifiedIntervals> classified;
  for (std::size_t list = 0; list < lists; ++list) {
    classified.push_back({{columns[2 * list], columns[2 * list + 1]}, classes_of[list]});
  }
  Divided into{Values(windows.size() * (count + 1)), Values(windows.size() * count)};
  divide_time({window_starts, window_ends}, classified, count, {into.exclusive_ns, into.covered_ns});
  return into;
}

const std::vector<Interval> kWindow = {{0, 100}};

TEST(DivideTime, GivesAMomentToTheLowestOfTheClassesThatFillIt) {
  const Divided got = divided(kWindow, {{10, 40}, {30, 60}}, {1, 0}, 2);
  EXPECT_EQ(got.exclusive_ns, (Values{30, 20, 50}));
  EXPECT_EQ(got.covered_ns, (Values{30, 30}));
}

TEST(DivideTime, CountsWhatOneClassFillsTwiceOnce) {
  const Divided got = divided(kWindow, {{10, 40}, {20, 50}}, {0, 0}, 1);
  EXPECT_EQ(got.exclusive_ns, (Values{40, 60}));
}

TEST(DivideTime, CutsWorkAtTheBordersOfWindowsAndLeavesOutWhatLiesBetween) {
  const std::vector<Interval> windows = {{0, 10}, {20, 30}, {30, 40}};
  const Divided got = divided(windows, {{5, 33}}, {0}, 1);
  EXPECT_EQ(got.exclusive_ns, (Values{5, 10, 3, 5, 0, 7}));
}

TEST(DivideTime, FillsNothingByWorkThatEndsBeforeItStarts) {
  const Divided got = divided(kWindow, {{50, 20}, {7, 7}}, {0, 0}, 1);
  EXPECT_EQ(got.exclusive_ns, (Values{0, 100}));
}

TEST(DivideTime, OfNoWindowIsNothing) { EXPECT_TRUE(divided({}, {{1, 2}}, {0}, 1).exclusive_ns.empty()); }

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
    Values exclusive(windows.size() * (count + 1));
    Values covered(windows.size() * count);
    for (std::size_t row = 0; row < windows.size(); ++row) {
      const Interval& window = windows[row];
      for (int64_t at = window.start_ns; at < window.end_ns; ++at) {
        std::size_t lowest = count;
        std::vector<bool> seen(count);
        for (std::size_t each = 0; each < work.size(); ++each) {
          if (work[each].start_ns <= at && at < work[each].end_ns) {
            lowest = std::min<std::size_t>(lowest, classes[each]);
            seen[classes[each]] = true;
          }
        }
        ++exclusive[lowest * windows.size() + row];
        for (std::size_t each = 0; each < count; ++each) {
          covered[each * windows.size() + row] += seen[each] ? 1 : 0;
        }
      }
    }
    const Divided got = divided(windows, work, classes, count, static_cast<std::size_t>(1 + round % 3));
    ASSERT_EQ(got.exclusive_ns, exclusive) << "round " << round;
    ASSERT_EQ(got.covered_ns, covered) << "round " << round;
  }
}

TEST(DivideTime, OfTablesThatFollowEachOtherEqualsThatOfSortedWork) {
  std::vector<Interval> work;
  std::vector<uint8_t> classes;
  for (uint8_t table = 0; table < 5; ++table) {
    for (int64_t at = table; at < 1'000; at += 3 + table) {
      work.push_back({at, at + 10 - table});
      classes.push_back(table);
    }
  }
  std::vector<std::size_t> order(work.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return work[a].start_ns < work[b].start_ns; });
  std::vector<Interval> sorted;
  std::vector<uint8_t> sorted_classes;
  for (const std::size_t each : order) {
    sorted.push_back(work[each]);
    sorted_classes.push_back(classes[each]);
  }
  const std::vector<Interval> windows = {{0, 333}, {333, 999}};
  const Divided got = divided(windows, work, classes, 5);
  const Divided expected = divided(windows, sorted, sorted_classes, 5);
  EXPECT_EQ(got.exclusive_ns, expected.exclusive_ns);
  EXPECT_EQ(got.covered_ns, expected.covered_ns);
}

TEST(DivideTime, RefusesWhatCannotBeDivided) {
  EXPECT_THROW(divided(kWindow, {{0, 1}}, {0}, 65), base::InvalidArgument);
  EXPECT_THROW(divided(kWindow, {{0, 1}}, {}, 1), base::InvalidArgument);
  EXPECT_THROW(divided(kWindow, {{0, 1}}, {0}, 0), base::InvalidArgument);
  EXPECT_THROW(divided({{10, 20}, {15, 30}}, {{0, 1}}, {0}, 1), base::InvalidArgument);
  EXPECT_THROW(divided({{20, 10}}, {{0, 1}}, {0}, 1), base::InvalidArgument);
  const Values one = {0};
  EXPECT_THROW(divide_time({one, {}}, {}, 1, {}), base::InvalidArgument);
  EXPECT_THROW(divide_time({one, one}, {}, 1, {}), base::InvalidArgument);  // nowhere to put it
}

using Numbers = std::vector<uint32_t>;

Values rows_of(const Numbers& known, const Numbers& wanted) {
  Values rows(wanted.size());
  find_rows(known, wanted, rows);
  return rows;
}

TEST(FindRows, GivesTheFirstOfSeveralAndNoneForWhatIsNotThere) {
  EXPECT_EQ(rows_of({7, 5, 8, 5}, {5, 6, 7, 8, 4, 9, 0, UINT32_MAX}), (Values{1, -1, 0, 2, -1, -1, -1, -1}));
  EXPECT_EQ(rows_of({}, {0, 1}), (Values{-1, -1}));
  EXPECT_EQ(rows_of({3}, {}), Values{});
}

TEST(FindRows, GivesTheSameWhereTheNumbersLieFarApart) {
  EXPECT_EQ(rows_of({0, UINT32_MAX, 5, 0}, {UINT32_MAX, 0, 5, 4}), (Values{1, 0, 2, -1}));
}

TEST(CountBefore, EqualsCountingEachMomentByItself) {
  std::mt19937 random(2);
  const auto below = [&](int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(random); };
  for (int round = 0; round < 300; ++round) {
    Values edges(static_cast<std::size_t>(below(60)));
    Values moments(static_cast<std::size_t>(below(60)));
    std::generate(edges.begin(), edges.end(), [&] { return below(100); });
    std::generate(moments.begin(), moments.end(), [&] { return below(120) - 10; });
    std::sort(edges.begin(), edges.end());
    if (round % 2 == 0) {
      std::sort(moments.begin(), moments.end());
    }
    for (const bool equal : {false, true}) {
      Values expected;
      std::transform(moments.begin(), moments.end(), std::back_inserter(expected), [&](int64_t moment) {
        return std::count_if(edges.begin(), edges.end(),
                             [&](int64_t edge) { return edge < moment || (equal && edge == moment); });
      });
      Values counts(moments.size());
      count_before(edges, moments, equal, counts);
      ASSERT_EQ(counts, expected) << "round " << round;
    }
  }
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
