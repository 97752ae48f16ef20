// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/instances.h"

#include <gtest/gtest.h>

#include <vector>

#include "fakes/rows.h"
#include "gpuscope/analysis/summary.h"
#include "gpuscope/store/values.h"

namespace gpuscope::analysis {
namespace {

using fakes::Rows;
using store::kNone;

/// outer (100 ns) around inner (30 ns), which launches a kernel of 11 ns and takes memory.
struct Nested {
  Rows rows;
  uint32_t outer_path = rows.path("outer");
  uint32_t outer = rows.region(outer_path, 100);
  uint32_t inner = rows.region(rows.path("inner", outer_path), 30, outer);
};

TEST(Instances, OfAnEmptyRecordingAreEmpty) { EXPECT_TRUE(measure_instances(store::Store()).self_cpu_ns.empty()); }

TEST(Instances, TimeIsSelfWhereSpentAndInclusiveAbove) {
  Nested nested;
  nested.rows.call("cuLaunchKernel", 4, nested.inner);
  nested.rows.kernel("a", 11, nested.inner);
  const Instances instances = measure_instances(nested.rows.store);
  EXPECT_EQ(instances.self_cpu_ns, (std::vector<int64_t>{70, 26}));
  EXPECT_EQ(instances.self_device_ns, (std::vector<int64_t>{0, 11}));
  EXPECT_EQ(instances.device_ns, (std::vector<int64_t>{11, 11}));
}

TEST(Instances, TimeBetweenCudaEventsStandsForWhatLiesBelow) {
  Nested nested;
  nested.rows.store.region_gpu.append({nested.outer, nested.outer_path, 50});
  nested.rows.store.region_gpu.append({nested.inner, nested.rows.store.region.path[nested.inner], 20});
  const Instances instances = measure_instances(nested.rows.store);
  EXPECT_EQ(instances.device_ns, (std::vector<int64_t>{50, 20}));
  EXPECT_EQ(instances.self_device_ns, (std::vector<int64_t>{30, 20}));
}

TEST(Instances, MemoryIsToldApartByHostAndDevice) {
  Nested nested;
  auto& allocations = nested.rows.store.allocation;
  allocations.append({1, 64, 0, 0, 0, nested.inner, 0, 0, 0});
  allocations.append({2, -16, 0, 0, 0, nested.outer, 0, 0, 0});
  allocations.append({3, 8, 0, 0, 0, nested.inner, kNone, 0, 0});
  allocations.append({4, 1000, 0, 0, 0, kNone, kNone, 0, 0});
  const Instances instances = measure_instances(nested.rows.store);
  EXPECT_EQ(instances.self_device_bytes, (std::vector<int64_t>{-16, 64}));
  EXPECT_EQ(instances.device_bytes, (std::vector<int64_t>{48, 64}));
  EXPECT_EQ(instances.self_cpu_bytes, (std::vector<int64_t>{0, 8}));
  EXPECT_EQ(instances.cpu_bytes, (std::vector<int64_t>{8, 8}));
}

TEST(Instances, OnlyTheOutermostOfANameAndKindCountsInclusively) {
  Rows rows;
  auto& paths = rows.store.path;
  const uint32_t name = rows.store.strings.intern("add");
  paths.append({kNone, name, 0, 0, 0});
  paths.append({0, name, 1, 1, 0});  // an operator in a region of its name
  paths.append({1, name, 2, 1, 0});
  const uint32_t region = rows.region(0, 9);
  const uint32_t op = rows.region(1, 8, region);
  rows.region(2, 7, op);
  EXPECT_EQ(measure_instances(rows.store).outermost, (std::vector<uint8_t>{1, 1, 0}));
  const Summary summary = summarize(rows.store);
  ASSERT_EQ(summary.regions.totals.size(), 2U);
  EXPECT_EQ(summary.regions.totals[0].region_kind, 0U);
  EXPECT_EQ(summary.regions.totals[1].region_kind, 1U);
  EXPECT_EQ(summary.regions.totals[1].cpu_ns, 8);
}

TEST(Instances, AStartEndRangeTakesNoTimeAndHasNone) {
  Nested nested;
  const uint32_t range = nested.rows.region(nested.rows.path("range"), 500);
  nested.rows.store.region.flags[range] = store::kAsync;
  EXPECT_EQ(measure_instances(nested.rows.store).self_cpu_ns, (std::vector<int64_t>{70, 30, 0}));
  EXPECT_EQ(summarize(nested.rows.store).cpu_ns, 100);
}

TEST(Instances, ACallThatRanInPartsCountsWhereItsPartsHoldMoreThanOneOfItsName) {
  Rows rows;
  const uint32_t fetch = rows.path("fetch");
  const uint32_t first = rows.region(fetch, 10);
  rows.region(rows.path("parse", fetch), 5, first);
  const uint32_t second = rows.region(fetch, 10);
  rows.region(rows.path("fetch", fetch), 5, second);
  rows.store.resumption.append({10, first, first});
  rows.store.resumption.append({0, second, first});
  EXPECT_EQ(measure_instances(rows.store).counted_as, (std::vector<uint32_t>{0, 1, 0, 3}));
}

TEST(Instances, ACallThatOnlyHoldsOneOfItsNameCountsOnceInHoweverManyPartsBothRan) {
  Rows rows;
  const uint32_t outer = rows.path("fetch");
  const uint32_t inner = rows.path("fetch", outer);
  for (const int64_t suspended_ns : {10, 0}) {
    const uint32_t part = rows.region(outer, 10);
    rows.region(inner, 5, part);
    rows.store.resumption.append({suspended_ns, part, 0});
    rows.store.resumption.append({suspended_ns, part + 1, 1});
  }
  EXPECT_EQ(measure_instances(rows.store).counted_as, (std::vector<uint32_t>{0, 0, 0, 0}));
}

/// left [0, 20) and goes_on [10, 40), which was opened in it; both in around [0, 50).
struct Crossing {
  Rows rows;
  uint32_t around_path = rows.path("around");
  uint32_t left_path = rows.path("left", around_path);
  uint32_t goes_on_path = rows.path("goes on", left_path);
  uint32_t around = rows.region(around_path, 50);
  uint32_t left = rows.region(left_path, 20, around);
  uint32_t goes_on = rows.region(goes_on_path, 30, left);

