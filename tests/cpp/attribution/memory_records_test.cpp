// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/memory_records.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "fakes/cupti_records.h"
#include "gpuscope/attribution/gpu_records.h"

namespace gpuscope::attribution {
namespace {

using Awaits = Correlations::Awaits;
using fakes::memory_record;
using fakes::pool_record;
using fakes::Record;
using store::kNone;
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
  store::Store store;
  state_->dictionaries.copy_into(store);
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
