// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/flat_map.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <unordered_map>

namespace gpuscope::base {
namespace {

TEST(FlatMap, FindsNothingInAnEmptyMap) {
  FlatMap<int> map;
  EXPECT_EQ(map.find(0), nullptr);
  EXPECT_EQ(map.find(UINT64_MAX), nullptr);
}

TEST(FlatMap, AgreesWithTheStandardMap) {
  FlatMap<uint32_t> map;
  std::unordered_map<uint64_t, uint32_t> expected;
  std::mt19937_64 random(3);
  for (uint32_t round = 0; round < 50'000; ++round) {
    const uint64_t key = random() % 20'000 << (random() % 2 == 0 ? 0 : 44);
    map.set(key, round);
    expected[key] = round;
  }
  ASSERT_EQ(map.size(), expected.size());
  for (const auto& [key, value] : expected) {
    ASSERT_NE(map.find(key), nullptr);
    EXPECT_EQ(*map.find(key), value);
  }
}

TEST(FlatMap, MakesAValueOnlyForANewKey) {
  FlatMap<int> map;
  int made = 0;
  for (int round = 0; round < 3; ++round) {
    map.find_or_make(42, [&] { return ++made; });
  }
  EXPECT_EQ(made, 1);
}

TEST(FlatMap, HoldsNothingForAKeyWhoseMakingFailed) {
  FlatMap<int> map;
  EXPECT_THROW(map.find_or_make(1, []() -> int { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(map.find(1), nullptr);
  EXPECT_EQ(map.size(), 0U);
}

TEST(FlatMap, IsEmptyAfterClear) {
  FlatMap<int> map;
  for (uint64_t key = 0; key < 1000; ++key) {
    map.set(key, 1);
  }
  map.clear();
  EXPECT_EQ(map.size(), 0U);
  EXPECT_EQ(map.find(7), nullptr);
}

}  // namespace
}  // namespace gpuscope::base
