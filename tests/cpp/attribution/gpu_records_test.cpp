// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/gpu_records.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "fakes/cupti_records.h"
#include "fakes/dictionaries.h"

namespace gpuscope::attribution {
namespace {

using Awaits = Correlations::Awaits;
using fakes::Record;
using store::kNone;
using store::Work;

// The window is [1000, 2000). Launches 1 and 2 come from the regions of rows 4 and 5, launch 3 from outside every
// region, launch 9 from outside the window.
class GpuRecord : public testing::Test {
 protected:
  void set_up(const Settings& settings) {
    state_ = std::make_unique<DecodeState>(settings);
    records_ = std::make_unique<GpuRecords>(*state_);
    state_->window.open_ns = 1000;
    state_->window.close_ns = 2000;
    state_->correlations.set(1, Correlations::encode(4), Awaits::Kernel);
    state_->correlations.set(2, Correlations::encode(5), Awaits::Copy);
    state_->correlations.set(3, Correlations::kNowhere, Awaits::Kernel);
    state_->correlations.set(4, Correlations::encode(4), Awaits::Graph);
    state_->correlations.set(5, Correlations::encode(5), Awaits::Graph);
    state_->correlations.set(9, Correlations::kOutside, Awaits::Nothing);
  }
  GpuRecord() { set_up({}); }

  void take(const Record& record) { records_->take(record.kind(), record.bytes); }
  store::Store& rows() { return *state_->store; }
  Counters& counters() { return state_->counters; }
  std::string text(uint32_t string) { return std::string(state_->dictionaries.text(string)); }

