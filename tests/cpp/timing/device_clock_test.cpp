// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/device_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <optional>

#include "fakes/clock_kernel.h"
#include "fakes/cuda.h"
#include "fakes/gpu_work.h"
#include "gpuscope/base/clock.h"

namespace gpuscope::timing {
namespace {

using namespace std::chrono_literals;
using fakes::ClockKernels;

class DeviceClocks : public testing::Test {
 protected:
  DeviceClocks() {
    fakes::GpuWork::reset();
    fakes::Cuda::instance().active_contexts = 1;
  }
  ~DeviceClocks() override { gpu_.wait(); }

  ClockKernels& gpu_ = ClockKernels::instance();
};

TEST_F(DeviceClocks, ReadBothClocksAtOneMoment) {
  DeviceClock clock(gpu_.table(), 0);
  const int64_t before_ns = base::Clock::process().now_ns();
  const std::optional<DeviceClock::Reading> reading = clock.read(5s);
  const int64_t after_ns = base::Clock::process().now_ns();
  ASSERT_TRUE(reading.has_value());
  EXPECT_GE(reading->host_ns, before_ns);
  EXPECT_LE(reading->host_ns, after_ns);
  const int64_t seen_ns = static_cast<int64_t>(reading->device_ns) - ClockKernels::kAheadNs;
  EXPECT_LE(std::llabs(seen_ns - reading->host_ns), reading->width_ns);
}

TEST_F(DeviceClocks, AreReadAgain) {
  DeviceClock clock(gpu_.table(), 0);
  const auto first = clock.read(5s);
  gpu_.wait();
  const auto second = clock.read(5s);
  ASSERT_TRUE(first && second);
  EXPECT_GT(second->device_ns, first->device_ns);
}

TEST_F(DeviceClocks, DoNotWaitForAGpuThatIsBusy) {
  DeviceClock clock(gpu_.table(), 0);
  gpu_.busy = true;
  EXPECT_FALSE(clock.read(1ms).has_value());
  EXPECT_FALSE(clock.read(1ms).has_value());
  EXPECT_EQ(gpu_.launched(), 1U);  // no second one behind it
  gpu_.wait();
  EXPECT_TRUE(clock.read(5s).has_value());
}

TEST_F(DeviceClocks, LeaveTheirWordsToAKernelThatHasNotBegun) {
  const driver::Cuda table = gpu_.table();
  gpu_.busy = true;
  {
    DeviceClock clock(table, 0);
    EXPECT_FALSE(clock.read(1ms).has_value());
  }
  EXPECT_EQ(gpu_.registered, 1);
  gpu_.wait();
  { const DeviceClock clock(table, 0); }
  EXPECT_EQ(gpu_.registered, 1);
}

TEST_F(DeviceClocks, LeaveAContextAloneThatTheProgramHasReset) {
  {
    DeviceClock clock(gpu_.table(), 0);
    fakes::Cuda::instance().active_contexts = 0;
    EXPECT_TRUE(clock.was_reset());
    EXPECT_FALSE(clock.read(5s).has_value());
  }
  EXPECT_EQ(gpu_.launched(), 0U);
  EXPECT_EQ(gpu_.registered, 1);  // which went with the context
}

TEST_F(DeviceClocks, TellAContextFromTheOneThatWasReset) {
  const driver::Cuda table = gpu_.table();
  {
    DeviceClock clock(table, 0);
    EXPECT_FALSE(clock.was_reset());
    fakes::Cuda::instance().context_id = 2;  // of the program's work after the reset
    EXPECT_TRUE(clock.was_reset());
    EXPECT_FALSE(clock.read(5s).has_value());
    DeviceClock another(table, 0);
    EXPECT_TRUE(another.read(5s).has_value());
    gpu_.wait();  // the kernel may still be about to end
  }
  EXPECT_EQ(gpu_.registered, 1);
}

}  // namespace
}  // namespace gpuscope::timing
