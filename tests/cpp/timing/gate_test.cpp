// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "fakes/gpu_work.h"
#include "gpuscope/timing/sampler.h"

namespace gpuscope::timing {
namespace {

using fakes::GpuWork;

class Gates : public testing::Test {
 protected:
  GpuWork& gpu_ = GpuWork::reset();
  PrimaryContext context_{gpu_.table(), 0};
  Gate gate_{context_};
};

TEST_F(Gates, HoldTheStreamUntilOpened) {
  gate_.close(0, 1'000'000);
  EXPECT_TRUE(gpu_.gate_closed());
  gate_.open();
  gpu_.wait();
  EXPECT_TRUE(gate_.held());
}

TEST_F(Gates, HaveNotHeldWhenTimeIsUpFirst) {
  gate_.close(0, 1'000'000);
  gpu_.wait();
  gate_.open();
  EXPECT_FALSE(gate_.held());
}

TEST_F(Gates, CloseAgain) {
  gate_.close(0, 1'000'000);
  gate_.open();
  gpu_.wait();
  gate_.close(0, 1'000'000);
  EXPECT_TRUE(gpu_.gate_closed());
  EXPECT_FALSE(gate_.held());
}

TEST_F(Gates, MeasureTheClockWhileTheyHold) {
  gpu_.gate_ns = 50'000;
  gpu_.gate_cycles = 99'000;
  gate_.close(0, 1'000'000);
  gate_.open();
  gpu_.wait();
  EXPECT_DOUBLE_EQ(gate_.clock_hz(), 1.98e9);
}

TEST_F(Gates, MeasureTheClockWithoutHolding) {
  gate_.measure(0);
  EXPECT_FALSE(gpu_.gate_closed());
  gpu_.wait();
  EXPECT_DOUBLE_EQ(gate_.clock_hz(), 1.5e9);
}

TEST_F(Gates, TellNoClockFromTooShortAWindow) {
  gpu_.gate_ns = 9'999;
  gate_.measure(0);
  gpu_.wait();
  EXPECT_TRUE(std::isnan(gate_.clock_hz()));
}

TEST_F(Gates, TellNoClockBeforeAnyKernelHasRun) { EXPECT_TRUE(std::isnan(gate_.clock_hz())); }

TEST(Gate, GivesItsMemoryBack) {
  GpuWork& gpu = GpuWork::reset();
  {
    const PrimaryContext context(gpu.table(), 0);
    const Gate gate(context);
    EXPECT_GT(gpu.allocations, 0);
  }
  EXPECT_EQ(gpu.allocations, 0);
}

TEST(Gate, GivesItsMemoryBackWhenTheGpuCannotSeeIt) {
  GpuWork& gpu = GpuWork::reset();
  driver::Cuda table = gpu.table();
  table.mem_host_get_device_pointer = [](driver::CuPointer*, void*, unsigned) { return 1; };
  {
    const PrimaryContext context(table, 0);
    EXPECT_THROW(Gate{context}, base::CudaError);
  }
  EXPECT_EQ(gpu.allocations, 0);
}

}  // namespace
}  // namespace gpuscope::timing
