// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/allocation_calls.h"

#include <cupti.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace gpuscope::activity {
namespace {

using base::AllocationKind;
using base::AllocationStep;
using base::DriverAllocation;
using Told = std::optional<DriverAllocation>;

uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
uint64_t number(uint64_t value) { return value; }

/// What a call wrote through a pointer that the program gave it; 0 when it failed, as it then wrote nothing.
template <class T>
uint64_t written(const T* pointer, int result) {
  return result == 0 && pointer != nullptr ? number(*pointer) : 0;
}

Told taken(AllocationKind kind, uint64_t address, uint64_t bytes, int result) {
  DriverAllocation told;
  told.kind = kind;
  told.address = address;
  told.bytes = bytes;
  told.result = result;
  told.device = kind == AllocationKind::Pinned ? base::kHostMemory : base::kUnknownDevice;
  return told;
}

/// Of what `address` or `handle` names; releasing nothing is allowed and does nothing.
Told released(AllocationKind kind, uint64_t address, uint64_t handle, int result) {
  if (result != 0 || (address == 0 && handle == 0)) {
    return std::nullopt;
  }
  DriverAllocation told;
  told.step = AllocationStep::Released;
  told.kind = kind;
  told.address = address;
  told.handle = handle;
  return told;
}

template <class Params>
Told linear(AllocationKind kind, const Params& params, int result) {
  return taken(kind, written(params.dptr, result), params.bytesize, result);
}

template <class Params>
Told pitched(const Params& params, int result) {
  const uint64_t pitch = result == 0 && params.pPitch != nullptr ? *params.pPitch : params.WidthInBytes;
  return taken(AllocationKind::Device, written(params.dptr, result), pitch * params.Height, result);
}

template <class Params>
Told pinned(const Params& params, int result) {
  return taken(AllocationKind::Pinned, written(params.pp, result), params.bytesize, result);
}

template <class Params>
Told registered(const Params& params, int result) {
  return taken(AllocationKind::Pinned, number(params.p), params.bytesize, result);
}

template <class Params>
Told ordered(const Params& params, int result) {
  Told told = taken(AllocationKind::Pool, written(params.dptr, result), params.bytesize, result);
  told->stream = number(params.hStream);
  if constexpr (requires { params.pool; }) {
    told->pool = number(params.pool);
  }
  return told;
}

template <class Params>
Told freed(const Params& params, int result) {
  return released(AllocationKind::Device, params.dptr, 0, result);
}

template <class Params>
Told freed_host(const Params& params, int result) {
  return released(AllocationKind::Pinned, number(params.p), 0, result);
}

Told created(const cuMemCreate_params& params, int result) {
  Told told = taken(AllocationKind::Virtual, 0, params.size, result);
  told->handle = written(params.handle, result);
  if (params.prop != nullptr) {
    const CUmemLocation& location = params.prop->location;
    told->device = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : base::kHostMemory;
  }
  return told;
}

/// Steps of virtual memory after its creation.
Told moved(AllocationStep step, uint64_t handle, uint64_t address, uint64_t bytes, int result) {
  if (result != 0) {
    return std::nullopt;
  }
  DriverAllocation told;
  told.step = step;
  told.kind = AllocationKind::Virtual;
  told.handle = handle;
  told.address = address;
  told.bytes = bytes;
  return told;
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
Told array(Handle* handle, const Descriptor* descriptor, unsigned levels, int result) {
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
  Told told = taken(AllocationKind::Array, 0, bytes, result);
  told->handle = written(handle, result);
  return told;
}

using Decode = Told (*)(const void* params, int result);

struct Call {
  uint32_t callback;
  Decode decode;
};

// The parameters' layout belongs to the versioned name of the function, so that it is the same in every libcupti.
#define GPUSCOPE_CALL(name, ...)                                         \
  {                                                                      \
    CUPTI_DRIVER_TRACE_CBID_##name, [](const void* params, int result) { \
      const auto& given = *static_cast<const name##_params*>(params);    \
      return __VA_ARGS__;                                                \
    }                                                                    \
  }

constexpr Call kCalls[] = {
    GPUSCOPE_CALL(cuMemAlloc, linear(AllocationKind::Device, given, result)),
    GPUSCOPE_CALL(cuMemAlloc_v2, linear(AllocationKind::Device, given, result)),
    GPUSCOPE_CALL(cuMemAllocManaged, linear(AllocationKind::Managed, given, result)),
    GPUSCOPE_CALL(cuMemAllocPitch, pitched(given, result)),
    GPUSCOPE_CALL(cuMemAllocPitch_v2, pitched(given, result)),
    GPUSCOPE_CALL(cuMemFree, freed(given, result)),
    GPUSCOPE_CALL(cuMemFree_v2, freed(given, result)),
    GPUSCOPE_CALL(cuMemAllocHost, pinned(given, result)),
    GPUSCOPE_CALL(cuMemAllocHost_v2, pinned(given, result)),
    GPUSCOPE_CALL(cuMemHostAlloc, pinned(given, result)),
    GPUSCOPE_CALL(cuMemFreeHost, freed_host(given, result)),
    GPUSCOPE_CALL(cuMemHostRegister, registered(given, result)),
    GPUSCOPE_CALL(cuMemHostRegister_v2, registered(given, result)),
    GPUSCOPE_CALL(cuMemHostUnregister, freed_host(given, result)),
    GPUSCOPE_CALL(cuMemAllocAsync, ordered(given, result)),
    GPUSCOPE_CALL(cuMemAllocAsync_ptsz, ordered(given, result)),
    GPUSCOPE_CALL(cuMemAllocFromPoolAsync, ordered(given, result)),
    GPUSCOPE_CALL(cuMemAllocFromPoolAsync_ptsz, ordered(given, result)),
    GPUSCOPE_CALL(cuMemFreeAsync, freed(given, result)),
    GPUSCOPE_CALL(cuMemFreeAsync_ptsz, freed(given, result)),
    GPUSCOPE_CALL(cuMemCreate, created(given, result)),
    GPUSCOPE_CALL(cuMemRetainAllocationHandle,
                  moved(AllocationStep::Retained, written(given.handle, result), 0, 0, result)),
    GPUSCOPE_CALL(cuMemMap, moved(AllocationStep::Mapped, given.handle, given.ptr, given.size, result)),
    GPUSCOPE_CALL(cuMemUnmap, moved(AllocationStep::Unmapped, 0, given.ptr, given.size, result)),
    GPUSCOPE_CALL(cuMemRelease, released(AllocationKind::Virtual, 0, given.handle, result)),
    GPUSCOPE_CALL(cuArrayCreate_v2, array(given.pHandle, given.pAllocateArray, 1, result)),
    GPUSCOPE_CALL(cuArray3DCreate_v2, array(given.pHandle, given.pAllocateArray, 1, result)),
    GPUSCOPE_CALL(cuArrayDestroy, released(AllocationKind::Array, 0, number(given.hArray), result)),
    GPUSCOPE_CALL(cuMipmappedArrayCreate,
                  array(given.pHandle, given.pMipmappedArrayDesc, given.numMipmapLevels, result)),
    GPUSCOPE_CALL(cuMipmappedArrayDestroy, released(AllocationKind::Array, 0, number(given.hMipmappedArray), result)),
};

constexpr auto kIds = [] {
  std::array<uint32_t, std::size(kCalls)> ids{};
  std::ranges::transform(kCalls, ids.begin(), &Call::callback);
  return ids;
}();

constexpr uint32_t kMost = *std::ranges::max_element(kIds) + 1;

// By id: one more than the place in kCalls, 0 for other calls.
constexpr auto kIndex = [] {
  std::array<uint8_t, kMost> index{};
  for (std::size_t place = 0; place < std::size(kCalls); ++place) {
    index[kIds[place]] = static_cast<uint8_t>(place + 1);
  }
  return index;
}();

}  // namespace

std::span<const uint32_t> allocation_calls() noexcept { return kIds; }

bool is_allocation_call(uint32_t callback) noexcept { return callback < kMost && kIndex[callback] != 0; }

Told decode_allocation(uint32_t callback, const void* params, int result) noexcept {
  if (!is_allocation_call(callback) || params == nullptr) {
    return std::nullopt;
  }
  Told told = kCalls[kIndex[callback] - 1].decode(params, result);
  const bool nowhere = told.has_value() && told->address == 0 && told->handle == 0;
  if (nowhere && told->step == AllocationStep::Taken && result == 0) {
    return std::nullopt;  // of no bytes
  }
  return told;
}

}  // namespace gpuscope::activity
