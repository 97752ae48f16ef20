// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpuscope::store {
namespace {

Kernels::Row make_kernel(int64_t number) {
  return {.start_ns = number * 100,
          .duration_ns = number,
          .correlation = static_cast<uint32_t>(number),
          .variant = 1,
          .region = kNone,
          .track = 2,
          .flags = kNoLaunch};
}

TEST(Schema, ALaunchAndItsKernelTakeAtMost64Bytes) { EXPECT_LE(Kernels::kRowBytes + Apis::kRowBytes, 64U); }

TEST(Table, AppendReturnsTheNewRowsNumber) {
  Kernels kernels;
  EXPECT_EQ(kernels.append(make_kernel(1)), 0U);
  EXPECT_EQ(kernels.append(make_kernel(2)), 1U);
  EXPECT_EQ(kernels.size(), 2U);
}

TEST(Table, GivesBackTheRowThatWasAppended) {
  Kernels kernels;
  kernels.append(make_kernel(1));
  kernels.append(make_kernel(42));
  const Kernels::Row row = kernels[1];
  EXPECT_EQ(row.start_ns, 4200);
  EXPECT_EQ(row.duration_ns, 42);
  EXPECT_EQ(row.correlation, 42U);
  EXPECT_EQ(row.variant, 1U);
  EXPECT_EQ(row.region, kNone);
  EXPECT_EQ(row.track, 2U);
  EXPECT_EQ(row.flags, kNoLaunch);
}

TEST(Table, DropFrontForgetsTheOldestRowsOfEveryColumn) {
  Kernels kernels;
  for (int64_t number = 0; number < 10; ++number) {
    kernels.append(make_kernel(number));
  }
  kernels.drop_front(4);
  kernels.each_column([](const ColumnInfo& info, auto& column) { EXPECT_EQ(column.size(), 6U) << info.name; });
  EXPECT_EQ(kernels[0].duration_ns, 4);
}

TEST(Table, NamesItsColumnsInOrder) {
  std::vector<std::string> names;
  Tracks().each_column([&](const ColumnInfo& info, auto&) { names.emplace_back(info.name); });
  EXPECT_EQ(names, (std::vector<std::string>{"device", "context", "stream"}));
}

TEST(Store, NamesEveryTableOnce) {
  std::vector<std::string> names;
  Store().each_table([&](auto& table) { names.emplace_back(table.kInfo.name); });
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(names.front(), "kernel");
  EXPECT_EQ(names.back(), "info");
}

TEST(Store, StartsWithEveryTableEmpty) {
  const Store store;
  store.each_table([](const auto& table) { EXPECT_EQ(table.size(), 0U) << table.kInfo.name; });
}

TEST(Store, EveryTableTakesARow) {
  Store store;
  store.each_table([](auto& table) {
    table.append({});
    EXPECT_EQ(table.size(), 1U) << table.kInfo.name;
    table.each_column([&](const ColumnInfo& info, auto& column) {
      EXPECT_EQ(column.size(), 1U) << table.kInfo.name << '.' << info.name;
    });
  });
}

TEST(Store, FindsTheInfoItWasGiven) {
  Store store;
  store.set_info("session.mode", "ring");
  store.set_info("process.host", "node7");
  EXPECT_EQ(store.find_info("session.mode"), "ring");
  EXPECT_EQ(store.find_info("process.host"), "node7");
}

TEST(Store, ALaterInfoReplacesTheEarlierOne) {
  Store store;
  store.set_info("audit.kernels", "1");
  store.set_info("audit.kernels", "2");
  EXPECT_EQ(store.find_info("audit.kernels"), "2");
  EXPECT_EQ(store.info.size(), 1U);
}

TEST(Store, ReadsMissingInfoAsEmpty) { EXPECT_EQ(Store().find_info("audit.kernels"), ""); }

}  // namespace
}  // namespace gpuscope::store
