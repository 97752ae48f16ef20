// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/gpu_clocks.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gpuscope::attribution {
namespace {

// What the process's clock shows when the device's shows this: 7 us ahead, and 12 millionths faster.
int64_t host_ns(uint64_t device_ns) {
  return static_cast<int64_t>(device_ns) + 7'000 + std::llround(static_cast<double>(device_ns) * 12e-6);
}

void read(GpuClocks& clocks, uint64_t device_ns, int64_t off_ns = 0) {
  clocks.add(0, {device_ns, host_ns(device_ns) + off_ns});
}

TEST(GpuClocks, LeaveTimesOfUnknownDevicesAsTheyAre) {
  GpuClocks clocks;
  read(clocks, 1'000'000);
  EXPECT_TRUE(clocks.knows(0));
  EXPECT_FALSE(clocks.knows(1));
  EXPECT_EQ(clocks.to_ns(1, 5'000), 5'000);
}

TEST(GpuClocks, CountFromTheLatestReading) {
  GpuClocks clocks;
  read(clocks, 1'000'000'000);
  EXPECT_EQ(clocks.to_ns(0, 1'000'000'000), host_ns(1'000'000'000));
  EXPECT_EQ(clocks.to_ns(0, 999'999'900), host_ns(1'000'000'000) - 100);
}

TEST(GpuClocks, LearnHowMuchFasterOneRuns) {
  GpuClocks clocks;
  read(clocks, 1'000'000'000);
  read(clocks, 3'000'000'000);
  EXPECT_NEAR(clocks.rate(0), 12e-6, 1e-9);
  EXPECT_NEAR(static_cast<double>(clocks.to_ns(0, 7'000'000'000) - host_ns(7'000'000'000)), 0.0, 2.0);
}

TEST(GpuClocks, TakeNoRateFromReadingsThatAreNearEachOther) {
  GpuClocks clocks;
  read(clocks, 1'000'000'000);
  read(clocks, 1'000'100'000, 400);  // which would be four thousandths
  EXPECT_EQ(clocks.rate(0), 0.0);
}

TEST(GpuClocks, FollowARateThatChanges) {
  GpuClocks clocks;
  uint64_t device_ns = 0;
  int64_t host = 0;
  for (int number = 0; number < 200; ++number) {
    const int64_t extra_ns = number < 100 ? 40'000 : 80'000;  // of 4 s: 10 and 20 millionths
    device_ns += 4'000'000'000;
    host += 4'000'000'000 + extra_ns;
    clocks.add(0, {device_ns, host});
  }
  EXPECT_NEAR(clocks.rate(0), 20e-6, 1e-9);
  EXPECT_EQ(clocks.to_ns(0, device_ns), host);
}

TEST(GpuClocks, KeepADeviceApartFromTheOthers) {
  GpuClocks clocks;
  clocks.add(2, {1'000, 50'000});
  clocks.add(0, {1'000, 90'000});
  EXPECT_EQ(clocks.to_ns(2, 1'500), 50'500);
  EXPECT_EQ(clocks.to_ns(0, 1'500), 90'500);
}

TEST(GpuClocks, TellWhetherTheyWereReadWithinASpan) {
  GpuClocks clocks;
  read(clocks, 1'000);
  EXPECT_TRUE(clocks.was_read_between(0, 1'000, 1'000));
  EXPECT_FALSE(clocks.was_read_between(0, 1'001, 9'000));
  EXPECT_FALSE(clocks.was_read_between(1, 0, 9'000));
}

}  // namespace
}  // namespace gpuscope::attribution
