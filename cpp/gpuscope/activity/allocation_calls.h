// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "gpuscope/base/hooks.h"

namespace gpuscope::activity {

/// CUPTI's ids of the driver calls by which memory comes and goes.
std::span<const uint32_t> allocation_calls() noexcept;
bool is_allocation_call(uint32_t callback) noexcept;

/// What a driver call did to memory, from its parameters as they are at its end: without context and times, and with a
/// device only where the call names one. Nothing for other calls, for those without effect, and for failed ones that
/// did not ask for memory.
std::optional<base::DriverAllocation> decode_allocation(uint32_t callback, const void* params, int result) noexcept;

}  // namespace gpuscope::activity
