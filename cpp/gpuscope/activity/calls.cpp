// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/calls.h"

#include <cupti.h>

#include <array>

namespace gpuscope::activity {
namespace {

#define GPUSCOPE_WATCH(id, name, kind) \
  { CUPTI_DRIVER_TRACE_CBID_##id, #name, store::CallKind::kind }

// Ids are only ever appended to CUPTI's list; those newer than the loaded library are refused by it one by one.
constexpr DriverCall kCalls[] = {
    GPUSCOPE_WATCH(cuLaunch, cuLaunch, Launch),
    GPUSCOPE_WATCH(cuLaunchGrid, cuLaunchGrid, Launch),
    GPUSCOPE_WATCH(cuLaunchGridAsync, cuLaunchGridAsync, Launch),
    GPUSCOPE_WATCH(cuLaunchKernel, cuLaunchKernel, Launch),
    GPUSCOPE_WATCH(cuLaunchKernel_ptsz, cuLaunchKernel, Launch),
    GPUSCOPE_WATCH(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, Launch),
    GPUSCOPE_WATCH(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, Launch),
    GPUSCOPE_WATCH(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, Launch),
    GPUSCOPE_WATCH(cuLaunchKernelEx, cuLaunchKernelEx, Launch),
    GPUSCOPE_WATCH(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, Launch),
    GPUSCOPE_WATCH(cuGraphLaunch, cuGraphLaunch, GraphLaunch),
    GPUSCOPE_WATCH(cuGraphLaunch_ptsz, cuGraphLaunch, GraphLaunch),
    GPUSCOPE_WATCH(cuMemcpyHtoD, cuMemcpyHtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoH, cuMemcpyDtoH, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoD, cuMemcpyDtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoA, cuMemcpyDtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoD, cuMemcpyAtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoA, cuMemcpyHtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoH, cuMemcpyAtoH, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoA, cuMemcpyAtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2D, cuMemcpy2D, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3D, cuMemcpy3D, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoAAsync, cuMemcpyHtoAAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoHAsync, cuMemcpyAtoHAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2DAsync, cuMemcpy2DAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DAsync, cuMemcpy3DAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoD_v2, cuMemcpyHtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoH_v2, cuMemcpyDtoH, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoD_v2, cuMemcpyDtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoH_v2, cuMemcpyAtoH, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoD_v2, cuMemcpyAtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoA_v2, cuMemcpyDtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoA_v2, cuMemcpyAtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2D_v2, cuMemcpy2D, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3D_v2, cuMemcpy3D, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DAsync_v2, cuMemcpy3DAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoA_v2, cuMemcpyHtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy, cuMemcpy, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAsync, cuMemcpyAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyPeer, cuMemcpyPeer, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyPeerAsync, cuMemcpyPeerAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DPeer, cuMemcpy3DPeer, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoA_v2_ptds, cuMemcpyDtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoD_v2_ptds, cuMemcpyAtoD, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoA_v2_ptds, cuMemcpyHtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoH_v2_ptds, cuMemcpyAtoH, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoA_v2_ptds, cuMemcpyAtoA, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2D_v2_ptds, cuMemcpy2D, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3D_v2_ptds, cuMemcpy3D, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy_ptds, cuMemcpy, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyPeer_ptds, cuMemcpyPeer, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DPeer_ptds, cuMemcpy3DPeer, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAsync_ptsz, cuMemcpyAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyHtoAAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyAtoHAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DPeerAsync_ptsz, cuMemcpy3DPeerAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyBatchAsync, cuMemcpyBatchAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DBatchAsync_ptsz, cuMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpyBatchAsync_v2_ptsz, cuMemcpyBatchAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemcpy3DBatchAsync_v2_ptsz, cuMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_WATCH(cuMemsetD8, cuMemsetD8, Memset),
    GPUSCOPE_WATCH(cuMemsetD16, cuMemsetD16, Memset),
    GPUSCOPE_WATCH(cuMemsetD32, cuMemsetD32, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D8, cuMemsetD2D8, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D16, cuMemsetD2D16, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D32, cuMemsetD2D32, Memset),
    GPUSCOPE_WATCH(cuMemsetD8Async, cuMemsetD8Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD16Async, cuMemsetD16Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD32Async, cuMemsetD32Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D8Async, cuMemsetD2D8Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D16Async, cuMemsetD2D16Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D32Async, cuMemsetD2D32Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD8_v2, cuMemsetD8, Memset),
    GPUSCOPE_WATCH(cuMemsetD16_v2, cuMemsetD16, Memset),
    GPUSCOPE_WATCH(cuMemsetD32_v2, cuMemsetD32, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D8_v2, cuMemsetD2D8, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D16_v2, cuMemsetD2D16, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D32_v2, cuMemsetD2D32, Memset),
    GPUSCOPE_WATCH(cuMemsetD8_v2_ptds, cuMemsetD8, Memset),
    GPUSCOPE_WATCH(cuMemsetD16_v2_ptds, cuMemsetD16, Memset),
    GPUSCOPE_WATCH(cuMemsetD32_v2_ptds, cuMemsetD32, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D8_v2_ptds, cuMemsetD2D8, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D16_v2_ptds, cuMemsetD2D16, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D32_v2_ptds, cuMemsetD2D32, Memset),
    GPUSCOPE_WATCH(cuMemsetD8Async_ptsz, cuMemsetD8Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD16Async_ptsz, cuMemsetD16Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD32Async_ptsz, cuMemsetD32Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async, Memset),
    GPUSCOPE_WATCH(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async, Memset),
    GPUSCOPE_WATCH(cuCtxSynchronize, cuCtxSynchronize, Sync),
    GPUSCOPE_WATCH(cuEventSynchronize, cuEventSynchronize, Sync),
    GPUSCOPE_WATCH(cuStreamSynchronize, cuStreamSynchronize, Sync),
    GPUSCOPE_WATCH(cuStreamWaitEvent, cuStreamWaitEvent, Sync),
    GPUSCOPE_WATCH(cuStreamWaitEvent_ptsz, cuStreamWaitEvent, Sync),
    GPUSCOPE_WATCH(cuStreamSynchronize_ptsz, cuStreamSynchronize, Sync),
    GPUSCOPE_WATCH(cuCtxSynchronize_v2, cuCtxSynchronize, Sync),
    GPUSCOPE_WATCH(cuMemAlloc, cuMemAlloc, Alloc),
    GPUSCOPE_WATCH(cuMemAllocPitch, cuMemAllocPitch, Alloc),
    GPUSCOPE_WATCH(cuMemAllocHost, cuMemAllocHost, Alloc),
    GPUSCOPE_WATCH(cuMemHostAlloc, cuMemHostAlloc, Alloc),
    GPUSCOPE_WATCH(cuMemAlloc_v2, cuMemAlloc, Alloc),
    GPUSCOPE_WATCH(cuMemAllocPitch_v2, cuMemAllocPitch, Alloc),
    GPUSCOPE_WATCH(cuMemAllocHost_v2, cuMemAllocHost, Alloc),
    GPUSCOPE_WATCH(cuMemHostRegister, cuMemHostRegister, Alloc),
    GPUSCOPE_WATCH(cuMemAllocManaged, cuMemAllocManaged, Alloc),
    GPUSCOPE_WATCH(cuMemHostRegister_v2, cuMemHostRegister, Alloc),
    GPUSCOPE_WATCH(cuMemCreate, cuMemCreate, Alloc),
    GPUSCOPE_WATCH(cuMemAllocAsync, cuMemAllocAsync, Alloc),
    GPUSCOPE_WATCH(cuMemAllocAsync_ptsz, cuMemAllocAsync, Alloc),
    GPUSCOPE_WATCH(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, Alloc),
    GPUSCOPE_WATCH(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, Alloc),
    GPUSCOPE_WATCH(cuMemFree, cuMemFree, Free),
    GPUSCOPE_WATCH(cuMemFreeHost, cuMemFreeHost, Free),
    GPUSCOPE_WATCH(cuMemFree_v2, cuMemFree, Free),
    GPUSCOPE_WATCH(cuMemHostUnregister, cuMemHostUnregister, Free),
    GPUSCOPE_WATCH(cuMemRelease, cuMemRelease, Free),
    GPUSCOPE_WATCH(cuMemFreeAsync, cuMemFreeAsync, Free),
    GPUSCOPE_WATCH(cuMemFreeAsync_ptsz, cuMemFreeAsync, Free),
    GPUSCOPE_WATCH(cuLaunchHostFunc, cuLaunchHostFunc, Other),
    GPUSCOPE_WATCH(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, Other),
};

constexpr uint32_t kIds = 1024;

constexpr std::array<uint16_t, kIds> index_calls() {
  std::array<uint16_t, kIds> index{};
  uint16_t number = 0;
  for (const DriverCall& call : kCalls) {
    index[call.callback] = ++number;
  }
  return index;
}

constexpr std::array<uint16_t, kIds> kIndex = index_calls();

}  // namespace

std::span<const DriverCall> driver_calls() noexcept { return kCalls; }

const DriverCall* find_driver_call(uint32_t callback) noexcept {
  const uint16_t number = callback < kIds ? kIndex[callback] : 0;
  return number != 0 ? &kCalls[number - 1] : nullptr;
}

}  // namespace gpuscope::activity
