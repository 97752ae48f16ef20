// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/calls.h"

#include <cupti.h>
#include <gtest/gtest.h>

namespace gpuscope::activity {
namespace {

using base::AllocationKind;
using base::AllocationStep;
using base::DriverAllocation;

constexpr uint64_t kAddress = 0x7F0000000000;

struct Decoded {
  AllocationStep step;
  AllocationKind kind;
  uint64_t address;
  uint64_t handle;
  uint64_t bytes;
  bool operator==(const Decoded&) const = default;
};

Decoded essence(const std::optional<DriverAllocation>& allocation) {
  return allocation.has_value()
             ? Decoded{allocation->step, allocation->kind, allocation->address, allocation->handle, allocation->bytes}
             : Decoded{};
}

// In parentheses, as the braces' commas would part the arguments of the macros around.
#define GPUSCOPE_DECODE(name, result, ...)                                     \
  ([&] {                                                                       \
    name##_params params __VA_ARGS__;                                          \
    return decode_allocation(CUPTI_DRIVER_TRACE_CBID_##name, &params, result); \
  }())

Decoded taken(AllocationKind kind, uint64_t bytes, uint64_t address = kAddress) {
  return {AllocationStep::Allocated, kind, address, 0, bytes};
}
Decoded released(AllocationKind kind) { return {AllocationStep::Released, kind, kAddress, 0, 0}; }

class AllocationCalls : public testing::Test {
 protected:
  CUdeviceptr address_ = kAddress;
  void* host_ = reinterpret_cast<void*>(kAddress);
  CUstream stream_ = reinterpret_cast<CUstream>(7);
  CUmemoryPool pool_ = reinterpret_cast<CUmemoryPool>(9);
};

TEST_F(AllocationCalls, TakeLinearMemory) {
  CUdeviceptr_v1 small = 4096;
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAlloc_v2, 0, {&address_, 100})), taken(AllocationKind::Device, 100));
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAlloc, 0, {&small, 100})), taken(AllocationKind::Device, 100, 4096));
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAllocManaged, 0, {&address_, 100, 1})), taken(AllocationKind::Managed, 100));
}

TEST_F(AllocationCalls, TakeRowsWithTheirPitch) {
  size_t pitch = 512;
  unsigned small_pitch = 512;
  CUdeviceptr_v1 small = 4096;
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAllocPitch_v2, 0, {&address_, &pitch, 300, 10, 4})),
            taken(AllocationKind::Device, 5120));
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAllocPitch, 0, {&small, &small_pitch, 300, 10, 4})),
            taken(AllocationKind::Device, 5120, 4096));
}

TEST_F(AllocationCalls, CountTheAskedBytesOfRowsThatWereRefused) {
  size_t unwritten = 1;
  EXPECT_EQ(GPUSCOPE_DECODE(cuMemAllocPitch_v2, 2, {&address_, &unwritten, 300, 10, 4})->bytes, 3000U);
}

TEST_F(AllocationCalls, TakePinnedMemoryOfTheHost) {
  const Decoded expected = taken(AllocationKind::Pinned, 100);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAllocHost_v2, 0, {&host_, 100})), expected);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAllocHost, 0, {&host_, 100})), expected);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemHostAlloc, 0, {&host_, 100, 0})), expected);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemHostRegister_v2, 0, {host_, 100, 0})), expected);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemHostRegister, 0, {host_, 100, 0})), expected);
  EXPECT_EQ(GPUSCOPE_DECODE(cuMemHostAlloc, 0, {&host_, 100, 0})->device, base::kHostMemory);
}

TEST_F(AllocationCalls, TakeFromPoolsInTheOrderOfAStream) {
  const Decoded expected = taken(AllocationKind::Pool, 100);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAllocAsync, 0, {&address_, 100, stream_})), expected);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAllocAsync_ptsz, 0, {&address_, 100, stream_})), expected);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemAllocFromPoolAsync_ptsz, 0, {&address_, 100, pool_, stream_})), expected);
  const auto allocation = GPUSCOPE_DECODE(cuMemAllocFromPoolAsync, 0, {&address_, 100, pool_, stream_});
  EXPECT_EQ(essence(allocation), expected);
  EXPECT_EQ(allocation->pool, 9U);
  EXPECT_EQ(allocation->stream, 7U);
}

TEST_F(AllocationCalls, ReleaseByAddress) {
  const Decoded device = released(AllocationKind::Device);
  const Decoded pinned = released(AllocationKind::Pinned);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemFree_v2, 0, {kAddress})), device);
  EXPECT_EQ(GPUSCOPE_DECODE(cuMemFree, 0, {4096})->address, 4096U);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemFreeAsync, 0, {kAddress, stream_})), device);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemFreeAsync_ptsz, 0, {kAddress, stream_})), device);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemFreeHost, 0, {host_})), pinned);
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemHostUnregister, 0, {host_})), pinned);
}

TEST_F(AllocationCalls, DoNothingWhenNothingIsReleased) {
  EXPECT_FALSE(GPUSCOPE_DECODE(cuMemFree_v2, 0, {0}).has_value());
  EXPECT_FALSE(GPUSCOPE_DECODE(cuMemFreeHost, 0, {nullptr}).has_value());
}

TEST_F(AllocationCalls, TakeNothingWhereNothingWasGiven) {
  address_ = 0;
  EXPECT_FALSE(GPUSCOPE_DECODE(cuMemAllocAsync, 0, {&address_, 0, stream_}).has_value());
}