  std::unique_ptr<DecodeState> state_;
  std::unique_ptr<GpuRecords> records_;
};

TEST_F(GpuRecord, OfAKernelLiesInTheRegionThatLaunchedIt) {
  take(fakes::kernel_record({.correlation = 1, .start = 1100, .end = 1150}, "gemm", 32));
  ASSERT_EQ(rows().kernel.size(), 1U);
  const auto row = rows().kernel[0];
  EXPECT_EQ(row.start_ns, 1100);
  EXPECT_EQ(row.duration_ns, 50);
  EXPECT_EQ(row.correlation, 1U);
  EXPECT_EQ(row.region, 4U);
  EXPECT_EQ(row.flags, 0U);
  EXPECT_EQ(counters().matched, 1U);
  EXPECT_EQ(counters().kernels, 1U);
}

TEST_F(GpuRecord, OfAKernelHasItsConfiguration) {
  take(fakes::kernel_record({.correlation = 1, .start = 1100, .end = 1150}, "gemm", 32));
  const store::Store store = fakes::copy_of(state_->dictionaries);
  EXPECT_EQ(text(store.variant.name[0]), "gemm");
  EXPECT_EQ(store.variant.grid_x[0], 32U);
  EXPECT_EQ(store.variant.block_x[0], 1U);
}

TEST_F(GpuRecord, NamesItsDeviceContextAndStream) {
  take(fakes::kernel_record({.correlation = 1, .start = 1100, .end = 1150, .device = 3, .context = 8, .stream = 21}));
  const store::Store store = fakes::copy_of(state_->dictionaries);
  const auto track = store.track[rows().kernel.track[0]];
  EXPECT_EQ(track.device, 3U);
  EXPECT_EQ(track.context, 8U);
  EXPECT_EQ(track.stream, 21U);
}

TEST_F(GpuRecord, OfAGpusOwnClockStandsOnTheProcesses) {
  GpuClocks clocks;
  clocks.add(3, {.device_ns = 71'000, .host_ns = 1'100});
  records_->set_gpu_clocks(&clocks);
  take(fakes::kernel_record({.correlation = 1, .start = 71'010, .end = 71'060, .device = 3}));
  EXPECT_EQ(rows().kernel.start_ns[0], 1110);
  EXPECT_EQ(rows().kernel.duration_ns[0], 50);
}

TEST_F(GpuRecord, OfAGpuWhoseClockIsNotKnownHasNoTime) {
  GpuClocks clocks;
  clocks.add(3, {.device_ns = 71'000, .host_ns = 1'100});
  records_->set_gpu_clocks(&clocks);
  take(fakes::kernel_record({.correlation = 1, .start = 71'010, .end = 71'060, .device = 0}));
  EXPECT_EQ(rows().kernel.start_ns[0], 0);
  EXPECT_EQ(rows().kernel.duration_ns[0], 50);
  EXPECT_EQ(counters().zero_time, 1U);
}

TEST_F(GpuRecord, OfAKernelThatReadAClockIsNoWorkOfTheProgram) {
  GpuClocks clocks;
  clocks.add(0, {.device_ns = 71'000, .host_ns = 1'100});
  records_->set_gpu_clocks(&clocks);
  take(fakes::kernel_record({.correlation = 70, .start = 70'990, .end = 71'020}, "gpuscope_clock"));
  take(fakes::kernel_record({.correlation = 71, .start = 72'990, .end = 73'020}, "gpuscope_clock"));
  EXPECT_EQ(rows().kernel.size(), 0U);
  EXPECT_EQ(counters().gpu_records + counters().unattributed, 0U);
  EXPECT_EQ(records_->clock_kernels().seen, 2U);
  EXPECT_EQ(records_->clock_kernels().agree, 1U);
}

TEST_F(GpuRecord, OfALaunchOutsideEveryRegionHasNone) {
  take(fakes::kernel_record({.correlation = 3, .start = 1100, .end = 1150}));
  EXPECT_EQ(rows().kernel.region[0], kNone);
  EXPECT_EQ(rows().kernel.flags[0], 0U);
}

TEST_F(GpuRecord, OfALaunchOutsideTheWindowIsLeftOut) {
  take(fakes::kernel_record({.correlation = 9, .start = 1100, .end = 1150}));
  EXPECT_EQ(rows().kernel.size(), 0U);
  EXPECT_EQ(counters().gpu_records, 0U);
}

TEST_F(GpuRecord, ThatRunsAfterTheWindowBelongsToItsLaunch) {
  take(fakes::kernel_record({.correlation = 1, .start = 2100, .end = 2150}));
  EXPECT_EQ(rows().kernel.size(), 1U);
}

TEST_F(GpuRecord, OfAnUnknownLaunchIsKeptIfItRanInsideTheWindow) {
  take(fakes::kernel_record({.correlation = 77, .start = 1100, .end = 1150}));
  take(fakes::kernel_record({.correlation = 78, .start = 2100, .end = 2150}));
  ASSERT_EQ(rows().kernel.size(), 1U);
  EXPECT_EQ(rows().kernel.flags[0], store::kNoLaunch);
  EXPECT_EQ(rows().kernel.region[0], kNone);
  EXPECT_EQ(counters().unattributed, 1U);
  EXPECT_EQ(counters().matched, 0U);
}

TEST_F(GpuRecord, WithoutTimestampsSaysSo) {
  take(fakes::kernel_record({.correlation = 1}));
  EXPECT_EQ(rows().kernel.flags[0], store::kZeroTime);
  EXPECT_EQ(rows().kernel.duration_ns[0], 0);
  EXPECT_EQ(counters().zero_time, 1U);
  EXPECT_EQ(counters().matched, 1U);
}

TEST_F(GpuRecord, ThatEndsBeforeItBeginsSaysSo) {
  take(fakes::kernel_record({.correlation = 1, .start = 1100, .end = 1050}));
  EXPECT_EQ(rows().kernel.flags[0], store::kBackwardTime);
  EXPECT_EQ(rows().kernel.duration_ns[0], 0);
  EXPECT_EQ(counters().backward_time, 1U);
}

TEST_F(GpuRecord, ThatStillRunsSaysSo) {
  take(fakes::kernel_record({.correlation = 1, .start = 1100}));
  EXPECT_EQ(rows().kernel.flags[0], store::kIncomplete);
  EXPECT_EQ(counters().incomplete, 1U);
}

TEST_F(GpuRecord, IsReadOnTheClockThatCuptiUses) {
  records_->set_clock([](uint64_t at) { return static_cast<int64_t>(at) * 2; });
  take(fakes::kernel_record({.correlation = 1, .start = 600, .end = 650}));
  EXPECT_EQ(rows().kernel.start_ns[0], 1200);
  EXPECT_EQ(rows().kernel.duration_ns[0], 100);
}

TEST_F(GpuRecord, SecondKernelOfALaunchIsNotMatchedTwice) {
  take(fakes::kernel_record({.correlation = 1, .start = 1100, .end = 1150}));
  take(fakes::kernel_record({.correlation = 1, .start = 1200, .end = 1250}));
  EXPECT_EQ(rows().kernel.size(), 2U);
  EXPECT_EQ(counters().matched, 1U);
}

TEST_F(GpuRecord, OfACopyHasItsBytesAndKinds) {
  take(fakes::memcpy_record({.correlation = 2, .start = 1100, .end = 1150}, 4096));
  const auto row = rows().memcpy[0];
  EXPECT_EQ(row.bytes, 4096U);
  EXPECT_EQ(row.kind, 1U);
  EXPECT_EQ(row.source, 1U);
  EXPECT_EQ(row.destination, 3U);
  EXPECT_EQ(row.peer, 255U);
  EXPECT_EQ(row.region, 5U);
  EXPECT_EQ(counters().matched_copies, 1U);
  EXPECT_EQ(counters().matched, 0U);
}

TEST_F(GpuRecord, OfAPeerCopyNamesTheOtherDevice) {
  take(fakes::peer_record({.correlation = 2, .start = 1100, .end = 1150, .device = 1}, 64, 1, 3));
  take(fakes::peer_record({.correlation = 2, .start = 1100, .end = 1150, .device = 3}, 64, 1, 3));
  ASSERT_EQ(rows().memcpy.size(), 2U);
  EXPECT_EQ(rows().memcpy.peer[0], 3U);
  EXPECT_EQ(rows().memcpy.peer[1], 1U);
}

TEST_F(GpuRecord, OfAFillHasItsValue) {
  take(fakes::memset_record({.correlation = 2, .start = 1100, .end = 1150}, 4096, 0xAB));
  EXPECT_EQ(rows().memset.value[0], 0xABU);
  EXPECT_EQ(rows().memset.bytes[0], 4096U);
}

TEST_F(GpuRecord, OfASynchronizationLiesInItsRegion) {
  take(fakes::sync_record({.correlation = 1, .start = 1100, .end = 1150}, 3));
  ASSERT_EQ(rows().sync.size(), 1U);
  EXPECT_EQ(rows().sync.region[0], 4U);
  EXPECT_EQ(rows().sync.kind[0], 3U);
  EXPECT_EQ(rows().sync.duration_ns[0], 50);
}

TEST_F(GpuRecord, OfASynchronizationIsOnTheDeviceOfItsContext) {
  take(fakes::sync_record({.correlation = 1, .start = 1050, .end = 1090, .context = 8, .stream = 21}, 3));
  take(fakes::sync_record({.correlation = 1, .start = 1050, .end = 1090, .context = 9, .stream = 21}, 3));
  take(fakes::kernel_record({.correlation = 1, .start = 1100, .end = 1150, .device = 3, .context = 8, .stream = 21}));
  take(fakes::sync_record({.correlation = 1, .start = 1100, .end = 1150, .context = 8, .stream = 21}, 3));
  records_->place_waits();
  const store::Store store = fakes::copy_of(state_->dictionaries);
  EXPECT_EQ(rows().sync.track[0], rows().kernel.track[0]) << "came before any work of its context";
  EXPECT_EQ(rows().sync.track[2], rows().kernel.track[0]);
  EXPECT_EQ(store.track.device[rows().sync.track[1]], 0U) << "of a context without any work";
}

TEST_F(GpuRecord, OfASynchronizationOutsideTheWindowIsLeftOut) {
  take(fakes::sync_record({.correlation = 1, .start = 2100, .end = 2150}, 3));
  EXPECT_EQ(rows().sync.size(), 0U);
}

TEST_F(GpuRecord, OfAnOverheadNamesItsThread) {
  take(fakes::overhead_record(store::OverheadKind::LazyFunctionLoading, 77, 1100, 1150));
  ASSERT_EQ(rows().overhead.size(), 1U);
  EXPECT_EQ(rows().overhead.start_ns[0], 1100);
  EXPECT_EQ(rows().overhead.duration_ns[0], 50);
  EXPECT_EQ(rows().overhead.kind[0], static_cast<uint32_t>(store::OverheadKind::LazyFunctionLoading));
  EXPECT_EQ(rows().overhead.system_id[0], 77U);
}

TEST_F(GpuRecord, OfAnOverheadOutsideTheWindowIsLeftOut) {
  take(fakes::overhead_record(store::OverheadKind::CuptiResource, 77, 2100, 2150));
  take(fakes::overhead_record(store::OverheadKind::CuptiResource, 77, 0, 0));
  take(fakes::overhead_record(store::OverheadKind::CuptiResource, 77, 1150, 1100));
  EXPECT_EQ(rows().overhead.size(), 0U);
}

TEST_F(GpuRecord, OfAnUnknownKindIsIgnored) {
  Record record;
  record.size = 56;
  record.bytes[0] = 17;
  take(record);
  EXPECT_EQ(counters().gpu_records, 0U);
}

TEST_F(GpuRecord, OfAGraphNodeLeadsBackToItsCapture) {
  const uint32_t path = state_->dictionaries.path(kNone, state_->dictionaries.string("capture"));
  state_->node_paths.set(100, path);
  state_->node_origins.set(200, 100);
  state_->node_origins.set(300, 200);
  // Where the clones came to be, which is not where they were captured.
  state_->node_paths.set(200, kNone);
  state_->node_paths.set(300, kNone);
  take(fakes::kernel_record({.correlation = 4, .start = 1100, .end = 1150, .graph = 6, .node = 300}));
  ASSERT_EQ(rows().graph_node.size(), 1U);
  EXPECT_EQ(rows().graph_node.path[0], path);
  EXPECT_EQ(rows().graph_node.graph[0], 6U);
  EXPECT_EQ(rows().graph_node.node[0], 300U);
  EXPECT_EQ(rows().graph_node.kind[0], static_cast<uint16_t>(Work::Kernel));
  EXPECT_EQ(rows().kernel.region[0], 4U);
  EXPECT_EQ(rows().kernel.flags[0], store::kInGraph);
}

TEST_F(GpuRecord, OfANodeCapturedBeforeProfilingHasNoCapturePath) {
  take(fakes::kernel_record({.correlation = 4, .start = 1100, .end = 1150, .graph = 6, .node = 1}));
  EXPECT_EQ(rows().graph_node.path[0], kNone);
}

TEST_F(GpuRecord, OfAnyKindOfNodePointsToItsRow) {
  take(fakes::memcpy_record({.correlation = 2, .start = 1100, .end = 1150}, 1));
  take(fakes::memcpy_record({.correlation = 4, .start = 1100, .end = 1150, .graph = 6, .node = 1}, 1));
  take(fakes::memset_record({.correlation = 4, .start = 1100, .end = 1150, .graph = 6, .node = 2}, 1));
  ASSERT_EQ(rows().graph_node.size(), 2U);
  EXPECT_EQ(rows().graph_node.event[0], 1U);
  EXPECT_EQ(rows().graph_node.event[1], 0U);
  EXPECT_EQ(rows().graph_node.kind[1], static_cast<uint16_t>(Work::Memset));
}

TEST_F(GpuRecord, OfAGraphsNodesMatchTheirLaunchOnce) {
  for (uint64_t node = 1; node <= 5; ++node) {
    take(fakes::kernel_record({.correlation = 4, .start = 1100, .end = 1150, .graph = 6, .node = node}));
  }
  EXPECT_EQ(counters().matched_graphs, 1U);
  EXPECT_EQ(counters().graph_nodes, 5U);
  EXPECT_EQ(counters().kernels, 0U);
  EXPECT_EQ(counters().matched, 0U);
}

TEST_F(GpuRecord, TellsWhenAGraphsLaunchIsShortOfNodes) {
  const auto node = [&](uint32_t correlation, uint64_t number) {
    take(fakes::kernel_record({.correlation = correlation, .start = 1100, .end = 1150, .graph = 6, .node = number}));
  };
  node(4, 1);
  node(4, 2);
  EXPECT_TRUE(records_->has_new_graphs());
  EXPECT_FALSE(records_->has_short_graphs());
  node(5, 1);
  EXPECT_FALSE(records_->has_new_graphs());
  EXPECT_TRUE(records_->has_short_graphs());
  node(5, 2);
  EXPECT_FALSE(records_->has_short_graphs());
}

TEST_F(GpuRecord, OfAShortGraphDoesNotHoldUpTheNextWindow) {
  for (const uint32_t correlation : {4U, 4U, 5U}) {
    take(fakes::kernel_record({.correlation = correlation, .start = 1100, .end = 1150, .graph = 6, .node = 1}));
  }
  records_->start_window();
  EXPECT_FALSE(records_->has_short_graphs());
}

TEST_F(GpuRecord, OfAWholeGraphIsOneRow) {
  take(fakes::graph_record({.correlation = 4, .start = 1100, .end = 1500, .graph = 6}));
  ASSERT_EQ(rows().graph_launch.size(), 1U);
  EXPECT_EQ(rows().graph_launch.region[0], 4U);
  EXPECT_EQ(rows().graph_launch.duration_ns[0], 400);
  EXPECT_EQ(counters().matched_graphs, 1U);
}

TEST_F(GpuRecord, OfMergedGraphsBecomesOneRowALaunch) {
  set_up({.merge_graphs = true});
  take(fakes::kernel_record({.correlation = 4, .start = 1200, .end = 1250, .graph = 6, .node = 1}));
  take(fakes::memcpy_record({.correlation = 4, .start = 1100, .end = 1120, .graph = 6, .node = 2}, 1));
  take(fakes::memset_record({.correlation = 4, .start = 1300, .end = 1400, .graph = 6, .node = 3}, 1));
  take(fakes::kernel_record({.correlation = 5, .start = 1500, .end = 1550, .graph = 6, .node = 1}));
  ASSERT_EQ(rows().graph_launch.size(), 2U);
  EXPECT_EQ(rows().graph_launch.start_ns[0], 1100);
  EXPECT_EQ(rows().graph_launch.duration_ns[0], 300);
  EXPECT_EQ(rows().graph_launch.region[1], 5U);
  EXPECT_EQ(rows().kernel.size() + rows().memcpy.size() + rows().memset.size() + rows().graph_node.size(), 0U);
}

TEST_F(GpuRecord, OfAMergedGraphHasTheTimeOfTheNodesThatHaveOne) {
  set_up({.merge_graphs = true});
  take(fakes::kernel_record({.correlation = 4, .start = 1200, .end = 1250, .graph = 6, .node = 1}));
  take(fakes::kernel_record({.correlation = 5, .graph = 6, .node = 1}));
  records_->set_forced(true);
  take(fakes::kernel_record({.correlation = 4, .graph = 6, .node = 2}));
  take(fakes::kernel_record({.correlation = 5, .start = 1500, .end = 1550, .graph = 6, .node = 2}));
  for (const std::size_t row : {0, 1}) {
    EXPECT_EQ(rows().graph_launch.start_ns[row], row == 0 ? 1200 : 1500);
    EXPECT_EQ(rows().graph_launch.duration_ns[row], 50);
    EXPECT_EQ(rows().graph_launch.flags[row], row == 0 ? store::kIncomplete : 0);
  }
}

TEST_F(GpuRecord, OfAMergedGraphKeepsItsRowWhenRowsMove) {
  set_up({.merge_graphs = true});
  take(fakes::kernel_record({.correlation = 4, .start = 1200, .end = 1250, .graph = 6, .node = 1}));
  take(fakes::kernel_record({.correlation = 5, .start = 1500, .end = 1550, .graph = 6, .node = 1}));
  rows().graph_launch.drop_front(1);
  Eviction eviction;
  eviction[store::Target::GraphLaunches].end = 1;
  records_->apply(eviction);
  take(fakes::kernel_record({.correlation = 5, .start = 1600, .end = 1650, .graph = 6, .node = 2}));
  take(fakes::kernel_record({.correlation = 4, .start = 1300, .end = 1350, .graph = 6, .node = 2}));
  ASSERT_EQ(rows().graph_launch.size(), 1U);
  EXPECT_EQ(rows().graph_launch.start_ns[0], 1500);
  EXPECT_EQ(rows().graph_launch.duration_ns[0], 150);
}

TEST_F(GpuRecord, IsCountedWhenTheCapRefusesIt) {
  state_->full = true;
  take(fakes::kernel_record({.correlation = 1, .start = 1100, .end = 1150}));
  EXPECT_EQ(rows().kernel.size(), 0U);
  EXPECT_EQ(counters().refused, 1U);
  EXPECT_EQ(counters().matched, 1U);
}

TEST_F(GpuRecord, OfLaunchesYetUnknownWaitsForThem) {
  set_up({.by_time = true});
  take(fakes::kernel_record({.correlation = 50, .start = 1100, .end = 1150}));
  EXPECT_EQ(rows().kernel.size(), 0U);
  state_->correlations.set(50, Correlations::encode(8), Awaits::Kernel);
  records_->retry(false);
  ASSERT_EQ(rows().kernel.size(), 1U);
  EXPECT_EQ(rows().kernel.region[0], 8U);
  EXPECT_EQ(counters().matched, 1U);
}

TEST_F(GpuRecord, OfALaunchThatNeverBecomesKnownIsKeptAtTheEnd) {
  set_up({.by_time = true});
  take(fakes::kernel_record({.correlation = 50, .start = 1100, .end = 1150}));
  records_->retry(false);
  EXPECT_EQ(rows().kernel.size(), 0U);
  records_->retry(true);
  ASSERT_EQ(rows().kernel.size(), 1U);
  EXPECT_EQ(rows().kernel.flags[0], store::kNoLaunch);
  EXPECT_EQ(counters().gpu_records, 1U);
}

class TotalGpuRecord : public GpuRecord {
 protected:
  TotalGpuRecord() { set_up({.mode = Mode::Aggregate}); }
};

TEST_F(TotalGpuRecord, IsAddedUpByPathKindAndName) {
  take(fakes::kernel_record({.correlation = 1, .start = 1100, .end = 1150}, "gemm"));
  take(fakes::kernel_record({.correlation = 1, .start = 1200, .end = 1210}, "gemm"));
  take(fakes::memcpy_record({.correlation = 2, .start = 1100, .end = 1150}, 64));
  take(fakes::memset_record({.correlation = 2, .start = 1100, .end = 1150}, 32));
  take(fakes::graph_record({.correlation = 4, .start = 1100, .end = 1150, .graph = 6}));
  state_->totals.move_into(rows());
  ASSERT_EQ(rows().work_total.size(), 4U);
  EXPECT_EQ(rows().work_total.path[0], 4U);
  EXPECT_EQ(rows().work_total.count[0], 2U);
  EXPECT_EQ(rows().work_total.total_ns[0], 60);
  EXPECT_EQ(text(rows().work_total.name[0]), "gemm");
  EXPECT_EQ(text(rows().work_total.name[1]), "Memcpy HtoD (Pageable -> Device)");
  EXPECT_EQ(rows().work_total.bytes[1], 64U);
  EXPECT_EQ(text(rows().work_total.name[2]), "Memset (Device)");
  EXPECT_EQ(text(rows().work_total.name[3]), "CUDA graph 6");
  EXPECT_EQ(rows().kernel.size() + rows().memcpy.size() + rows().memset.size() + rows().graph_launch.size(), 0U);
}

TEST_F(TotalGpuRecord, OutsideEveryRegionHasNoPath) {
  take(fakes::kernel_record({.correlation = 3, .start = 1100, .end = 1150}));
  state_->totals.move_into(rows());
  EXPECT_EQ(rows().work_total.path[0], kNone);
}

using fakes::memory_record;
using fakes::pool_record;
using store::MemoryKind;
using store::PoolOperation;

// The window is [1000, 2000). Calls 1 and 2 were made in the regions of rows 4 and 5, call 3 outside every region, call
// 9 outside the window.
class MemoryRecord : public testing::Test {
 protected:
  void set_up(const Settings& settings) {
    state_ = std::make_unique<DecodeState>(settings);
    records_ = std::make_unique<GpuRecords>(*state_);
    records_->set_names_libraries(true);
    state_->window.open_ns = 1000;
    state_->window.close_ns = 2000;
    state_->correlations.set(1, Correlations::encode(4), Awaits::Nothing);
    state_->correlations.set(2, Correlations::encode(5), Awaits::Nothing);
    state_->correlations.set(3, Correlations::kNowhere, Awaits::Nothing);
    state_->correlations.set(9, Correlations::kOutside, Awaits::Nothing);
  }
  MemoryRecord() { set_up({}); }

