// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/column.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace gpuscope::store {
namespace {

template <class T>
std::vector<T> values_of(const Column<T>& column) {
  return {column.begin(), column.end()};
}

Column<int> make_column(std::initializer_list<int> values) {
  Column<int> column;
  for (const int value : values) {
    column.push_back(value);
  }
  return column;
}

TEST(Column, StartsEmptyAndOwnsNothing) {
  const Column<int64_t> column;
  EXPECT_EQ(column.size(), 0U);
  EXPECT_EQ(column.data(), nullptr);
  EXPECT_TRUE(column.span().empty());
}

TEST(Column, KeepsEveryValueWhileItGrows) {
  Column<uint32_t> column;
  for (uint32_t value = 0; value < 100'000; ++value) {
    column.push_back(value * 7);
  }
  ASSERT_EQ(column.size(), 100'000U);
  for (uint32_t row = 0; row < 100'000; ++row) {
    ASSERT_EQ(column[row], row * 7);
  }
}

TEST(Column, ReserveChangesNoValueAndNoSize) {
  Column<int> column = make_column({1, 2, 3});
  column.reserve(100'000);
  EXPECT_EQ(values_of(column), (std::vector{1, 2, 3}));
}

TEST(Column, GrowsInPlaceWithinWhatWasReserved) {
  Column<int> column;
  column.reserve(1000);
  const int* const before = column.data();
  for (int value = 0; value < 1000; ++value) {
    column.push_back(value);
  }
  EXPECT_EQ(column.data(), before);
}

TEST(Column, AppendsNothingToAnEmptyColumn) {
  Column<int> column;
  column.append({});
  EXPECT_EQ(column.size(), 0U);
}

TEST(Column, DropsNoMoreThanItHas) {
  Column<int> column = make_column({1, 2, 3});
  column.drop_front(4);
  EXPECT_EQ(column.size(), 0U);
}

TEST(Column, TruncateNeverGrows) {
  Column<int> column = make_column({1, 2, 3});
  column.truncate(10);
  EXPECT_EQ(values_of(column), (std::vector{1, 2, 3}));
  column.truncate(1);
  EXPECT_EQ(values_of(column), (std::vector{1}));
}

TEST(Column, MovingLeavesAnEmptyColumn) {
  Column<int> from = make_column({1, 2});
  Column<int> to(std::move(from));
  EXPECT_EQ(values_of(to), (std::vector{1, 2}));
  EXPECT_EQ(from.size(), 0U);  // NOLINT(bugprone-use-after-move): what a move leaves is the matter here
  from.push_back(9);
  EXPECT_EQ(values_of(from), (std::vector{9}));
}

TEST(Column, HandsItsMemoryOverOnMoveAssignment) {
  Column<int> from = make_column({1, 2});
  const int* const memory = from.data();
  Column<int> to = make_column({5});
  to = std::move(from);
  EXPECT_EQ(to.data(), memory);
}

// Any order of operations leaves what a vector would hold.
TEST(Column, BehavesAsAVectorUnderRandomOperations) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    Column<uint16_t> column;
    std::vector<uint16_t> expected;
    for (int step = 0; step < 200; ++step) {
      const auto amount = static_cast<std::size_t>(random() % 300);
      switch (random() % 5) {
        case 0:
          column.push_back(static_cast<uint16_t>(amount));
          expected.push_back(static_cast<uint16_t>(amount));
          break;
        case 1: {
          std::vector<uint16_t> more(amount);
          std::generate(more.begin(), more.end(), [&] { return static_cast<uint16_t>(random()); });
          column.append(more);
          expected.insert(expected.end(), more.begin(), more.end());
          break;
        }
        case 2:
          column.drop_front(amount);
          expected.erase(expected.begin(),
                         expected.begin() + static_cast<std::ptrdiff_t>(std::min(amount, expected.size())));
          break;
        case 3:
          column.truncate(amount * 4);
          expected.resize(std::min(expected.size(), amount * 4));
          break;
        default:
          column.reserve(amount * 2);
      }
      ASSERT_EQ(values_of(column), expected) << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace gpuscope::store
