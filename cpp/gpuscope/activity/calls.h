// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "gpuscope/base/hooks.h"
#include "gpuscope/store/schema.h"

// The calls of CUDA that are recorded, by CUPTI's callback ids. Any thread; constant tables, no lock, no allocation.
namespace gpuscope::activity {

/// Added to the ids of runtime calls, which count from 1 as the driver's do.
inline constexpr uint32_t kRuntimeCalls = 1024;

/// A call that launches, copies, fills, synchronizes, allocates or frees.
struct DriverCall {
  uint32_t callback;      // CUPTI's id
  std::string_view name;  // as documented, without version and per-thread suffixes
  store::CallKind kind;
};

/// The driver's calls; callbacks on them also see what the runtime launches.
std::span<const DriverCall> driver_calls() noexcept;
/// A driver call by its id, a runtime call by its id + kRuntimeCalls; nullptr for one that is not recorded.
const DriverCall* find_call(uint32_t callback) noexcept;

/// The ids of the driver calls that allocate, map and release memory.
std::span<const uint32_t> allocation_calls() noexcept;
bool is_allocation_call(uint32_t callback) noexcept;

/// What a driver call did to memory, from its parameters at its exit: without context and times, and with a device only
/// where the call names one. Nothing for other calls, for those without effect, and for failed ones that did not ask
/// for memory.
std::optional<base::DriverAllocation> decode_allocation(uint32_t callback, const void* params, int result) noexcept;

}  // namespace gpuscope::activity
