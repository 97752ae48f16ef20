// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fakes/gpu_work.h"
#include "gpuscope/nvml/device.h"

namespace gpuscope::nvml {
namespace {

using fakes::GpuWork;

// An H200 as its driver describes it.
const std::map<int, int> kH200{{13, 1'980'000},  {16, 132}, {36, 3'201'000}, {37, 6144},
                               {38, 62'914'560}, {75, 9},   {76, 0}};

Limits with(int attribute, int value) {
  GpuWork& gpu = GpuWork::reset();
  gpu.attributes = kH200;
  gpu.attributes[attribute] = value;
  return read_limits(gpu.table(), 0);
}

TEST(Limits, AreThoseOfTheDataSheet) {
  const Limits limits = with(75, 9);
  EXPECT_NEAR(limits.memory_bandwidth.value(), 4.9e12, 0.05e12);
  EXPECT_NEAR(limits.fp32_flops.value(), 67e12, 0.5e12);
  EXPECT_EQ(limits.multiprocessors, 132U);
  EXPECT_EQ(limits.l2_bytes, 62'914'560U);
}

TEST(Limits, KnowNoBandwidthWhenTheDriverKeepsTheMemorysClock) {
  EXPECT_FALSE(with(36, 0).memory_bandwidth.has_value());
}

TEST(Limits, KnowNoOperationsOfACapabilityToCome) {
  const Limits limits = with(75, 99);
  EXPECT_FALSE(limits.fp32_flops.has_value());
  EXPECT_EQ(limits.sm_hz_max, 1.98e9);
}

TEST(Limits, CountHalfTheLanesWhereThereAreHalf) {
  EXPECT_DOUBLE_EQ(with(75, 8).fp32_flops.value() * 2, with(75, 9).fp32_flops.value());
}

}  // namespace
}  // namespace gpuscope::nvml