  void take(const Record& record) { records_->take(record.kind(), record.bytes); }
  const store::DeviceMemories& memory() { return state_->store->device_memory; }
  const store::MemoryPools& pools() { return state_->store->memory_pool; }

  std::unique_ptr<DecodeState> state_;
  std::unique_ptr<GpuRecords> records_;
};

TEST_F(MemoryRecord, OfMemoryTakenLiesInTheRegionOfItsCall) {
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 4096, .address = 0x7000}));
  ASSERT_EQ(memory().size(), 1U);
  const auto row = memory()[0];
  EXPECT_EQ(row.start_ns, 1100);
  EXPECT_EQ(row.bytes, 4096);
  EXPECT_EQ(row.address, 0x7000U);
  EXPECT_EQ(row.correlation, 1U);
  EXPECT_EQ(row.region, 4U);
  EXPECT_EQ(row.flags, 0U);
  EXPECT_EQ(row.pool, 0U);
}

TEST_F(MemoryRecord, OfMemoryGivenBackIsNegative) {
  take(memory_record({.correlation = 2, .at = 1100, .bytes = 4096, .given_back = true, .address = 0x7000}));
  EXPECT_EQ(memory().bytes[0], -4096);
  EXPECT_EQ(memory().region[0], 5U);
}

TEST_F(MemoryRecord, OfMemoryThatWasThereBeforeIsKept) {
  take(memory_record({.correlation = 3, .at = 1100, .bytes = 64, .given_back = true}));
  ASSERT_EQ(memory().size(), 1U);
  EXPECT_EQ(memory().region[0], kNone);
  EXPECT_EQ(memory().flags[0], 0U);
}

