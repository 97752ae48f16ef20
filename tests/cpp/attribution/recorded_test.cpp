// SPDX-License-Identifier: Apache-2.0
// Replays what CUPTI 13.0 delivered for a real program on an H100 (tests/gpu/record_cupti.cpp).
#include "fakes/recorded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>

#include "gpuscope/activity/layout.h"
#include "gpuscope/attribution/decoder.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/strings.h"

namespace gpuscope {
namespace {

using fakes::Recorded;
using store::kNone;

std::vector<uint32_t> known_strides;

driver::Cupti cupti_of_the_recording() {
  driver::Cupti table;
  table.get_next_record = [](uint8_t* buffer, size_t valid, void** record) {
    const std::size_t at = static_cast<std::size_t>(static_cast<uint8_t*>(*record) - buffer);
    const std::size_t next = at + known_strides[*reinterpret_cast<uint32_t*>(buffer + at)];
    if (next >= valid) {
      return driver::kCuptiMaxLimitReached;
    }
    *record = buffer + next;
    return driver::kCuptiSuccess;
  };
  return table;
}

class RecordedProgram : public testing::Test {
 protected:
  void SetUp() override {
    recorded_ = Recorded::load(GPUSCOPE_TEST_DATA "/h100.cupti");
    known_strides = recorded_.strides;
  }

  void replay(attribution::Settings settings) {
    attribution::Decoder decoder(settings, cupti_of_the_recording(), 0);
    decoder.discard_logs();
    decoder.window().open_ns = INT64_MIN;
    for (const auto& events : recorded_.threads) {
      std::thread([&] {
        for (const base::Event& event : events) {
          const auto op = static_cast<base::Op>(event.op);
          const bool named = op == base::Op::Enter || op == base::Op::Exit;
          const uint32_t id = named ? base::Names::process().intern(recorded_.regions[event.id]) : event.id;
          base::EventLogs::current()->append(event.word, id, op, event.detail);
        }
      }).join();
    }
    activity::BufferPool pool;
    for (const Recorded::Buffer& buffer : recorded_.buffers) {
      uint8_t* data = pool.take();
      std::memcpy(data, buffer.words.data(), buffer.valid);
      for (std::size_t at = 0; at < buffer.valid;) {
        auto* kernel = reinterpret_cast<activity::KernelRecord*>(data + at);
        if (kernel->kind == activity::kConcurrentKernel) {
          kernel->name = recorded_.names[reinterpret_cast<uintptr_t>(kernel->name)].c_str();
        }
        at += recorded_.strides[kernel->kind];
      }
      pool.complete(nullptr, 0, data, buffer.valid);
    }
    decoder.decode(pool);
    counters_ = decoder.state().counters;
    store_ = decoder.finish(INT64_MAX - 1);
  }

  std::string path_name(uint32_t path) const {
    return path == kNone ? "-" : std::string(store_->strings[store_->path.name[path]]);
  }
  std::string region_name(uint32_t region) const {
    return region == kNone ? "-" : path_name(store_->region.path[region]);
  }

  Recorded recorded_;
  attribution::Counters counters_;
  std::unique_ptr<store::Store> store_;
};

TEST_F(RecordedProgram, EveryLaunchHasItsKernel) {
  replay({});
  EXPECT_EQ(counters_.launches, 18U);
  EXPECT_EQ(counters_.matched, 18U);
  EXPECT_EQ(counters_.graph_launches, 3U);
  EXPECT_EQ(counters_.zero_time + counters_.backward_time + counters_.incomplete + counters_.unattributed, 0U);
  EXPECT_EQ(counters_.unread_bytes, 0U);
}

TEST_F(RecordedProgram, KernelsLieInTheRegionsThatLaunchedThem) {
  replay({});
  std::map<std::string, int> kernels;
  for (std::size_t row = 0; row < store_->kernel.size(); ++row) {
    ++kernels[region_name(store_->kernel.region[row])];
  }
  const std::map<std::string, int> expected{{"-", 1}, {"inner", 10}, {"other thread", 7}, {"replay", 9}};
  EXPECT_EQ(kernels, expected);
}

TEST_F(RecordedProgram, GraphNodesLieInTheRegionsThatCapturedThem) {
  replay({});
  std::map<std::string, int> nodes;
  for (std::size_t row = 0; row < store_->graph_node.size(); ++row) {
    ++nodes[path_name(store_->graph_node.path[row])];
  }
  const std::map<std::string, int> expected{{"captured first", 6}, {"captured second", 6}};
  EXPECT_EQ(nodes, expected);
}

TEST_F(RecordedProgram, CopiesAndFillsAreThere) {
  replay({});
  ASSERT_EQ(store_->memcpy.size(), 2U);
  EXPECT_EQ(store_->memcpy.bytes[0] + store_->memcpy.bytes[1], (1U << 20) + (1U << 16));
  EXPECT_EQ(store_->memset.size(), 4U);  // one by itself, three in the graph's replays
}

TEST_F(RecordedProgram, KernelsRanOnBothStreams) {
  replay({});
  EXPECT_GE(store_->track.size(), 3U);
  EXPECT_EQ(store_->thread.size(), 2U);
}

TEST_F(RecordedProgram, MergedGraphsHaveOneRowALaunch) {
  attribution::Settings settings;
  settings.merge_graphs = true;
  replay(settings);
  EXPECT_EQ(store_->graph_launch.size(), 3U);
  EXPECT_EQ(store_->graph_node.size(), 0U);
  EXPECT_EQ(store_->kernel.size(), 18U);
}

TEST_F(RecordedProgram, TotalsCountWhatRowsCount) {
  replay({});
  std::map<std::string, uint64_t> rows;
  for (std::size_t row = 0; row < store_->kernel.size(); ++row) {
    ++rows[std::string(store_->strings[store_->variant.name[store_->kernel.variant[row]]])];
  }
  attribution::Settings settings;
  settings.mode = attribution::Mode::Aggregate;
  replay(settings);
  std::map<std::string, uint64_t> totals;
  for (std::size_t row = 0; row < store_->work_total.size(); ++row) {
    if (store_->work_total.kind[row] == static_cast<uint32_t>(store::Work::Kernel)) {
      totals[std::string(store_->strings[store_->work_total.name[row]])] += store_->work_total.count[row];
    }
  }
  EXPECT_EQ(totals, rows);
}

}  // namespace
}  // namespace gpuscope
