// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/calls.h"

#include <cupti.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace gpuscope::activity {
namespace {

// A function has one id per version and stream semantics (_ptds, _ptsz): the suffixes. Its own name is pasted first, as
// cuda.h defines some as macros. CUPTI's lists of ids only grow. A library refuses ids newer than itself one by one.
#define GPUSCOPE_CALLS_1(id, name, kind, suffix, ...) \
  {id##suffix, name, kind} __VA_OPT__(, GPUSCOPE_CALLS_2(id, name, kind, __VA_ARGS__))
#define GPUSCOPE_CALLS_2(id, name, kind, suffix, ...) \
  {id##suffix, name, kind} __VA_OPT__(, GPUSCOPE_CALLS_3(id, name, kind, __VA_ARGS__))
#define GPUSCOPE_CALLS_3(id, name, kind, suffix, ...) \
  {id##suffix, name, kind} __VA_OPT__(, GPUSCOPE_CALLS_4(id, name, kind, __VA_ARGS__))
#define GPUSCOPE_CALLS_4(id, name, kind, suffix) \
  { id##suffix, name, kind }

#define GPUSCOPE_DRIVER_CALL(name, kind, ...)                                \
  {CUPTI_DRIVER_TRACE_CBID_##name, #name, store::CallKind::kind} __VA_OPT__( \
      , GPUSCOPE_CALLS_1(CUPTI_DRIVER_TRACE_CBID_##name, #name, store::CallKind::kind, __VA_ARGS__))
constexpr DriverCall kDriverCalls[] = {
    GPUSCOPE_DRIVER_CALL(cuLaunch, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchGrid, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchGridAsync, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchKernel, Launch, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuLaunchCooperativeKernel, Launch, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuLaunchCooperativeKernelMultiDevice, Launch),
    GPUSCOPE_DRIVER_CALL(cuLaunchKernelEx, Launch, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuGraphLaunch, GraphLaunch, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoD, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoH, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoD, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoA, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoD, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoA, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoH, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoA, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2D, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2DUnaligned, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3D, Memcpy, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoDAsync, Memcpy, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoHAsync, Memcpy, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpyDtoDAsync, Memcpy, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpyHtoAAsync, Memcpy, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAtoHAsync, Memcpy, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpy2DAsync, Memcpy, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DAsync, Memcpy, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpy, Memcpy, _ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyAsync, Memcpy, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpyPeer, Memcpy, _ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpyPeerAsync, Memcpy, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DPeer, Memcpy, _ptds),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DPeerAsync, Memcpy, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpyBatchAsync, Memcpy, _ptsz, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemcpy3DBatchAsync, Memcpy, _ptsz, _v2, _v2_ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemsetD8, Memset, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemsetD16, Memset, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemsetD32, Memset, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D8, Memset, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D16, Memset, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D32, Memset, _v2, _v2_ptds),
    GPUSCOPE_DRIVER_CALL(cuMemsetD8Async, Memset, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemsetD16Async, Memset, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemsetD32Async, Memset, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D8Async, Memset, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D16Async, Memset, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemsetD2D32Async, Memset, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuCtxSynchronize, Sync, _v2),
    GPUSCOPE_DRIVER_CALL(cuEventSynchronize, Sync),
    GPUSCOPE_DRIVER_CALL(cuStreamSynchronize, Sync, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuStreamWaitEvent, Sync, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemAlloc, Alloc, _v2),
    GPUSCOPE_DRIVER_CALL(cuMemAllocPitch, Alloc, _v2),
    GPUSCOPE_DRIVER_CALL(cuMemAllocHost, Alloc, _v2),
    GPUSCOPE_DRIVER_CALL(cuMemHostAlloc, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemHostRegister, Alloc, _v2),
    GPUSCOPE_DRIVER_CALL(cuMemAllocManaged, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemCreate, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemAllocAsync, Alloc, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemAllocFromPoolAsync, Alloc, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemFree, Free, _v2),
    GPUSCOPE_DRIVER_CALL(cuMemFreeHost, Free),
    GPUSCOPE_DRIVER_CALL(cuMemHostUnregister, Free),
    GPUSCOPE_DRIVER_CALL(cuMemRelease, Free),
    GPUSCOPE_DRIVER_CALL(cuMemFreeAsync, Free, _ptsz),
    GPUSCOPE_DRIVER_CALL(cuMemPoolCreate, Alloc),
    GPUSCOPE_DRIVER_CALL(cuMemPoolTrimTo, Free),
    GPUSCOPE_DRIVER_CALL(cuMemPoolDestroy, Free),
    GPUSCOPE_DRIVER_CALL(cuLaunchHostFunc, Other, _ptsz),
};

#define GPUSCOPE_RUNTIME_CALL(name, kind, ...) \
  GPUSCOPE_CALLS_1(kRuntimeCalls + CUPTI_RUNTIME_TRACE_CBID_##name, #name, store::CallKind::kind, __VA_ARGS__)
constexpr DriverCall kRuntimeCallTable[] = {
    GPUSCOPE_RUNTIME_CALL(cudaLaunch, Launch, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchKernel, Launch, _v7000, _ptsz_v7000),
    {kRuntimeCalls + CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000, "cudaLaunchKernel", store::CallKind::Launch},
    {kRuntimeCalls + CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_ptsz_v13000, "cudaLaunchKernel",
     store::CallKind::Launch},
    GPUSCOPE_RUNTIME_CALL(cudaLaunchCooperativeKernel, Launch, _v9000, _ptsz_v9000),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchCooperativeKernelMultiDevice, Launch, _v9000),
    GPUSCOPE_RUNTIME_CALL(cudaLaunchKernelExC, Launch, _v11060, _ptsz_v11060),
    GPUSCOPE_RUNTIME_CALL(cudaGraphLaunch, GraphLaunch, _v10000, _ptsz_v10000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2D, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToArray, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DToArray, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromArray, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DFromArray, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyArrayToArray, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DArrayToArray, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToSymbol, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromSymbol, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToArrayAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromArrayAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DToArrayAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy2DFromArrayAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyToSymbolAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyFromSymbolAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3D, Memcpy, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DAsync, Memcpy, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyPeer, Memcpy, _v4000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyPeerAsync, Memcpy, _v4000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DPeer, Memcpy, _v4000, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DPeerAsync, Memcpy, _v4000, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpyBatchAsync, Memcpy, _v12080, _ptsz_v12080, _v13000, _ptsz_v13000),
    GPUSCOPE_RUNTIME_CALL(cudaMemcpy3DBatchAsync, Memcpy, _v12080, _ptsz_v12080, _v13000, _ptsz_v13000),
    GPUSCOPE_RUNTIME_CALL(cudaMemset, Memset, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemset2D, Memset, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemsetAsync, Memset, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemset2DAsync, Memset, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemset3D, Memset, _v3020, _ptds_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaMemset3DAsync, Memset, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaStreamSynchronize, Sync, _v3020, _ptsz_v7000),
    GPUSCOPE_RUNTIME_CALL(cudaEventSynchronize, Sync, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaDeviceSynchronize, Sync, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaMalloc, Alloc, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaMallocPitch, Alloc, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaMallocHost, Alloc, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaHostAlloc, Alloc, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaMalloc3D, Alloc, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaHostRegister, Alloc, _v4000),
    GPUSCOPE_RUNTIME_CALL(cudaMallocManaged, Alloc, _v6000),
    GPUSCOPE_RUNTIME_CALL(cudaMallocAsync, Alloc, _v11020, _ptsz_v11020),
    GPUSCOPE_RUNTIME_CALL(cudaMallocFromPoolAsync, Alloc, _v11020, _ptsz_v11020),
    GPUSCOPE_RUNTIME_CALL(cudaFree, Free, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaFreeHost, Free, _v3020),
    GPUSCOPE_RUNTIME_CALL(cudaHostUnregister, Free, _v4000),
    GPUSCOPE_RUNTIME_CALL(cudaFreeAsync, Free, _v11020, _ptsz_v11020),
    GPUSCOPE_RUNTIME_CALL(cudaMemPoolCreate, Alloc, _v11020),
    GPUSCOPE_RUNTIME_CALL(cudaMemPoolTrimTo, Free, _v11020),
    GPUSCOPE_RUNTIME_CALL(cudaMemPoolDestroy, Free, _v11020),
};

constexpr uint32_t kIds = 2 * kRuntimeCalls;

/// By callback id: 1 + the row in the concatenated `tables`, 0 for other calls.
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

/// The value behind an output pointer of a call. 0 if it failed, as it then wrote nothing.
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

/// The release of `address` or `handle`. Releasing null is allowed and has no effect.
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

/// 0 for planar and block-compressed formats, as CUDA does not document their sizes.
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

/// The size of the elements. The driver's padding is unknown.
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

// The parameter layout belongs to the versioned function name, so it is the same in every libcupti.
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
  if (nowhere && allocation->step == AllocationStep::Allocated && result == 0) {
    return std::nullopt;  // of no bytes
  }
  return allocation;
}

}  // namespace gpuscope::activity