TEST_F(MemoryRecord, KeepsEveryKind) {
  for (uint8_t kind = 0; kind <= static_cast<uint8_t>(MemoryKind::ManagedStatic); ++kind) {
    take(memory_record({.correlation = 1, .at = 1100, .bytes = 64, .kind = MemoryKind{kind}}));
    EXPECT_EQ(memory().kind[kind], kind);
  }
}

TEST_F(MemoryRecord, NamesItsDeviceAndTheStreamThatOrdersIt) {
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64, .device = 3, .stream = 21, .is_async = true}));
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64, .device = 3}));
  const store::Store store = fakes::copy_of(state_->dictionaries);
  EXPECT_EQ(store.track.device[memory().track[0]], 3U);
  EXPECT_EQ(store.track.stream[memory().track[0]], 21U);
  EXPECT_EQ(store.track.stream[memory().track[1]], kNone);
}

TEST_F(MemoryRecord, NamesItsLibrary) {
  const std::string path = "/lib/libcublas.so.13";
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64, .source = path.c_str()}));
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64}));
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64, .source = ""}));
  EXPECT_EQ(state_->dictionaries.text(memory().library[0]), path);
  EXPECT_EQ(memory().library[1], kNone);
  EXPECT_EQ(memory().library[2], kNone);
}

