// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/totals.h"

#include <gtest/gtest.h>

#include "gpuscope/store/values.h"

namespace gpuscope::attribution {
namespace {

using store::kNone;
using store::Work;

TEST(Totals, AddUpRegions) {
  Totals totals;
  totals.add_region(3, 100, 40);
  totals.add_region(3, 50, 10);
  store::Store store;
  totals.move_into(store);
  ASSERT_EQ(store.region_total.size(), 1U);
  const auto row = store.region_total[0];
  EXPECT_EQ(row.path, 3U);
  EXPECT_EQ(row.count, 2U);
  EXPECT_EQ(row.total_ns, 150);
  EXPECT_EQ(row.child_ns, 50);
  EXPECT_EQ(row.min_ns, 50);
  EXPECT_EQ(row.max_ns, 100);
}

TEST(Totals, KeepKindsNamesAndPathsApart) {
  Totals totals;
  for (const uint32_t path : {0U, 1U, kNone}) {
    for (const uint32_t name : {0U, 1U, UINT32_MAX}) {
      for (const Work kind : {Work::Kernel, Work::Memcpy, Work::Call}) {
        totals.add_work(path, kind, name, 1);
        totals.add_work(path, kind, name, 1, 8);
      }
    }
  }
  store::Store store;
  totals.move_into(store);
  ASSERT_EQ(store.work_total.size(), 27U);
  for (std::size_t row = 0; row < 27; ++row) {
    EXPECT_EQ(store.work_total.count[row], 2U);
    EXPECT_EQ(store.work_total.bytes[row], 8U);
  }
}

TEST(Totals, CountEveryDurationInItsBin) {
  Totals totals;
  totals.add_work(0, Work::Kernel, 1, 5);
  totals.add_work(0, Work::Kernel, 1, 5);
  totals.add_work(0, Work::Kernel, 1, 1'000'000);
  totals.add_region(0, 7, 0);
  store::Store store;
  totals.move_into(store);
  const uint32_t histogram = store.work_total.histogram[0];
  uint64_t fives = 0;
  uint64_t millions = 0;
  for (std::size_t row = 0; row < store.histogram.size(); ++row) {
    if (store.histogram.histogram[row] == histogram) {
      fives += store.histogram.bin[row] == store::histogram_bin(5) ? store.histogram.count[row] : 0;
      millions += store.histogram.bin[row] == store::histogram_bin(1'000'000) ? store.histogram.count[row] : 0;
    }
  }
  EXPECT_EQ(fives, 2U);
  EXPECT_EQ(millions, 1U);
  EXPECT_NE(store.region_total.histogram[0], histogram);
}

TEST(Totals, StartAgainFromNothing) {
  Totals totals;
  totals.add_region(1, 1, 0);
  store::Store first;
  totals.move_into(first);
  EXPECT_EQ(totals.bytes(), 0U);
  store::Store second;
  totals.move_into(second);
  EXPECT_EQ(second.region_total.size(), 0U);
}

TEST(Totals, RefuseOnlyWhatIsNew) {
  Totals totals;
  totals.add_region(1, 10, 0);
  totals.refuse_more(true);
  totals.add_region(1, 10, 0);
  totals.add_region(2, 10, 0);
  totals.add_work(1, Work::Kernel, 1, 1);
  EXPECT_EQ(totals.take_refused(), 2U);
  EXPECT_EQ(totals.take_refused(), 0U);
  store::Store store;
  totals.move_into(store);
  ASSERT_EQ(store.region_total.size(), 1U);
  EXPECT_EQ(store.region_total.count[0], 2U);
}

TEST(Totals, KnowTheirSize) {
  Totals totals;
  std::size_t last = totals.bytes();
  for (uint32_t path = 0; path < 100; ++path) {
    totals.add_region(path, 1'000'000, 0);
    EXPECT_GT(totals.bytes(), last);
    last = totals.bytes();
    totals.add_region(path, 1'000'000, 0);
    EXPECT_EQ(totals.bytes(), last);
  }
}

}  // namespace
}  // namespace gpuscope::attribution
