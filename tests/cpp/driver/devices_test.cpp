// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes/cuda.h"
#include "fakes/gpu_work.h"
#include "gpuscope/base/errors.h"

namespace gpuscope::driver {
namespace {

using fakes::GpuWork;
using testing::ElementsAre;
using testing::IsEmpty;

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

class MemoryPools : public testing::Test {
 protected:
  MemoryPools() {
    fake_.active_contexts = 1;
    cuda_.default_memory_pool = [](CuMemoryPool* pool, CuDevice) {
      *pool = reinterpret_cast<CuMemoryPool>(uintptr_t{0x1000});
      return 0;
    };
    cuda_.current_memory_pool = cuda_.default_memory_pool;
    cuda_.memory_pool_attribute = [](CuMemoryPool pool, int attribute, void* value) {
      *static_cast<uint64_t*>(value) = reinterpret_cast<uintptr_t>(pool) + static_cast<unsigned>(attribute);
      return attribute >= 5 && attribute <= 8 ? 0 : 1;
    };
  }

  fakes::Cuda& fake_ = fakes::Cuda::reset();
  Cuda cuda_ = fake_.table();
};

TEST_F(MemoryPools, HoldWhatTheDriverSays) {
  const std::vector<MemoryPool> pools = read_memory_pools(cuda_, 0);
  ASSERT_EQ(pools.size(), 1U);
  EXPECT_EQ(pools[0].handle, 0x1000U);
  EXPECT_EQ(pools[0].reserved, 0x1005U);
  EXPECT_EQ(pools[0].peak_reserved, 0x1006U);
  EXPECT_EQ(pools[0].used, 0x1007U);
  EXPECT_EQ(pools[0].peak_used, 0x1008U);
}

TEST_F(MemoryPools, AreTwoWhereTheProgramSetAnother) {
  cuda_.current_memory_pool = [](CuMemoryPool* pool, CuDevice) {
    *pool = reinterpret_cast<CuMemoryPool>(uintptr_t{0x2000});
    return 0;
  };
  EXPECT_EQ(read_memory_pools(cuda_, 0).size(), 2U);
}

TEST_F(MemoryPools, AreNotAskedForWithoutAContext) {
  fake_.active_contexts = 0;
  EXPECT_THAT(read_memory_pools(cuda_, 0), IsEmpty());
}

TEST_F(MemoryPools, AreNoneWhereTheDriverHasNone) {
  cuda_.default_memory_pool = [](CuMemoryPool*, CuDevice) { return 801; };
  cuda_.current_memory_pool = nullptr;
  EXPECT_THAT(read_memory_pools(cuda_, 0), IsEmpty());
  cuda_.memory_pool_attribute = nullptr;
  EXPECT_THAT(read_memory_pools(cuda_, 0), IsEmpty());
}

TEST_F(MemoryPools, AreNoneWithoutADriver) { EXPECT_THAT(read_memory_pools({}, 0), IsEmpty()); }

TEST(DevicesInUse, AreThoseWithAContext) {
  fakes::Cuda& fake = fakes::Cuda::reset();
  fake.devices = 3;
  Cuda cuda = fake.table();
  cuda.primary_context_state = [](CuDevice device, unsigned*, int* active) {
    *active = device == 1 ? 0 : 1;
    return 0;
  };
  EXPECT_THAT(devices_in_use(cuda), ElementsAre(0, 2));
}

TEST(DevicesInUse, AreNoneBeforeTheDriverIsInitialised) {
  fakes::Cuda::reset().active_contexts = 1;
  fakes::Cuda::instance().initialized = false;
  EXPECT_THAT(devices_in_use(fakes::Cuda::instance().table()), IsEmpty());
  EXPECT_THAT(devices_in_use({}), IsEmpty());
}

TEST(FindDevice, SaysWhyThereIsNone) { EXPECT_THROW(find_device({}, 0), base::NotAvailable); }

}  // namespace
}  // namespace gpuscope::driver
