// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpuscope/exporters/labels.h"

namespace gpuscope::exporters {
namespace {

constexpr uint32_t kMultiprocessors = 100;

store::Variants::Row launch(uint32_t blocks, uint32_t threads, uint32_t registers, uint32_t shared_bytes = 0) {
  store::Variants::Row variant{};
  variant.grid_x = blocks;
  variant.block_x = threads;
  variant.grid_y = variant.grid_z = variant.block_y = variant.block_z = 1;
  variant.registers = registers;
  variant.dynamic_shared_bytes = shared_bytes;
  return variant;
}

// The figures are those of CUDA 13.0's cuda_occupancy.h for compute capability 9.0.
int percent(const store::Variants::Row& variant) {
  const auto found = occupancy(variant, kMultiprocessors, *multiprocessor_limits(9, 0));
  return found ? found->percent : -1;
}

TEST(Occupancy, IsBoundByTheThreadsOfAMultiprocessor) { EXPECT_EQ(percent(launch(10'000, 1024, 16)), 100); }

TEST(Occupancy, IsBoundByItsBlocks) { EXPECT_EQ(percent(launch(10'000, 32, 16)), 50); }

TEST(Occupancy, IsBoundByItsRegisters) {
  EXPECT_EQ(percent(launch(10'000, 256, 64)), 50);
  EXPECT_EQ(percent(launch(10'000, 256, 65)), 38);  // a warp's registers come in steps of 256
}

TEST(Occupancy, IsBoundByItsSharedMemory) {
  EXPECT_EQ(percent(launch(10'000, 128, 16, 56 * 1024)), 25);  // the system's 1 KiB fits beside four blocks
  EXPECT_EQ(percent(launch(10'000, 128, 16, 57 * 1024)), 19);  // ... and not beside four of these
}

TEST(Occupancy, IsBoundByTheGrid) { EXPECT_EQ(percent(launch(kMultiprocessors / 2, 1024, 16)), 25); }

TEST(Occupancy, CountsBlocksAndWarpsOfTheWholeGrid) {
  const auto found = occupancy(launch(250, 96, 16), kMultiprocessors, *multiprocessor_limits(9, 0));
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->blocks_per_multiprocessor, 2.5);
  EXPECT_DOUBLE_EQ(found->warps_per_multiprocessor, 7.5);
}

TEST(Occupancy, IsNotGuessedForWhatCannotRun) {
  EXPECT_EQ(percent(launch(1, 0, 16)), -1);
  EXPECT_EQ(percent(launch(1, 4096, 16)), -1);
  EXPECT_EQ(percent(launch(1, 1024, 255)), -1);
  EXPECT_EQ(percent(launch(1, 128, 16, UINT32_MAX)), -1);
  EXPECT_FALSE(occupancy(launch(1, 128, UINT32_MAX), kMultiprocessors, *multiprocessor_limits(9, 0)));
  EXPECT_FALSE(occupancy(launch(1, 128, 16), 0, *multiprocessor_limits(9, 0)));
}

TEST(Occupancy, IsNotGuessedForUnknownGpus) {
  EXPECT_FALSE(multiprocessor_limits(6, 0));
  EXPECT_FALSE(multiprocessor_limits(99, 9));
  EXPECT_FALSE(multiprocessor_limits(0, 90));
  EXPECT_FALSE(multiprocessor_limits(UINT32_MAX, UINT32_MAX));
}

}  // namespace
}  // namespace gpuscope::exporters