  Crossing() { rows.store.region.start_ns[goes_on] = 10; }
  void launch(int64_t at_ns, uint32_t correlation) {
    rows.store.api.start_ns[rows.call("cuLaunchKernel", 1, goes_on)] = at_ns;
    rows.store.api.correlation[rows.store.api.size() - 1] = correlation;
    const uint32_t kernel = rows.kernel("k", 100 * correlation, goes_on);
    rows.store.kernel.correlation[kernel] = correlation;
  }
};

TEST(Instances, ARegionThatOutlastsTheOneAroundTakesTheTimeThatBothHaveFromIt) {
  Crossing crossing;
  EXPECT_EQ(measure_instances(crossing.rows.store).self_cpu_ns, (std::vector<int64_t>{10, 10, 30}));
}

TEST(Instances, TasksInARegionThatOverlapTakeTheirTimeFromItOnce) {
  Crossing crossing;
  auto& regions = crossing.rows.store.region;
  regions.parent[crossing.goes_on] = crossing.around;
  regions.path[crossing.goes_on] = crossing.rows.path("goes on", crossing.around_path);
  EXPECT_EQ(measure_instances(crossing.rows.store).self_cpu_ns, (std::vector<int64_t>{10, 20, 30}));
}

TEST(Instances, SpansOfAFileThatOverlapAreOpenedInEachOther) {
  Crossing crossing;
  auto& regions = crossing.rows.store.region;
  regions.parent[crossing.goes_on] = crossing.around;
  regions.path[crossing.goes_on] = crossing.rows.path("goes on", crossing.around_path);
  crossing.rows.store.set_info(store::kNestedByTime, "1");
  EXPECT_EQ(measure_instances(crossing.rows.store).self_cpu_ns, (std::vector<int64_t>{10, 10, 30}));
}

TEST(Instances, APartOfACallHasNoTimeOfWhatItsLastPartLeftOpen) {
  Rows rows;
  const uint32_t call = rows.path("call");
  const uint32_t first = rows.region(call, 10);                             // [0, 10)
  const uint32_t block = rows.region(rows.path("block", call), 30, first);  // [5, 35)
  const uint32_t second = rows.region(call, 20);                            // [30, 50)
  rows.store.region.start_ns[block] = 5;
  rows.store.region.start_ns[second] = 30;
  rows.store.resumption.append({20, first, first});
  rows.store.resumption.append({0, second, first});
  EXPECT_EQ(measure_instances(rows.store).self_cpu_ns, (std::vector<int64_t>{5, 30, 15}));
}

TEST(Instances, WorkLaunchedAfterARegionWasLeftIsNotIts) {
  Crossing crossing;
  crossing.launch(15, 1);
  crossing.launch(25, 2);
  const Instances instances = measure_instances(crossing.rows.store);
  EXPECT_EQ(instances.device_ns, (std::vector<int64_t>{300, 100, 300}));
  EXPECT_EQ(instances.late_device_ns, (std::vector<int64_t>{0, 200, 0}));
}

TEST(Instances, WorkLaunchedAfterARegionWasLeftIsOnAPathWithoutIt) {
  Crossing crossing;
  crossing.rows.path("goes on", crossing.around_path);  // as a recording has it
  crossing.launch(15, 1);
  crossing.launch(25, 2);
  const Summary summary = summarize(crossing.rows.store);
  std::vector<int64_t> device_ns;
  for (const PathStat& path : summary.paths) {
    device_ns.push_back(path.device_ns);
  }
  EXPECT_EQ(device_ns, (std::vector<int64_t>{300, 100, 100, 200}));
}

TEST(Instances, WorkOfATaskThatBeganLaterIsOfWhatCreatedIt) {
  Crossing crossing;
  crossing.rows.store.region.start_ns[crossing.goes_on] = 20;
  crossing.launch(25, 2);
  EXPECT_EQ(measure_instances(crossing.rows.store).device_ns, (std::vector<int64_t>{200, 200, 200}));
}

TEST(Instances, MemoryTakenAfterARegionWasLeftIsNotIts) {
  Crossing crossing;
  crossing.rows.store.allocation.append({25, 64, 0, 0, 0, crossing.goes_on, 0, 0, 0});
  EXPECT_EQ(measure_instances(crossing.rows.store).device_bytes, (std::vector<int64_t>{64, 0, 64}));
}

TEST(Instances, NodesOfALoopAreOutermost) {
  const std::vector<uint32_t> parents = {1, 0, kNone, 2};
  const std::vector<uint32_t> groups = {0, 0, 0, 0};
  EXPECT_EQ(find_outermost(parents, groups), (std::vector<bool>{true, true, true, false}));
}

TEST(Instances, RegionsMayStandBeforeTheirParents) {
  Rows rows;
  const uint32_t outer = rows.path("outer");
  const uint32_t inner = rows.region(rows.path("inner", outer), 30, 1);
  rows.region(outer, 100);
  rows.kernel("a", 7, inner);
  EXPECT_EQ(measure_instances(rows.store).device_ns, (std::vector<int64_t>{7, 7}));
}

}  // namespace
}  // namespace gpuscope::analysis
