// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/summary.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>

#include "fakes/rows.h"
#include "gpuscope/store/values.h"

namespace gpuscope::analysis {
namespace {

using fakes::Rows;
using store::kNone;

const NameStat& find(const Summary& summary, Kind kind, const std::string& name) {
  for (const std::vector<NameStat>* totals : {&summary.regions.totals, &summary.totals}) {
    for (const NameStat& total : *totals) {
      if (total.kind == kind && summary.names[total.name] == name) {
        return total;
      }
    }
  }
  throw std::out_of_range("no row named " + name);
}

TEST(Summary, OfAnEmptyRecordingIsEmpty) {
  const Summary summary = summarize(store::Store());
  EXPECT_TRUE(summary.totals.empty());
  EXPECT_TRUE(summary.regions.totals.empty());
  EXPECT_FALSE(summary.has_device);
}

TEST(Summary, SelfTimeLeavesOutRegionsAndCallsDirectlyInside) {
  Rows rows;
  const uint32_t outer = rows.path("outer");
  const uint32_t step = rows.region(outer, 100);
  const uint32_t inner = rows.region(rows.path("inner", outer), 30, step);
  rows.call("cuLaunchKernel", 5, step);
  rows.call("cuLaunchKernel", 4, inner);
  const Summary summary = summarize(rows.store);
  EXPECT_EQ(find(summary, Kind::Region, "outer").self_cpu_ns, 65);
  EXPECT_EQ(find(summary, Kind::Region, "inner").self_cpu_ns, 26);
}

TEST(Summary, SelfTimesAddUpToTheOutermostRegions) {
  Rows rows;
  const uint32_t outer = rows.path("outer");
  const uint32_t step = rows.region(outer, 100);
  rows.region(rows.path("inner", outer), 30, step);
  rows.call("cuLaunchKernel", 5, step);
  EXPECT_EQ(summarize(rows.store).cpu_ns, 100);
}

TEST(Summary, SelfTimeKeepsWhatOtherThreadsDidForTheRegion) {
  Rows rows;
  const uint32_t backward = rows.region(rows.path("backward"), 100);
  rows.call("cuLaunchKernel", 60, backward, /*thread=*/1);
  EXPECT_EQ(find(summarize(rows.store), Kind::Region, "backward").self_cpu_ns, 100);
}

TEST(Summary, SelfTimeOfAnInstanceIsNeverNegative) {
  Rows rows;
  const uint32_t path = rows.path("step");
  rows.call("cuLaunchKernel", 50, rows.region(path, 10));
  rows.region(path, 7);
  EXPECT_EQ(find(summarize(rows.store), Kind::Region, "step").self_cpu_ns, 7);
}

TEST(Summary, DeviceTimeIsSelfWhereLaunchedAndInclusiveAbove) {
  Rows rows;
  const uint32_t outer = rows.path("outer");
  const uint32_t step = rows.region(outer, 100);
  const uint32_t inner = rows.region(rows.path("inner", outer), 30, step);
  rows.kernel("a", 7, step);
  rows.kernel("b", 11, inner);
  rows.copy(64, 13, inner);
  const Summary summary = summarize(rows.store);
  EXPECT_EQ(summary.paths[outer].self_device_ns, 7);
  EXPECT_EQ(summary.paths[outer].device_ns, 31);
  EXPECT_EQ(find(summary, Kind::Region, "inner").device_ns, 24);
  EXPECT_EQ(summary.device_ns, 31);
}

TEST(Summary, WorkOutsideEveryRegionCountsToTheWhole) {
  Rows rows;
  rows.kernel("a", 7);
  const Summary summary = summarize(rows.store);
  EXPECT_EQ(summary.device_ns, 7);
  EXPECT_EQ(summary.work.at(0).path, kNone);
}

TEST(Summary, RecursionCountsOnlyTheOutermostInstance) {
  Rows rows;
  const uint32_t outer = rows.path("walk");
  const uint32_t between = rows.path("visit", outer);
  const uint32_t inner = rows.path("walk", between);
  const uint32_t first = rows.region(outer, 100);
  const uint32_t second = rows.region(inner, 40, rows.region(between, 60, first));
  rows.kernel("k", 9, second);
  const NameStat walk = find(summarize(rows.store), Kind::Region, "walk");
  EXPECT_EQ(walk.durations.count, 2U);
  EXPECT_EQ(walk.cpu_ns, 100);
  EXPECT_EQ(walk.self_cpu_ns, 80);
  EXPECT_EQ(walk.device_ns, 9);
}

TEST(Summary, OneNameOnTwoPathsAddsUp) {
  Rows rows;
  const uint32_t train = rows.path("train");
  const uint32_t test = rows.path("test");
  rows.region(rows.path("forward", train), 10);
  rows.region(rows.path("forward", test), 30);
  const NameStat forward = find(summarize(rows.store), Kind::Region, "forward");
  EXPECT_EQ(forward.cpu_ns, 40);
  EXPECT_EQ(forward.durations.p50_ns, 10);
  EXPECT_EQ(forward.durations.max_ns, 30);
}

TEST(Summary, WorkIsToldApartByPathAndName) {
  Rows rows;
  const uint32_t step = rows.region(rows.path("step"), 100);
  rows.kernel("a", 1, step);
  rows.kernel("a", 3, step);
  rows.kernel("a", 5);
  rows.kernel("b", 7, step);
  const Summary summary = summarize(rows.store);
  std::map<std::pair<std::string, uint32_t>, int64_t> totals;
  for (const WorkStat& work : summary.work) {
    totals[{summary.names[work.name], work.path}] = work.durations.total_ns;
  }
  EXPECT_EQ(totals,
            (std::map<std::pair<std::string, uint32_t>, int64_t>{{{"a", 0}, 4}, {{"a", kNone}, 5}, {{"b", 0}, 7}}));
  EXPECT_EQ(find(summary, Kind::Kernel, "a").durations.count, 3U);
}

TEST(Summary, QuantilesOfANameReachOverItsPaths) {
  Rows rows;
  for (const char* name : {"x", "y"}) {
    const uint32_t region = rows.region(rows.path(name), 1);
    for (int64_t index = 0; index < 50; ++index) {
      rows.kernel("k", name[0] == 'x' ? index + 1 : index + 51, region);
    }
  }
  const NameStat kernel = find(summarize(rows.store), Kind::Kernel, "k");
  EXPECT_EQ(kernel.durations.p50_ns, 50);
  EXPECT_EQ(kernel.durations.p95_ns, 95);
  EXPECT_EQ(kernel.durations.p99_ns, 99);
}

TEST(Summary, KeepsManyGroupsApart) {
  Rows rows;
  for (int64_t index = 0; index < 5000; ++index) {
    rows.kernel(std::to_string(index % 2500), index);
  }
  const Summary summary = summarize(rows.store);
  EXPECT_EQ(summary.totals.size(), 2500U);
  EXPECT_EQ(find(summary, Kind::Kernel, "2499").durations.total_ns, 2499 + 4999);
}

TEST(Summary, NamesAreThoseUsersKnow) {
  Rows rows;
  rows.kernel("_Z6kernelIfEvPT_i", 1);
  rows.copy(4096, 1);
  rows.store.memset.append({.duration_ns = 1, .bytes = 16, .region = kNone});
  rows.store.sync.append({.duration_ns = 1, .region = kNone, .kind = static_cast<uint16_t>(store::SyncKind::Stream)});
  rows.store.graph_launch.append({.duration_ns = 1, .graph = 3, .region = kNone});
  const Summary summary = summarize(rows.store);
  EXPECT_NO_THROW(find(summary, Kind::Kernel, "void kernel<float>(float*, int)"));
  EXPECT_EQ(find(summary, Kind::Memcpy, "Memcpy HtoD (Pageable -> Device)").bytes, 4096U);
  EXPECT_EQ(find(summary, Kind::Memset, "Memset (Device)").bytes, 16U);
  EXPECT_NO_THROW(find(summary, Kind::Sync, "Stream Sync"));
  EXPECT_EQ(find(summary, Kind::GraphLaunch, "CUDA graph 3").device_ns, 1);
}

TEST(Summary, TimeOfSynchronizationsIsNotCountedBesideTheirCalls) {
  Rows rows;
  rows.call("cuStreamSynchronize", 9);
  rows.store.sync.append({.duration_ns = 8, .region = kNone, .kind = 3});
  EXPECT_EQ(summarize(rows.store).cpu_ns, 9);
}

TEST(Summary, GraphNodesAreToldApartByTheirCapture) {
  Rows rows;
  const uint32_t capture = rows.path("capture");
  const uint32_t replay = rows.region(rows.path("replay"), 10);
  const uint32_t nodes[] = {rows.kernel("k", 1, replay), rows.kernel("k", 2, replay)};
  rows.kernel("k", 4, replay);
  rows.store.graph_node.append({.event = nodes[0], .path = capture, .kind = 1});
  rows.store.graph_node.append({.event = nodes[1], .path = kNone, .kind = 1});
  std::map<uint32_t, int64_t> by_capture;
  for (const WorkStat& work : summarize(rows.store).work) {
    by_capture[work.capture] = work.durations.total_ns;
  }
  EXPECT_EQ(by_capture, (std::map<uint32_t, int64_t>{{capture, 1}, {kUnknownCapture, 2}, {kNone, 4}}));
}

TEST(Summary, RegionsMeasuredByEventsHaveTheirDeviceTime) {
  Rows rows;
  const uint32_t outer = rows.path("outer");
  const uint32_t inner = rows.path("inner", outer);
  const uint32_t step = rows.region(outer, 100);
  rows.store.region_gpu.append({step, outer, 80});
  rows.store.region_gpu.append({rows.region(inner, 30, step), inner, 20});
  const Summary summary = summarize(rows.store);
  EXPECT_EQ(summary.paths[outer].device_ns, 80);
  EXPECT_EQ(summary.paths[outer].self_device_ns, 60);
  EXPECT_EQ(find(summary, Kind::Region, "inner").device_ns, 20);
  EXPECT_EQ(summary.device_ns, 80);
  EXPECT_TRUE(summary.has_device);
}

TEST(Summary, ReadsAggregateRows) {
  Rows rows;
  const uint32_t outer = rows.path("outer");
  const uint32_t inner = rows.path("inner", outer);
  store::Store& store = rows.store;
  store.region_total.append({outer, 0, 4, 400, 100, 90, 110, 0});
  store.region_total.append({inner, kNone, 4, 100, 0, 25, 25, 0});
  store.histogram.append({0, store::histogram_bin(90), 3});
  store.histogram.append({0, store::histogram_bin(110), 1});
  store.histogram.append({1, store::histogram_bin(7), 8});
  const uint32_t name = store.strings.intern("_Z1fv");
  store.work_total.append({inner, name, 1, 1, 8, 0, 56, 7, 7});
  store.work_total.append({outer, name, kNone, 1, 2, 0, 20, 10, 10});
  const Summary summary = summarize(store);
  EXPECT_EQ(summary.paths[outer].self_cpu_ns, 300);
  EXPECT_NEAR(static_cast<double>(summary.paths[outer].cpu.p50_ns), 90, 3);
  EXPECT_EQ(summary.paths[outer].device_ns, 76);
  EXPECT_EQ(find(summary, Kind::Region, "outer").cpu_ns, 400);
  const NameStat kernel = find(summary, Kind::Kernel, "f()");
  EXPECT_EQ(kernel.durations.count, 10U);
  EXPECT_EQ(kernel.durations.min_ns, 7);
  EXPECT_EQ(kernel.durations.max_ns, 10);
  EXPECT_EQ(kernel.durations.p50_ns, 7);
  EXPECT_EQ(summary.device_ns, 76);
}

TEST(Summary, SurvivesRowsThatPointNowhere) {
  Rows rows;
  store::Store& store = rows.store;
  const uint32_t loop = rows.path("loop", 0);  // its own parent
  rows.region(loop, 10, 0);
  rows.region(77, 10, 99);
  store.kernel.append({.duration_ns = 5, .variant = 1234, .region = 1234});
  store.api.append({.duration_ns = 5, .region = 1234, .call = 999, .thread = 999});
  store.graph_node.append({.event = 1234, .path = 1234, .kind = 1});
  store.region_total.append({55, 55, 1, 1, 1, 1, 1, 0});
  store.work_total.append({55, 55, 55, 55, 1, 1, 1, 1, 1});
  store.region_gpu.append({55, 55, 1});
  store.memcpy.append({.duration_ns = 1, .kind = 200, .source = 200, .destination = 200});
  EXPECT_EQ(summarize(store).paths[loop].cpu.count, 1U);
}

TEST(Summary, FollowsDeepRecursion) {
  Rows rows;
  uint32_t path = kNone;
  uint32_t region = kNone;
  for (int64_t depth = 0; depth < 100'000; ++depth) {
    path = rows.path("f", path);
    region = rows.region(path, 200'000 - depth, region);
  }
  const NameStat total = find(summarize(rows.store), Kind::Region, "f");
  EXPECT_EQ(total.cpu_ns, 200'000);
  EXPECT_EQ(total.self_cpu_ns, 200'000);
}

}  // namespace
}  // namespace gpuscope::analysis
