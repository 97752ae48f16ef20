// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuscope::base {

/// What memory an allocation is of. Values are the indices of Python's ALLOCATION_KINDS: append only.
enum class AllocationKind : uint8_t {
  Device = 0,   // cuMemAlloc
  Pool = 1,     // stream-ordered, out of a memory pool
  Managed = 2,  // moves between host and device
  Pinned = 3,   // of the host, allocated or registered
  Virtual = 4,  // cuMemCreate's: mapped to an address later
  Array = 5,    // of textures and surfaces
};
inline constexpr int kAllocationKinds = 6;

/// What happened to the memory.
enum class AllocationStep : uint8_t {
  Taken,        // or refused: `result` tells
  Released,     // an address or a handle
  Mapped,       // virtual memory got an address
  Unmapped,     // a range of addresses lost its memory
  Retained,     // one more holder of virtual memory
  ContextGone,  // all memory of a context was released with it
};

/// Memory as the driver knows it, beside the devices.
inline constexpr int32_t kHostMemory = -1;
inline constexpr int32_t kUnknownDevice = -2;

/// One driver-level allocation or release, as far as the call that asked for it tells.
struct DriverAllocation {
  AllocationStep step = AllocationStep::Taken;
  AllocationKind kind = AllocationKind::Device;  // of a release: only whether it is by address, virtual or of an array
  int32_t result = 0;                            // CUresult; steps other than Taken are told only when they succeeded
  int32_t device = kUnknownDevice;
  uint64_t address = 0;  // 0 for arrays and for virtual memory that is not mapped
  uint64_t handle = 0;   // of virtual memory and of arrays
  uint64_t bytes = 0;
  uint64_t pool = 0;  // the memory pool, where the call names it
  uint64_t stream = 0;
  uint64_t context = 0;
  uint64_t began_ticks = 0;  // of the call
  uint64_t ended_ticks = 0;
};

/// Who keeps the ledger. Called on the thread of the allocation, inside the driver: must not call CUDA or CUPTI.
using AllocationSink = void (*)(const DriverAllocation&) noexcept;
inline std::atomic<AllocationSink> allocation_sink{nullptr};

}  // namespace gpuscope::base