TEST_F(MemoryRecord, OfAnOlderLayoutIsReadNoFurtherThanItGoes) {
  records_->set_names_libraries(false);
  Record record = memory_record({.correlation = 1, .at = 1100, .bytes = 64});
  std::memset(record.bytes + sizeof(activity::MemoryRecord), 0xFF, sizeof(const char*));  // the next record's
  take(record);
  EXPECT_EQ(memory().bytes[0], 64);
  EXPECT_EQ(memory().library[0], kNone);
}

TEST_F(MemoryRecord, OfALocalPoolTellsWhatThePoolHolds) {
  take(memory_record({.correlation = 1,
                      .at = 1100,
                      .bytes = 64,
                      .pool = 0x9000,
                      .pool_type = activity::kLocalPool,
                      .pool_size = 32 << 20,
                      .pool_used = 1 << 20}));
  EXPECT_EQ(memory().pool[0], 0x9000U);
  EXPECT_EQ(memory().pool_reserved_bytes[0], 32U << 20);
  EXPECT_EQ(memory().pool_used_bytes[0], 1U << 20);
}

TEST_F(MemoryRecord, OfAnImportedPoolDoesNotTakeAProcessForASize) {
  take(memory_record({.correlation = 1,
                      .at = 1100,
                      .bytes = 64,
                      .pool = 0x9000,
                      .pool_type = activity::kImportedPool,
                      .pool_size = 4242}));
  EXPECT_EQ(memory().pool[0], 0x9000U);
  EXPECT_EQ(memory().pool_reserved_bytes[0], 0U);
}

