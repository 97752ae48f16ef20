// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "gpuscope/base/event_log.h"

namespace gpuscope::base {

// What one room asks of another that it does not know: one function each, set by whoever can answer, and callable on
// any thread at any moment, with or without the GIL.

/// Where the calling thread is in the program, as a Stacks id; 0 for nowhere. Set while stacks are wanted.
using StackSource = uint32_t (*)() noexcept;
inline std::atomic<StackSource> stack_source{nullptr};

inline uint32_t current_stack() noexcept {
  const StackSource source = stack_source.load(std::memory_order_acquire);
  return source != nullptr ? source() : 0;
}

/// Says of the event that comes next where in the program it happened. For the hot paths, when kListenStacks is set.
inline void append_stack(EventLog& log) noexcept {
  if (const uint32_t stack = current_stack(); stack != 0) {
    log.add_argument(Argument::Stack, stack);
  }
}

/// The region that the calling thread works in, as OpenRegions has it: the Names id of its name plus one; 0 for none.
using RegionSource = uint32_t (*)() noexcept;
inline std::atomic<RegionSource> region_source{nullptr};

inline uint32_t current_region() noexcept {
  const RegionSource source = region_source.load(std::memory_order_acquire);
  return source != nullptr ? source() : 0;
}

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

/// Takes each of them, on the thread of the allocation and inside the driver: must not call CUDA or CUPTI.
using AllocationSink = void (*)(const DriverAllocation&) noexcept;
inline std::atomic<AllocationSink> allocation_sink{nullptr};

}  // namespace gpuscope::base