TEST_F(AllocationCalls, DoNothingWhenAReleaseFails) {
  EXPECT_FALSE(GPUSCOPE_DECODE(cuMemFree_v2, 1, {kAddress}).has_value());
  EXPECT_FALSE(GPUSCOPE_DECODE(cuMemRelease, 1, {5}).has_value());
  EXPECT_FALSE(GPUSCOPE_DECODE(cuMemMap, 1, {kAddress, 100, 0, 5, 0}).has_value());
  EXPECT_FALSE(GPUSCOPE_DECODE(cuArrayDestroy, 1, {reinterpret_cast<CUarray>(5)}).has_value());
}

TEST_F(AllocationCalls, TakeVirtualMemoryOfTheDeviceThatTheyName) {
  CUmemGenericAllocationHandle handle = 5;
  CUmemAllocationProp properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {3}};
  auto allocation = GPUSCOPE_DECODE(cuMemCreate, 0, {&handle, 100, &properties, 0});
  EXPECT_EQ(essence(allocation), (Decoded{AllocationStep::Allocated, AllocationKind::Virtual, 0, 5, 100}));
  EXPECT_EQ(allocation->device, 3);
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {1}};
  allocation = GPUSCOPE_DECODE(cuMemCreate, 0, {&handle, 100, &properties, 0});
  EXPECT_EQ(allocation->device, base::kHostMemory);
}

TEST_F(AllocationCalls, MoveVirtualMemory) {
  CUmemGenericAllocationHandle handle = 5;
  constexpr AllocationKind kVirtual = AllocationKind::Virtual;
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemMap, 0, {kAddress, 100, 0, 5, 0})),
            (Decoded{AllocationStep::Mapped, kVirtual, kAddress, 5, 100}));
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemUnmap, 0, {kAddress, 100})),
            (Decoded{AllocationStep::Unmapped, kVirtual, kAddress, 0, 100}));
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemRetainAllocationHandle, 0, {&handle, host_})),
            (Decoded{AllocationStep::Retained, kVirtual, 0, 5, 0}));
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuMemRelease, 0, {5})), (Decoded{AllocationStep::Released, kVirtual, 0, 5, 0}));
}

TEST_F(AllocationCalls, TakeArraysByTheirElements) {
  CUarray array = reinterpret_cast<CUarray>(5);
  CUDA_ARRAY_DESCRIPTOR flat{16, 0, CU_AD_FORMAT_HALF, 2};
  CUDA_ARRAY3D_DESCRIPTOR cube{16, 8, 4, CU_AD_FORMAT_FLOAT, 4, 0};
  constexpr AllocationKind kArray = AllocationKind::Array;
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuArrayCreate_v2, 0, {&array, &flat})),
            (Decoded{AllocationStep::Allocated, kArray, 0, 5, 64}));
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuArray3DCreate_v2, 0, {&array, &cube})),
            (Decoded{AllocationStep::Allocated, kArray, 0, 5, 8192}));
  EXPECT_EQ(essence(GPUSCOPE_DECODE(cuArrayDestroy, 0, {array})), (Decoded{AllocationStep::Released, kArray, 0, 5, 0}));
}

TEST_F(AllocationCalls, TakeMipmapsWithAllTheirLevels) {
  CUmipmappedArray array = reinterpret_cast<CUmipmappedArray>(5);
  CUDA_ARRAY3D_DESCRIPTOR flat{8, 8, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  EXPECT_EQ(GPUSCOPE_DECODE(cuMipmappedArrayCreate, 0, {&array, &flat, 3})->bytes, 64U + 16 + 4);
  CUDA_ARRAY3D_DESCRIPTOR layered{8, 8, 10, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED};
  EXPECT_EQ(GPUSCOPE_DECODE(cuMipmappedArrayCreate, 0, {&array, &layered, 2})->bytes, 640U + 160);
  EXPECT_EQ(GPUSCOPE_DECODE(cuMipmappedArrayDestroy, 0, {array})->handle, 5U);
}

TEST_F(AllocationCalls, LeaveOutArraysWhoseMemoryCannotBeKnown) {
  CUarray array = reinterpret_cast<CUarray>(5);
  CUDA_ARRAY_DESCRIPTOR planes{16, 8, CU_AD_FORMAT_NV12, 3};
  CUDA_ARRAY3D_DESCRIPTOR sparse{16, 8, 4, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE};
  EXPECT_FALSE(GPUSCOPE_DECODE(cuArrayCreate_v2, 0, {&array, &planes}).has_value());
  EXPECT_FALSE(GPUSCOPE_DECODE(cuArray3DCreate_v2, 0, {&array, &sparse}).has_value());
}

TEST_F(AllocationCalls, TellARefusalWithoutReadingWhatWasNotWritten) {
  const auto allocation = GPUSCOPE_DECODE(cuMemAlloc_v2, 2, {&address_, 100});
  EXPECT_EQ(essence(allocation), taken(AllocationKind::Device, 100, 0));
  EXPECT_EQ(allocation->result, 2);
  EXPECT_EQ(GPUSCOPE_DECODE(cuMemAlloc_v2, 1, {nullptr, 100})->address, 0U);
}

TEST_F(AllocationCalls, AreNoOtherCalls) {
  int anything = 0;
  EXPECT_FALSE(is_allocation_call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
  EXPECT_FALSE(is_allocation_call(UINT32_MAX));
  EXPECT_FALSE(decode_allocation(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &anything, 0).has_value());
}

TEST_F(AllocationCalls, AreAllThatARecordingKnowsOf) {
  for (const DriverCall& call : driver_calls()) {
    const bool is_of_a_pool = call.name.starts_with("cuMemPool");  // which takes and gives back no piece
    if (!is_of_a_pool && (call.kind == store::CallKind::Alloc || call.kind == store::CallKind::Free)) {
      EXPECT_TRUE(is_allocation_call(call.callback)) << call.name;
    }
  }
}

}  // namespace
}  // namespace gpuscope::activity
