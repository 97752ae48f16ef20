// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "gpuscope/base/hooks.h"
#include "gpuscope/store/schema.h"

// The recorded CUDA calls, by CUPTI's callback ids. Any thread: constant tables, no lock, no allocation.
namespace gpuscope::activity {

/// Added to the ids of runtime calls, which count from 1 like the driver's.
inline constexpr uint32_t kRuntimeCalls = 1024;

/// A call that launches, copies, fills, synchronizes, allocates or frees.
struct DriverCall {
  uint32_t callback;      // CUPTI's id
  std::string_view name;  // as documented, without version and per-thread suffixes
  store::CallKind kind;
};

/// The driver's calls. Their callbacks also see the runtime's launches.
std::span<const DriverCall> driver_calls() noexcept;
/// A driver call by its id, a runtime call by its id + kRuntimeCalls. Null for calls that are not recorded.
const DriverCall* find_call(uint32_t callback) noexcept;

/// The ids of the driver calls that allocate, map and release memory.
std::span<const uint32_t> allocation_calls() noexcept;
bool is_allocation_call(uint32_t callback) noexcept;

/// The effect of a driver call on memory, from its parameters at its exit. Without context and times, and with a device
/// only if the call names one. None for other calls, calls without effect, and failed calls that did not request
/// memory.
std::optional<base::DriverAllocation> decode_allocation(uint32_t callback, const void* params, int result) noexcept;

}  // namespace gpuscope::activity
