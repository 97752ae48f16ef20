// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "fakes/stores.h"
#include "gpuscope/exporters/timeline.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::exporters {
namespace {

using store::MemoryKind;
using store::PoolOperation;
using Values = std::vector<uint64_t>;

class DriverMemory : public testing::Test {
 protected:
  DriverMemory() { make_.track(7); }

  store::DeviceMemories::Row piece(int64_t at_ns, int64_t bytes, uint64_t address,
                                   MemoryKind kind = MemoryKind::Device) {
    return {.start_ns = at_ns, .bytes = bytes, .address = address, .kind = static_cast<uint8_t>(kind)};
  }
  void add(const store::DeviceMemories::Row& row) { make_.store().device_memory.append(row); }
  std::map<std::string, Values> counted() {
    std::map<std::string, Values> values;
    for (const MemoryCounter& counter : count_driver_memory(make_.store())) {
      for (const MemoryCounter::Point& point : counter.points) {
        values[counter.name].push_back(point.bytes);
      }
    }
    return values;
  }

  fakes::StoreBuilder make_;
};

TEST_F(DriverMemory, IsCountedFromNothing) {
  add(piece(10, 100, 1));
  add(piece(20, 50, 2));
  add(piece(30, -100, 1));
  EXPECT_EQ(counted()["GPU 0 memory, driver"], (Values{0, 100, 150, 50}));
}

TEST_F(DriverMemory, GivenBackLayThereFromTheBeginning) {
  add(piece(10, 100, 1));
  add(piece(20, -70, 2));
  EXPECT_EQ(counted()["GPU 0 memory, driver"], (Values{70, 170, 100}));
}

TEST_F(DriverMemory, IsCountedInTheOrderOfTime) {
  add(piece(30, -100, 1));
  add(piece(10, 100, 1));
  EXPECT_EQ(counted()["GPU 0 memory, driver"], (Values{0, 100, 0}));
}

TEST_F(DriverMemory, OfEachKindHasItsOwnCounter) {
  add(piece(10, 1, 1));
  add(piece(10, 2, 2, MemoryKind::Array));
  add(piece(10, 4, 3, MemoryKind::Managed));
  add(piece(10, 8, 4, MemoryKind::Pinned));
  const auto values = counted();
  EXPECT_EQ(values.at("GPU 0 memory, driver"), (Values{0, 1, 3}));
  EXPECT_EQ(values.at("GPU 0 managed memory, driver"), (Values{0, 4}));
  EXPECT_EQ(values.at("pinned memory, driver"), (Values{0, 8}));
}

TEST_F(DriverMemory, OfEachDeviceHasItsOwnCounter) {
  make_.track(7, 1, 1);
  add(piece(10, 1, 1));
  auto second = piece(10, 2, 2);
  second.track = 1;
  add(second);
  const auto values = counted();
  EXPECT_EQ(values.at("GPU 0 memory, driver"), (Values{0, 1}));
  EXPECT_EQ(values.at("GPU 1 memory, driver"), (Values{0, 2}));
}

TEST_F(DriverMemory, OfAPoolIsWhatItHoldsAndHasGivenOut) {
  auto pooled = piece(20, 64, 1);
  pooled.pool = 0x9000;
  pooled.pool_reserved_bytes = 1000;
  pooled.pool_used_bytes = 64;
  add(pooled);
  make_.store().memory_pool.append(
      {.start_ns = 10, .pool = 0x9000, .operation = static_cast<uint8_t>(PoolOperation::Created)});
  make_.store().memory_pool.append({.start_ns = 30,
                                    .pool = 0x9000,
                                    .reserved_bytes = 1000,
                                    .operation = static_cast<uint8_t>(PoolOperation::Destroyed)});
  const auto values = counted();
  EXPECT_EQ(values.at("GPU 0 pool 0x9000 reserved"), (Values{0, 1000, 0}));
  EXPECT_EQ(values.at("GPU 0 pool 0x9000 used"), (Values{0, 64, 0}));
}

TEST_F(DriverMemory, OfAPoolThatTellsNothingHasNoCounter) {
  auto imported = piece(20, 64, 1);
  imported.pool = 0x9000;
  add(imported);
  make_.store().memory_pool.append({.start_ns = 10, .pool = 0x9000});
  EXPECT_EQ(counted().size(), 1U);
}

}  // namespace
}  // namespace gpuscope::exporters