TEST_F(MemoryRecord, OfNoOperationIsLeftOut) {
  Record record = memory_record({.correlation = 1, .at = 1100, .bytes = 64});
  record.bytes[offsetof(activity::MemoryRecord, operation)] = 0;
  take(record);
  EXPECT_EQ(memory().size(), 0U);
}

TEST_F(MemoryRecord, OfACallOutsideTheWindowIsLeftOut) {
  take(memory_record({.correlation = 9, .at = 1100, .bytes = 64}));
  EXPECT_EQ(memory().size(), 0U);
}

TEST_F(MemoryRecord, OfAnUnknownCallIsKeptInsideTheWindowAndSaysSo) {
  take(memory_record({.correlation = 77, .at = 1100, .bytes = 64}));
  take(memory_record({.correlation = 77, .at = 2100, .bytes = 64}));
  take(memory_record({.correlation = 77, .at = 0, .bytes = 64}));
  ASSERT_EQ(memory().size(), 1U);
  EXPECT_EQ(memory().flags[0], store::kNoLaunch);
  EXPECT_EQ(memory().region[0], kNone);
}

TEST_F(MemoryRecord, WithoutATimeSaysSo) {
  records_->set_clock([](uint64_t timestamp) { return static_cast<int64_t>(timestamp) + 500; });
  take(memory_record({.correlation = 1, .bytes = 64}));
  EXPECT_EQ(memory().start_ns[0], 0);
  EXPECT_EQ(memory().flags[0], store::kZeroTime);
}

