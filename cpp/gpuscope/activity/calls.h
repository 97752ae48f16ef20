// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gpuscope/store/schema.h"

namespace gpuscope::activity {

/// Added to the ids of runtime calls, which count from 1 as the driver's do.
inline constexpr uint32_t kRuntimeCalls = 1024;

/// A call that is watched: those that launch, copy, fill, synchronize or allocate.
struct DriverCall {
  uint32_t callback;      // CUPTI's id
  std::string_view name;  // as documented, without version and per-thread suffixes
  store::CallKind kind;
};

/// The driver's: where callbacks are to be had, they see what the runtime launches too.
std::span<const DriverCall> driver_calls() noexcept;
/// A driver call by its id, a runtime call by its id + kRuntimeCalls; nullptr for one that is not watched.
const DriverCall* find_call(uint32_t callback) noexcept;

}  // namespace gpuscope::activity
