// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/calls.h"

#include <cupti.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace gpuscope::activity {
namespace {

#define GPUSCOPE_DRIVER_CALL(id, name, kind) \
  { CUPTI_DRIVER_TRACE_CBID_##id, #name, store::CallKind::kind }

// Ids are only ever appended to CUPTI's list; those newer than the loaded library are refused by it one by one.
constexpr DriverCall kDriverCalls[] = {
    GPUSCOPE_DRIVER_CALL(cuLaunch, cuLaunch, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchGrid, cuLaunchGrid, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchGridAsync, cuLaunchGridAsync, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchKernel, cuLaunchKernel, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchKernel_ptsz, cuLaunchKernel, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchKernelEx, cuLaunchKernelEx, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, Launch),
    GPUSCOPE_DRIVER_CALL(cuGraphLaunch, cuGraphLaunch, GraphLaunch),
    GPUSCOPE_DRIVER_CALL(cuGraphLaunch_ptsz, cuGraphLaunch, GraphLaunch),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoD, cuMemcpyHtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoH, cuMemcpyDtoH, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoD, cuMemcpyDtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoA, cuMemcpyDtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoD, cuMemcpyAtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoA, cuMemcpyHtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoH, cuMemcpyAtoH, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoA, cuMemcpyAtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2D, cuMemcpy2D, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3D, cuMemcpy3D, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoAAsync, cuMemcpyHtoAAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoHAsync, cuMemcpyAtoHAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2DAsync, cuMemcpy2DAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DAsync, cuMemcpy3DAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoD_v2, cuMemcpyHtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoH_v2, cuMemcpyDtoH, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoD_v2, cuMemcpyDtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoH_v2, cuMemcpyAtoH, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoD_v2, cuMemcpyAtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoA_v2, cuMemcpyDtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoA_v2, cuMemcpyAtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2D_v2, cuMemcpy2D, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3D_v2, cuMemcpy3D, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DAsync_v2, cuMemcpy3DAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoA_v2, cuMemcpyHtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy, cuMemcpy, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAsync, cuMemcpyAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyPeer, cuMemcpyPeer, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyPeerAsync, cuMemcpyPeerAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DPeer, cuMemcpy3DPeer, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoA_v2_ptds, cuMemcpyDtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoD_v2_ptds, cuMemcpyAtoD, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoA_v2_ptds, cuMemcpyHtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoH_v2_ptds, cuMemcpyAtoH, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoA_v2_ptds, cuMemcpyAtoA, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2D_v2_ptds, cuMemcpy2D, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3D_v2_ptds, cuMemcpy3D, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy_ptds, cuMemcpy, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyPeer_ptds, cuMemcpyPeer, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DPeer_ptds, cuMemcpy3DPeer, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAsync_ptsz, cuMemcpyAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyHtoAAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyAtoHAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DPeerAsync_ptsz, cuMemcpy3DPeerAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyBatchAsync, cuMemcpyBatchAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DBatchAsync_ptsz, cuMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpyBatchAsync_v2_ptsz, cuMemcpyBatchAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DBatchAsync_v2_ptsz, cuMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_DRIVER_CALL(cuMemsetD8, cuMemsetD8, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD16, cuMemsetD16, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD32, cuMemsetD32, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D8, cuMemsetD2D8, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D16, cuMemsetD2D16, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D32, cuMemsetD2D32, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD8Async, cuMemsetD8Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD16Async, cuMemsetD16Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD32Async, cuMemsetD32Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D8Async, cuMemsetD2D8Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D16Async, cuMemsetD2D16Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D32Async, cuMemsetD2D32Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD8_v2, cuMemsetD8, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD16_v2, cuMemsetD16, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD32_v2, cuMemsetD32, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D8_v2, cuMemsetD2D8, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D16_v2, cuMemsetD2D16, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D32_v2, cuMemsetD2D32, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD8_v2_ptds, cuMemsetD8, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD16_v2_ptds, cuMemsetD16, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD32_v2_ptds, cuMemsetD32, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D8_v2_ptds, cuMemsetD2D8, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D16_v2_ptds, cuMemsetD2D16, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D32_v2_ptds, cuMemsetD2D32, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD8Async_ptsz, cuMemsetD8Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD16Async_ptsz, cuMemsetD16Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD32Async_ptsz, cuMemsetD32Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async, Memset),
    GPUSCOPE_DRIVER_CALL(cuCtxSynchronize, cuCtxSynchronize, Sync),
    GPUSCOPE_DRIVER_CALL(cuEventSynchronize, cuEventSynchronize, Sync),
    GPUSCOPE_DRIVER_CALL(cuStreamSynchronize, cuStreamSynchronize, Sync),
    GPUSCOPE_DRIVER_CALL(cuStreamWaitEvent, cuStreamWaitEvent, Sync),
    GPUSCOPE_DRIVER_CALL(cuStreamWaitEvent_ptsz, cuStreamWaitEvent, Sync),
    GPUSCOPE_DRIVER_CALL(cuStreamSynchronize_ptsz, cuStreamSynchronize, Sync),
    GPUSCOPE_DRIVER_CALL(cuCtxSynchronize_v2, cuCtxSynchronize, Sync),
    GPUSCOPE_DRIVER_CALL(cuMemAlloc, cuMemAlloc, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocPitch, cuMemAllocPitch, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocHost, cuMemAllocHost, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemHostAlloc, cuMemHostAlloc, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAlloc_v2, cuMemAlloc, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocPitch_v2, cuMemAllocPitch, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocHost_v2, cuMemAllocHost, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemHostRegister, cuMemHostRegister, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocManaged, cuMemAllocManaged, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemHostRegister_v2, cuMemHostRegister, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemCreate, cuMemCreate, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocAsync, cuMemAllocAsync, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocAsync_ptsz, cuMemAllocAsync, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemFree, cuMemFree, Free),
    GPUSCOPE_DRIVER_CALL(cuMemFreeHost, cuMemFreeHost, Free),
    GPUSCOPE_DRIVER_CALL(cuMemFree_v2, cuMemFree, Free),
    GPUSCOPE_DRIVER_CALL(cuMemHostUnregister, cuMemHostUnregister, Free),
    GPUSCOPE_DRIVER_CALL(cuMemRelease, cuMemRelease, Free),
    GPUSCOPE_DRIVER_CALL(cuMemFreeAsync, cuMemFreeAsync, Free),
    GPUSCOPE_DRIVER_CALL(cuMemFreeAsync_ptsz, cuMemFreeAsync, Free),
    GPUSCOPE_DRIVER_CALL(cuMemPoolCreate, cuMemPoolCreate, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemPoolTrimTo, cuMemPoolTrimTo, Free),
    GPUSCOPE_DRIVER_CALL(cuMemPoolDestroy, cuMemPoolDestroy, Free),
    GPUSCOPE_DRIVER_CALL(cuLaunchHostFunc, cuLaunchHostFunc, Other),
    GPUSCOPE_DRIVER_CALL(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, Other),
};

#define GPUSCOPE_RUNTIME_CALL(id, name, kind) \
  { CUPTI_RUNTIME_TRACE_CBID_##id + kRuntimeCalls, #name, store::CallKind::kind }

constexpr DriverCall kRuntimeCallTable[] = {
    GPUSCOPE_RUNTIME_CALL(cudaLaunch_v3020, cudaLaunch, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchKernel_v7000, cudaLaunchKernel, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaLaunch_ptsz_v7000, cudaLaunch, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchKernel_ptsz_v7000, cudaLaunchKernel, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchCooperativeKernel_v9000, cudaLaunchCooperativeKernel, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchCooperativeKernel_ptsz_v9000, cudaLaunchCooperativeKernel, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchCooperativeKernelMultiDevice_v9000, cudaLaunchCooperativeKernelMultiDevice, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchKernelExC_v11060, cudaLaunchKernelExC, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchKernelExC_ptsz_v11060, cudaLaunchKernelExC, Launch),
    GPUSCOPE_RUNTIME_CALL(__cudaLaunchKernel_v13000, cudaLaunchKernel, Launch),
    GPUSCOPE_RUNTIME_CALL(__cudaLaunchKernel_ptsz_v13000, cudaLaunchKernel, Launch),
    GPUSCOPE_RUNTIME_CALL(cudaGraphLaunch_v10000, cudaGraphLaunch, GraphLaunch),
    GPUSCOPE_RUNTIME_CALL(cudaGraphLaunch_ptsz_v10000, cudaGraphLaunch, GraphLaunch),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy_v3020, cudaMemcpy, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2D_v3020, cudaMemcpy2D, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToArray_v3020, cudaMemcpyToArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DToArray_v3020, cudaMemcpy2DToArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromArray_v3020, cudaMemcpyFromArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DFromArray_v3020, cudaMemcpy2DFromArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyArrayToArray_v3020, cudaMemcpyArrayToArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DArrayToArray_v3020, cudaMemcpy2DArrayToArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToSymbol_v3020, cudaMemcpyToSymbol, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromSymbol_v3020, cudaMemcpyFromSymbol, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyAsync_v3020, cudaMemcpyAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToArrayAsync_v3020, cudaMemcpyToArrayAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromArrayAsync_v3020, cudaMemcpyFromArrayAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DAsync_v3020, cudaMemcpy2DAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DToArrayAsync_v3020, cudaMemcpy2DToArrayAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DFromArrayAsync_v3020, cudaMemcpy2DFromArrayAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToSymbolAsync_v3020, cudaMemcpyToSymbolAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromSymbolAsync_v3020, cudaMemcpyFromSymbolAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3D_v3020, cudaMemcpy3D, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DAsync_v3020, cudaMemcpy3DAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyPeer_v4000, cudaMemcpyPeer, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyPeerAsync_v4000, cudaMemcpyPeerAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DPeer_v4000, cudaMemcpy3DPeer, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DPeerAsync_v4000, cudaMemcpy3DPeerAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy_ptds_v7000, cudaMemcpy, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2D_ptds_v7000, cudaMemcpy2D, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToArray_ptds_v7000, cudaMemcpyToArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DToArray_ptds_v7000, cudaMemcpy2DToArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromArray_ptds_v7000, cudaMemcpyFromArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DFromArray_ptds_v7000, cudaMemcpy2DFromArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyArrayToArray_ptds_v7000, cudaMemcpyArrayToArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DArrayToArray_ptds_v7000, cudaMemcpy2DArrayToArray, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToSymbol_ptds_v7000, cudaMemcpyToSymbol, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromSymbol_ptds_v7000, cudaMemcpyFromSymbol, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyAsync_ptsz_v7000, cudaMemcpyAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToArrayAsync_ptsz_v7000, cudaMemcpyToArrayAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromArrayAsync_ptsz_v7000, cudaMemcpyFromArrayAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DAsync_ptsz_v7000, cudaMemcpy2DAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DToArrayAsync_ptsz_v7000, cudaMemcpy2DToArrayAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DFromArrayAsync_ptsz_v7000, cudaMemcpy2DFromArrayAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToSymbolAsync_ptsz_v7000, cudaMemcpyToSymbolAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromSymbolAsync_ptsz_v7000, cudaMemcpyFromSymbolAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3D_ptds_v7000, cudaMemcpy3D, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DAsync_ptsz_v7000, cudaMemcpy3DAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DPeer_ptds_v7000, cudaMemcpy3DPeer, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DPeerAsync_ptsz_v7000, cudaMemcpy3DPeerAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyBatchAsync_v12080, cudaMemcpyBatchAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyBatchAsync_ptsz_v12080, cudaMemcpyBatchAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DBatchAsync_v12080, cudaMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DBatchAsync_ptsz_v12080, cudaMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyBatchAsync_v13000, cudaMemcpyBatchAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyBatchAsync_ptsz_v13000, cudaMemcpyBatchAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DBatchAsync_v13000, cudaMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DBatchAsync_ptsz_v13000, cudaMemcpy3DBatchAsync, Memcpy),
    GPUSCOPE_RUNTIME_CALL(cudaMemset_v3020, cudaMemset, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset2D_v3020, cudaMemset2D, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemsetAsync_v3020, cudaMemsetAsync, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset2DAsync_v3020, cudaMemset2DAsync, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset3D_v3020, cudaMemset3D, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset3DAsync_v3020, cudaMemset3DAsync, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset_ptds_v7000, cudaMemset, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset2D_ptds_v7000, cudaMemset2D, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemsetAsync_ptsz_v7000, cudaMemsetAsync, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset2DAsync_ptsz_v7000, cudaMemset2DAsync, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset3D_ptds_v7000, cudaMemset3D, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaMemset3DAsync_ptsz_v7000, cudaMemset3DAsync, Memset),
    GPUSCOPE_RUNTIME_CALL(cudaStreamSynchronize_v3020, cudaStreamSynchronize, Sync),
    GPUSCOPE_RUNTIME_CALL(cudaEventSynchronize_v3020, cudaEventSynchronize, Sync),
    GPUSCOPE_RUNTIME_CALL(cudaDeviceSynchronize_v3020, cudaDeviceSynchronize, Sync),
    GPUSCOPE_RUNTIME_CALL(cudaStreamSynchronize_ptsz_v7000, cudaStreamSynchronize, Sync),
    GPUSCOPE_RUNTIME_CALL(cudaMalloc_v3020, cudaMalloc, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMallocPitch_v3020, cudaMallocPitch, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMallocHost_v3020, cudaMallocHost, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaHostAlloc_v3020, cudaHostAlloc, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMalloc3D_v3020, cudaMalloc3D, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaHostRegister_v4000, cudaHostRegister, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMallocManaged_v6000, cudaMallocManaged, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMallocAsync_v11020, cudaMallocAsync, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMallocAsync_ptsz_v11020, cudaMallocAsync, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMallocFromPoolAsync_v11020, cudaMallocFromPoolAsync, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMallocFromPoolAsync_ptsz_v11020, cudaMallocFromPoolAsync, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaFree_v3020, cudaFree, Free),
    GPUSCOPE_RUNTIME_CALL(cudaFreeHost_v3020, cudaFreeHost, Free),
    GPUSCOPE_RUNTIME_CALL(cudaHostUnregister_v4000, cudaHostUnregister, Free),
    GPUSCOPE_RUNTIME_CALL(cudaFreeAsync_v11020, cudaFreeAsync, Free),
    GPUSCOPE_RUNTIME_CALL(cudaFreeAsync_ptsz_v11020, cudaFreeAsync, Free),
    GPUSCOPE_RUNTIME_CALL(cudaMemPoolCreate_v11020, cudaMemPoolCreate, Alloc),
    GPUSCOPE_RUNTIME_CALL(cudaMemPoolTrimTo_v11020, cudaMemPoolTrimTo, Free),
    GPUSCOPE_RUNTIME_CALL(cudaMemPoolDestroy_v11020, cudaMemPoolDestroy, Free),
};

constexpr uint32_t kIds = 2 * kRuntimeCalls;

/// By callback id: one more than the row in `tables` one after the other, 0 for calls that are in none.
template <class... Tables>
constexpr std::array<uint16_t, kIds> index_by_callback(const Tables&... tables) {
  std::array<uint16_t, kIds> index{};
  uint16_t row = 0;
  const auto add = [&](const auto& table) {
    for (const auto& call : table) {
      index[call.callback] = ++row;
    }
  };
  (add(tables), ...);
  return index;
}

constexpr std::array<uint16_t, kIds> kCallRows = index_by_callback(kDriverCalls, kRuntimeCallTable);

// -- calls that allocate ----------------------------------------------------------------------------------------------

using base::AllocationKind;
using base::AllocationStep;
using base::DriverAllocation;
using Decoded = std::optional<DriverAllocation>;

uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
uint64_t number(uint64_t value) { return value; }

/// The value behind an output pointer of a call; 0 when it failed, as it then wrote nothing.
template <class T>
uint64_t written(const T* pointer, int result) {
  return result == 0 && pointer != nullptr ? number(*pointer) : 0;
}

Decoded taken(AllocationKind kind, uint64_t address, uint64_t bytes, int result) {
  DriverAllocation allocation;
  allocation.kind = kind;
  allocation.address = address;
  allocation.bytes = bytes;
  allocation.result = result;
  allocation.device = kind == AllocationKind::Pinned ? base::kHostMemory : base::kUnknownDevice;
  return allocation;
}

/// Of what `address` or `handle` names; releasing nothing is allowed and does nothing.
Decoded released(AllocationKind kind, uint64_t address, uint64_t handle, int result) {
  if (result != 0 || (address == 0 && handle == 0)) {
    return std::nullopt;
  }
  DriverAllocation allocation;
  allocation.step = AllocationStep::Released;
  allocation.kind = kind;
  allocation.address = address;
  allocation.handle = handle;
  return allocation;
}

template <class Params>
Decoded linear(AllocationKind kind, const Params& params, int result) {
  return taken(kind, written(params.dptr, result), params.bytesize, result);
}

template <class Params>
Decoded pitched(const Params& params, int result) {
  const uint64_t pitch = result == 0 && params.pPitch != nullptr ? *params.pPitch : params.WidthInBytes;
  return taken(AllocationKind::Device, written(params.dptr, result), pitch * params.Height, result);
}

template <class Params>
Decoded pinned(const Params& params, int result) {
  return taken(AllocationKind::Pinned, written(params.pp, result), params.bytesize, result);
}

template <class Params>
Decoded registered(const Params& params, int result) {
  return taken(AllocationKind::Pinned, number(params.p), params.bytesize, result);
}

template <class Params>
Decoded ordered(const Params& params, int result) {
  Decoded allocation = taken(AllocationKind::Pool, written(params.dptr, result), params.bytesize, result);
  allocation->stream = number(params.hStream);
  if constexpr (requires { params.pool; }) {
    allocation->pool = number(params.pool);
  }
  return allocation;
}

template <class Params>
Decoded freed(const Params& params, int result) {
  return released(AllocationKind::Device, params.dptr, 0, result);
}

template <class Params>
Decoded freed_host(const Params& params, int result) {
  return released(AllocationKind::Pinned, number(params.p), 0, result);
}

Decoded created(const cuMemCreate_params& params, int result) {
  Decoded allocation = taken(AllocationKind::Virtual, 0, params.size, result);
  allocation->handle = written(params.handle, result);
  if (params.prop != nullptr) {
    const CUmemLocation& location = params.prop->location;
    allocation->device = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : base::kHostMemory;
  }
  return allocation;
}

/// Steps of virtual memory after its creation.
Decoded mapping_step(AllocationStep step, uint64_t handle, uint64_t address, uint64_t bytes, int result) {
  if (result != 0) {
    return std::nullopt;
  }
  DriverAllocation allocation;
  allocation.step = step;
  allocation.kind = AllocationKind::Virtual;
  allocation.handle = handle;
  allocation.address = address;
  allocation.bytes = bytes;
  return allocation;
}

/// 0 for formats of planes and blocks, whose sizes are the driver's own business.
uint64_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

/// The elements' bytes; what the driver adds for their order in memory is not known.
template <class Handle, class Descriptor>
Decoded array(Handle* handle, const Descriptor* descriptor, unsigned levels, int result) {
  if (descriptor == nullptr) {
    return std::nullopt;
  }
  uint64_t width = descriptor->Width;
  uint64_t height = std::max<uint64_t>(descriptor->Height, 1);
  uint64_t depth = 1;
  uint64_t layers = 1;
  if constexpr (requires { descriptor->Depth; }) {
    if ((descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) {
      return std::nullopt;  // no memory yet: virtual memory is mapped into it
    }
    const bool layered = (descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    (layered ? layers : depth) = std::max<uint64_t>(descriptor->Depth, 1);
  }
  uint64_t elements = 0;
  for (unsigned level = 0; level < levels; ++level) {
    elements += width * height * depth * layers;
    width = std::max<uint64_t>(width / 2, 1);
    height = std::max<uint64_t>(height / 2, 1);
    depth = std::max<uint64_t>(depth / 2, 1);
  }
  const uint64_t bytes = elements * descriptor->NumChannels * channel_bytes(descriptor->Format);
  if (bytes == 0) {
    return std::nullopt;
  }
  Decoded allocation = taken(AllocationKind::Array, 0, bytes, result);
  allocation->handle = written(handle, result);
  return allocation;
}

using Decode = Decoded (*)(const void* params, int result);

struct AllocationCall {
  uint32_t callback;
  Decode decode;
};

// The parameters' layout belongs to the versioned name of the function, so that it is the same in every libcupti.
#define GPUSCOPE_ALLOCATION_CALL(name, ...)                              \
  {                                                                      \
    CUPTI_DRIVER_TRACE_CBID_##name, [](const void* params, int result) { \
      const auto& given = *static_cast<const name##_params*>(params);    \
      return __VA_ARGS__;                                                \
    }                                                                    \
  }

constexpr AllocationCall kAllocationCalls[] = {
    GPUSCOPE_ALLOCATION_CALL(cuMemAlloc, linear(AllocationKind::Device, given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAlloc_v2, linear(AllocationKind::Device, given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocManaged, linear(AllocationKind::Managed, given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocPitch, pitched(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocPitch_v2, pitched(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemFree, freed(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemFree_v2, freed(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocHost, pinned(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocHost_v2, pinned(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemHostAlloc, pinned(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemFreeHost, freed_host(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemHostRegister, registered(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemHostRegister_v2, registered(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemHostUnregister, freed_host(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocAsync, ordered(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocAsync_ptsz, ordered(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocFromPoolAsync, ordered(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemAllocFromPoolAsync_ptsz, ordered(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemFreeAsync, freed(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemFreeAsync_ptsz, freed(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemCreate, created(given, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemRetainAllocationHandle,
                             mapping_step(AllocationStep::Retained, written(given.handle, result), 0, 0, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemMap,
                             mapping_step(AllocationStep::Mapped, given.handle, given.ptr, given.size, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemUnmap, mapping_step(AllocationStep::Unmapped, 0, given.ptr, given.size, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMemRelease, released(AllocationKind::Virtual, 0, given.handle, result)),
    GPUSCOPE_ALLOCATION_CALL(cuArrayCreate_v2, array(given.pHandle, given.pAllocateArray, 1, result)),
    GPUSCOPE_ALLOCATION_CALL(cuArray3DCreate_v2, array(given.pHandle, given.pAllocateArray, 1, result)),
    GPUSCOPE_ALLOCATION_CALL(cuArrayDestroy, released(AllocationKind::Array, 0, number(given.hArray), result)),
    GPUSCOPE_ALLOCATION_CALL(cuMipmappedArrayCreate,
                             array(given.pHandle, given.pMipmappedArrayDesc, given.numMipmapLevels, result)),
    GPUSCOPE_ALLOCATION_CALL(cuMipmappedArrayDestroy,
                             released(AllocationKind::Array, 0, number(given.hMipmappedArray), result)),
};

constexpr auto kAllocationIds = [] {
  std::array<uint32_t, std::size(kAllocationCalls)> ids{};
  std::ranges::transform(kAllocationCalls, ids.begin(), &AllocationCall::callback);
  return ids;
}();

constexpr std::array<uint16_t, kIds> kAllocationRows = index_by_callback(kAllocationCalls);

}  // namespace

std::span<const DriverCall> driver_calls() noexcept { return kDriverCalls; }

const DriverCall* find_call(uint32_t callback) noexcept {
  const uint16_t row = callback < kIds ? kCallRows[callback] : 0;
  if (row == 0) {
    return nullptr;
  }
  return row <= std::size(kDriverCalls) ? &kDriverCalls[row - 1]
                                        : &kRuntimeCallTable[row - 1 - std::size(kDriverCalls)];
}

std::span<const uint32_t> allocation_calls() noexcept { return kAllocationIds; }

bool is_allocation_call(uint32_t callback) noexcept { return callback < kIds && kAllocationRows[callback] != 0; }

Decoded decode_allocation(uint32_t callback, const void* params, int result) noexcept {
  if (!is_allocation_call(callback) || params == nullptr) {
    return std::nullopt;
  }
  Decoded allocation = kAllocationCalls[kAllocationRows[callback] - 1].decode(params, result);
  const bool nowhere = allocation.has_value() && allocation->address == 0 && allocation->handle == 0;
  if (nowhere && allocation->step == AllocationStep::Taken && result == 0) {
    return std::nullopt;  // of no bytes
  }
  return allocation;
}

}  // namespace gpuscope::activity