TEST_F(MemoryRecord, StandsOnTheProcessesClock) {
  records_->set_clock([](uint64_t timestamp) { return static_cast<int64_t>(timestamp) + 500; });
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64}));
  EXPECT_EQ(memory().start_ns[0], 1600);
}

TEST_F(MemoryRecord, IsNoGpuWorkToTheAudit) {
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64}));
  take(memory_record({.correlation = 77, .at = 1100, .bytes = 64}));
  take(pool_record(PoolOperation::Created, {.correlation = 77, .at = 1100}));
  const Counters& counters = state_->counters;
  EXPECT_EQ(counters.gpu_records + counters.kernels + counters.matched + counters.unattributed, 0U);
}

TEST_F(MemoryRecord, IsCountedWhenTheCapRefusesIt) {
  state_->full = true;
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64}));
  take(pool_record(PoolOperation::Created, {.correlation = 1, .at = 1100}));
  EXPECT_EQ(memory().size() + pools().size(), 0U);
  EXPECT_EQ(state_->counters.refused, 2U);
}

TEST_F(MemoryRecord, HasNoRowInAggregateMode) {
  set_up({.mode = Mode::Aggregate});
  take(memory_record({.correlation = 1, .at = 1100, .bytes = 64}));
  EXPECT_EQ(memory().size(), 0U);
  EXPECT_EQ(state_->counters.refused, 0U);
}

