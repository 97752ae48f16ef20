// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/readers/nesting.h"

#include <vector>

#include "gpuscope/store/values.h"
#include "gtest/gtest.h"

namespace gpuscope::readers {
namespace {

using store::kNone;

TEST(SpanNesting, RegionsAndCallsLieInTheInnermostRegionOfTheirThread) {
  // step [0, 100) with forward [10, 50) in it, another thread's [0, 100), and two calls.
  const std::vector<int64_t> start = {10, 0, 0, 20, 60};
  const std::vector<int64_t> duration = {40, 100, 100, 5, 5};
  const std::vector<uint32_t> thread = {0, 0, 1, 0, 0};
  const std::vector<uint32_t> name = {5, 4, 4};
  const std::vector<uint32_t> kind = {0, 0, 0};
  const Nesting found = nest({start, duration, thread}, name, kind);
  EXPECT_EQ(found.around, (std::vector<uint32_t>{1, kNone, kNone, 0, 1}));
  EXPECT_EQ(found.path, (std::vector<uint32_t>{1, 0, 0}));
  EXPECT_EQ(found.path_parent, (std::vector<uint32_t>{kNone, 0}));
  EXPECT_EQ(found.path_name, (std::vector<uint32_t>{4, 5}));
  EXPECT_EQ(found.path_depth, (std::vector<uint32_t>{0, 1}));
}

TEST(SpanNesting, OfEqualSpansTheLaterLiesInTheEarlierAndOverlapsInPartAreBeside) {
  const std::vector<int64_t> start = {0, 0, 5, 10};
  const std::vector<int64_t> duration = {10, 10, 10, 0};
  const std::vector<uint32_t> thread(4, 0);
  const std::vector<uint32_t> name = {1, 2, 3, 4};
  const std::vector<uint32_t> kind(4, 0);
  const Nesting found = nest({start, duration, thread}, name, kind);
  EXPECT_EQ(found.around, (std::vector<uint32_t>{kNone, 0, kNone, 2}));
}

TEST(SpanNesting, ACallThatOutlastsARegionLeavesItsOtherCallsInIt) {
  // step [0, 100) with forward [50, 90) in it; calls [40, 150), [60, 70) and [95, 99).
  const std::vector<int64_t> start = {0, 50, 40, 60, 95};
  const std::vector<int64_t> duration = {100, 40, 110, 10, 4};
  const std::vector<uint32_t> thread(5, 0);
  const std::vector<uint32_t> name = {1, 2};
  const std::vector<uint32_t> kind = {0, 0};
  const Nesting found = nest({start, duration, thread}, name, kind);
  EXPECT_EQ(found.around, (std::vector<uint32_t>{kNone, 0, kNone, 1, 0}));
}

TEST(RowNumbers, DistinctRowsAreNumberedInOrder) {
  RowNumbers numbers(2);
  const std::vector<int64_t> first = {7, 0, 7, 7};
  const std::vector<int64_t> second = {0, 7, 0, 1};
  EXPECT_EQ(numbers.number({first, second}), (std::vector<uint32_t>{0, 1, 0, 2}));
  EXPECT_EQ(numbers.number({second, first}), (std::vector<uint32_t>{1, 0, 1, 3}));
  EXPECT_EQ(numbers.columns()[0], (std::vector<int64_t>{7, 0, 7, 1}));
}

TEST(RowNumbers, ManyRowsAreKnownAgain) {
  RowNumbers numbers(1);
  std::vector<int64_t> values;
  for (int64_t value = 0; value < 100'000; ++value) {
    values.push_back(value * 4096);
  }
  const std::vector<uint32_t> found = numbers.number({values});
  EXPECT_EQ(numbers.number({values}), found);
  EXPECT_EQ(found.back(), 99'999U);
}

}  // namespace
}  // namespace gpuscope::readers
