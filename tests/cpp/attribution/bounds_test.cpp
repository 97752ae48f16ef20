// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "fakes/cupti_records.h"
#include "gpuscope/attribution/decode_state.h"

namespace gpuscope::attribution {
namespace {

using store::kNone;
using store::Work;

class Bounds : public testing::Test {
 protected:
  void set_up(const Settings& settings) { state_ = std::make_unique<DecodeState>(settings); }

  store::Store& rows() { return *state_->store; }
  uint32_t kernel(int64_t start_ns, uint32_t region = kNone) {
    return rows().kernel.append({.start_ns = start_ns, .duration_ns = 1, .region = region});
  }
  uint32_t region(int64_t start_ns, int64_t duration_ns, uint32_t parent = kNone, uint16_t flags = 0) {
    return rows().region.append({.start_ns = start_ns, .duration_ns = duration_ns, .parent = parent, .flags = flags});
  }
  std::optional<Eviction> keep() { return keep_in_bounds(*state_); }

  std::unique_ptr<DecodeState> state_;
};

TEST_F(Bounds, OfFullModeRefuseAtTheCap) {
  set_up({.max_bytes = 10 * store::Kernels::kRowBytes});
  for (int64_t row = 0; row < 9; ++row) {
    kernel(row);
  }
  EXPECT_FALSE(keep());
  EXPECT_FALSE(state_->full);
  kernel(9);
  keep();
  EXPECT_TRUE(state_->full);
  EXPECT_EQ(rows().kernel.size(), 10U);
}

TEST_F(Bounds, CountEveryTableOfEvents) {
  store::Store store;
  store.kernel.append({});
  store.memcpy.append({});
  store.memset.append({});
  store.sync.append({});
  store.overhead.append({});
  store.api.append({});
  store.region.append({});
  store.mark.append({});
  store.graph_node.append({});
  store.graph_launch.append({});
  store.region_gpu.append({});
  store.device_memory.append({});
  store.memory_pool.append({});
  EXPECT_EQ(event_bytes(store), store::Kernels::kRowBytes + store::Memcpys::kRowBytes + store::Memsets::kRowBytes +
                                    store::Syncs::kRowBytes + store::Overheads::kRowBytes + store::Apis::kRowBytes +
                                    store::Regions::kRowBytes + store::Marks::kRowBytes + store::GraphNodes::kRowBytes +
                                    store::GraphLaunches::kRowBytes + store::RegionGpus::kRowBytes +
                                    store::DeviceMemories::kRowBytes + store::MemoryPools::kRowBytes);
}

TEST_F(Bounds, OfAggregateModeRefuseNewTotals) {
  set_up({.mode = Mode::Aggregate, .max_bytes = 1});
  state_->totals.add_region(1, 1, 0);
  keep();
  state_->totals.add_region(2, 1, 0);
  keep();
  EXPECT_EQ(state_->counters.refused, 1U);
}

TEST_F(Bounds, OfTheRingLetGoByTime) {
  set_up({.mode = Mode::Ring, .ring_ns = 100});
  for (int64_t start_ns = 0; start_ns <= 125; ++start_ns) {
    kernel(start_ns);
  }
  EXPECT_FALSE(keep()) << "a quarter of slack";
  kernel(126);
  ASSERT_TRUE(keep());
  EXPECT_EQ(rows().kernel.start_ns[0], 26);
  EXPECT_EQ(rows().kernel.size(), 101U);
  EXPECT_EQ(state_->counters.evicted, 26U);
}

TEST_F(Bounds, OfTheRingLetGoBySize) {
  set_up({.mode = Mode::Ring, .max_bytes = 100 * store::Kernels::kRowBytes});
  for (int64_t start_ns = 0; start_ns <= 100; ++start_ns) {
    kernel(start_ns);
  }
  ASSERT_TRUE(keep());
  EXPECT_EQ(rows().kernel.start_ns[0], 25);
  EXPECT_FALSE(keep());
}

TEST_F(Bounds, OfTheRingLetTheOldestGoInWhateverOrderTheyLie) {
  set_up({.mode = Mode::Ring, .max_bytes = 100 * store::Kernels::kRowBytes});
  for (int64_t start_ns = 0; start_ns < 60; ++start_ns) {  // of one thread, then of another at the same time
    kernel(start_ns);
  }
  for (int64_t start_ns = 0; start_ns < 60; ++start_ns) {
    kernel(start_ns);
  }
  const auto eviction = keep();
  ASSERT_TRUE(eviction);
  EXPECT_EQ((*eviction)[store::Target::Kernels].renumber(60), kNone);
  EXPECT_EQ((*eviction)[store::Target::Kernels].renumber(59), 59U - 15U);
  ASSERT_EQ(rows().kernel.size(), 90U);
  for (std::size_t row = 0; row < rows().kernel.size(); ++row) {
    EXPECT_EQ(rows().kernel.start_ns[row], static_cast<int64_t>(15 + row % 45));
  }
}

TEST_F(Bounds, OfTheRingHoldWhereNothingHasATime) {
  set_up({.mode = Mode::Ring, .max_bytes = 100 * store::Kernels::kRowBytes});
  for (int row = 0; row < 1000; ++row) {
    kernel(0);
    keep();
    ASSERT_LE(event_bytes(rows()), state_->settings.max_bytes);
  }
}

TEST_F(Bounds, OfTheRingHoldUnderAnOldOpenRegion) {
  set_up({.mode = Mode::Ring, .max_bytes = 100 * store::Kernels::kRowBytes});
  region(0, 0, kNone, store::kOpen);
  for (int64_t start_ns = 1'000'000; start_ns < 1'100'000; ++start_ns) {
    kernel(start_ns, 0);
    keep();
    ASSERT_LE(event_bytes(rows()), state_->settings.max_bytes);
  }
  EXPECT_EQ(rows().kernel.region[0], 0U);
}

TEST_F(Bounds, OfTheRingMoveRowsSeldom) {
  set_up({.mode = Mode::Ring, .ring_ns = 1000});
  region(0, 0, kNone, store::kOpen);
  int moves = 0;
  for (int64_t start_ns = 0; start_ns < 100'000; ++start_ns) {
    kernel(start_ns, 0);
    moves += keep().has_value();
  }
  EXPECT_LE(moves, 100'000 / 250);
}

TEST_F(Bounds, OfTheRingMoveRowsSeldomWhereKernelsComeLate) {
  set_up({.mode = Mode::Ring, .ring_ns = 1000});
  int moves = 0;
  std::size_t most = 0;
  for (int64_t start_ns = 0; start_ns < 100'000; ++start_ns) {
    rows().api.append({.start_ns = start_ns});
    kernel(start_ns - 3000);
    moves += keep().has_value();
    most = std::max(most, rows().kernel.size());
  }
  EXPECT_LE(moves, 100'000 / 250);
  EXPECT_LE(most, 1500U) << "older than the ring, all of them";
}

TEST_F(Bounds, OfTheRingHoldWhileLateKernelsComeInOneGo) {
  set_up({.mode = Mode::Ring, .ring_ns = 1000});
  for (int64_t start_ns = 0; start_ns < 10'000; ++start_ns) {
    rows().api.append({.start_ns = start_ns});
  }
  keep();
  int moves = 0;
  const std::size_t before = event_bytes(rows());
  for (int64_t start_ns = 0; start_ns < 500'000; ++start_ns) {
    kernel(start_ns / 100);
    moves += keep().has_value();
    ASSERT_LE(event_bytes(rows()), before + (std::size_t{2} << 20));
  }
  EXPECT_LE(moves, 500'000 / 10'000);
}

TEST_F(Bounds, KeepOpenRegionsClippedToTheRing) {
  set_up({.mode = Mode::Ring, .ring_ns = 100});
  const uint32_t outer = region(0, 0, kNone, store::kOpen);
  region(1, 5, outer);
  const uint32_t inner = region(10, 0, outer, store::kOpen);
  kernel(150, inner);
  const auto eviction = keep();
  ASSERT_TRUE(eviction);
  ASSERT_EQ(rows().region.size(), 2U);
  EXPECT_EQ(eviction->region(0), 0U);
  EXPECT_EQ(eviction->region(1), kNone);
  EXPECT_EQ(eviction->region(2), 1U);
  EXPECT_EQ(rows().region.parent[1], 0U);
  EXPECT_EQ(rows().region.start_ns[1], 50);
  EXPECT_EQ(rows().region.flags[1], store::kOpen | store::kClipped);
  EXPECT_EQ(rows().kernel.region[0], 1U);
}

TEST_F(Bounds, KeepRegionsThatReachIntoTheRing) {
  set_up({.mode = Mode::Ring, .ring_ns = 100});
  region(0, 20);
  const uint32_t reaching = region(5, 80);
  kernel(150, reaching);
  keep();
  ASSERT_EQ(rows().region.size(), 1U);
  EXPECT_EQ(rows().region.start_ns[0], 50);
  EXPECT_EQ(rows().region.duration_ns[0], 35);
  EXPECT_EQ(rows().kernel.region[0], 0U);
}

TEST_F(Bounds, LeadReferencesToTheirRowsOrNowhere) {
  set_up({.mode = Mode::Ring, .ring_ns = 100});
  const uint32_t gone = region(0, 10);
  const uint32_t here = region(90, 10);
  kernel(150, gone);
  kernel(150, here);
  kernel(150, kNone);
  rows().api.append({.start_ns = 150, .region = here});
  rows().mark.append({.start_ns = 150, .region = here});
  rows().device_memory.append({.start_ns = 20, .region = gone});
  rows().device_memory.append({.start_ns = 150, .region = here});
  rows().memory_pool.append({.start_ns = 20, .region = gone});
  rows().memory_pool.append({.start_ns = 150, .region = here});
  rows().region_gpu.append({.region = gone});
  rows().region_gpu.append({.region = here});
  state_->gpu_spans.push_back({1, here, 0});
  state_->correlations.set(1, Correlations::encode(gone), Correlations::Awaits::Kernel);
  state_->correlations.set(2, Correlations::encode(here), Correlations::Awaits::Kernel);
  ASSERT_TRUE(keep());
  EXPECT_EQ(rows().kernel.region[0], kNone);
  EXPECT_EQ(rows().kernel.region[1], 0U);
  EXPECT_EQ(rows().kernel.region[2], kNone);
  EXPECT_EQ(rows().api.region[0], 0U);
  EXPECT_EQ(rows().mark.region[0], 0U);
  ASSERT_EQ(rows().device_memory.size(), 1U);
  EXPECT_EQ(rows().device_memory.region[0], 0U);
  ASSERT_EQ(rows().memory_pool.size(), 1U);
  EXPECT_EQ(rows().memory_pool.region[0], 0U);
  ASSERT_EQ(rows().region_gpu.size(), 1U);
  EXPECT_EQ(rows().region_gpu.region[0], 0U);
  EXPECT_EQ(state_->gpu_spans[0].region, 0U);
  EXPECT_EQ(state_->correlations.find(1), Correlations::kNowhere);
  EXPECT_EQ(Correlations::decode(state_->correlations.find(2)), 0U);
}

TEST_F(Bounds, LeadGraphNodesToTheirEvents) {
  set_up({.mode = Mode::Ring, .ring_ns = 100});
  kernel(0);
  kernel(150);
  rows().memcpy.append({.start_ns = 10});
  rows().memcpy.append({.start_ns = 160});
  const auto node = [&](Work kind, uint32_t event) {
    rows().graph_node.append({.event = event, .kind = static_cast<uint16_t>(kind)});
  };
  node(Work::Kernel, 1);  // kinds alternate, so that what goes is not at the front
  node(Work::Memcpy, 0);
  node(Work::Kernel, 0);
  node(Work::Memcpy, 1);
  ASSERT_TRUE(keep());
  ASSERT_EQ(rows().graph_node.size(), 2U);
  EXPECT_EQ(rows().graph_node.event[0], 0U);
  EXPECT_EQ(rows().graph_node.kind[0], static_cast<uint16_t>(Work::Kernel));
  EXPECT_EQ(rows().graph_node.event[1], 0U);
  EXPECT_EQ(rows().graph_node.kind[1], static_cast<uint16_t>(Work::Memcpy));
}

TEST_F(Bounds, FollowRowsOfCallsAndGraphLaunches) {
  set_up({.mode = Mode::Ring, .ring_ns = 100});
  for (const int64_t start_ns : {0, 10, 150}) {
    rows().api.append({.start_ns = start_ns});
    rows().graph_launch.append({.start_ns = start_ns});
  }
  const auto eviction = keep();
  ASSERT_TRUE(eviction);
  EXPECT_EQ(eviction->api(1), kNone);
  EXPECT_EQ(eviction->api(2), 0U);
  EXPECT_EQ(eviction->api(kNone), kNone);
  EXPECT_EQ(eviction->graph_launch(2), 0U);
}

}  // namespace
}  // namespace gpuscope::attribution