TEST_F(MemoryRecord, OfCallsYetUnknownWaitsForThem) {
  set_up({.by_time = true});
  const std::string path = "/lib/libx.so";
  take(memory_record({.correlation = 50, .at = 1100, .bytes = 64, .source = path.c_str()}));
  take(pool_record(PoolOperation::Trimmed, {.correlation = 50, .at = 1100}));
  EXPECT_EQ(memory().size() + pools().size(), 0U);
  state_->correlations.set(50, Correlations::encode(8), Awaits::Nothing);
  records_->retry(false);
  ASSERT_EQ(memory().size(), 1U);
  EXPECT_EQ(memory().region[0], 8U);
  EXPECT_EQ(state_->dictionaries.text(memory().library[0]), path);
  ASSERT_EQ(pools().size(), 1U);
  EXPECT_EQ(pools().region[0], 8U);
}

TEST_F(MemoryRecord, OfAPoolTellsWhatWasDoneToIt) {
  const auto operations = {PoolOperation::Created, PoolOperation::Trimmed, PoolOperation::Destroyed};
  for (const PoolOperation operation : operations) {
    take(pool_record(operation,
                     {.correlation = 2,
                      .at = 1100,
                      .device = 3,
                      .pool = 0x9000,
                      .pool_type = activity::kLocalPool,
                      .pool_size = 64,
                      .pool_used = 32},
                     16));
  }
  ASSERT_EQ(pools().size(), 3U);
  EXPECT_EQ(pools().operation[0], 1U);
  EXPECT_EQ(pools().operation[1], 3U);
  EXPECT_EQ(pools().operation[2], 2U);
  const auto row = pools()[0];
  EXPECT_EQ(row.start_ns, 1100);
  EXPECT_EQ(row.pool, 0x9000U);
  EXPECT_EQ(row.reserved_bytes, 64U);
  EXPECT_EQ(row.used_bytes, 32U);
  EXPECT_EQ(row.release_threshold_bytes, 16U);
  EXPECT_EQ(row.region, 5U);
  EXPECT_EQ(row.device, 3U);
}

}  // namespace

}  // namespace gpuscope::attribution
