// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/string_table.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace gpuscope::base {
namespace {

using namespace std::string_view_literals;

TEST(StringTable, BeginsWithTheEmptyStringAsZero) {
  StringTable table;
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table.intern(""), 0U);
  EXPECT_EQ(table[0], "");
}

TEST(StringTable, NumbersStringsInOrderOfFirstSight) {
  StringTable table;
  EXPECT_EQ(table.intern("forward"), 1U);
  EXPECT_EQ(table.intern("backward"), 2U);
  EXPECT_EQ(table.intern("forward"), 1U);
  EXPECT_EQ(table.size(), 3U);
}

TEST(StringTable, CopiesTheTextItIsGiven) {
  StringTable table;
  std::string name = "a name long enough to live on the heap";
  const uint32_t id = table.intern(name);
  name.assign(name.size(), 'x');
  EXPECT_EQ(table[id], "a name long enough to live on the heap");
}

TEST(StringTable, TellsTextsApartBeyondAnEmbeddedZero) {
  StringTable table;
  const uint32_t first = table.intern("a\0b"sv);
  const uint32_t second = table.intern("a\0c"sv);
  EXPECT_NE(first, second);
  EXPECT_EQ(table[first], "a\0b"sv);
}

TEST(StringTable, KeepsBytesOfAnyLengthAndScript) {
  StringTable table;
  for (const std::string& text : {std::string(1 << 20, 'k'), std::string("фаза 前向 🚀"), std::string("\xff\xfe")}) {
    EXPECT_EQ(table[table.intern(text)], text);
  }
}

TEST(StringTable, FindsEveryStringAfterGrowing) {
  StringTable table;
  constexpr uint32_t kStrings = 20'000;
  for (uint32_t number = 1; number <= kStrings; ++number) {
    ASSERT_EQ(table.intern("kernel_" + std::to_string(number)), number);
  }
  for (uint32_t number = 1; number <= kStrings; ++number) {
    ASSERT_EQ(table.intern("kernel_" + std::to_string(number)), number);
    ASSERT_EQ(table[number], "kernel_" + std::to_string(number));
  }
  EXPECT_EQ(table.size(), kStrings + 1);
}

TEST(StringTable, ViewsStayValidWhileItGrows) {
  StringTable table;
  const std::string_view early = table[table.intern("short")];
  for (int number = 0; number < 10'000; ++number) {
    table.intern(std::to_string(number));
  }
  EXPECT_EQ(early, "short");
}

TEST(StringTable, ReadsUnknownIdsAsEmpty) {
  const StringTable table;
  EXPECT_EQ(table[1], "");
  EXPECT_EQ(table[UINT32_MAX], "");
}

}  // namespace
}  // namespace gpuscope::base
