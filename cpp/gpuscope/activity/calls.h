// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gpuscope/store/schema.h"

namespace gpuscope::activity {

/// A driver call that is watched: those that launch, copy, fill, synchronize or allocate.
struct DriverCall {
  uint32_t callback;      // CUPTI's id
  std::string_view name;  // as documented, without version and per-thread suffixes
  store::CallKind kind;
};

std::span<const DriverCall> driver_calls() noexcept;
/// nullptr for a call that is not watched.
const DriverCall* find_driver_call(uint32_t callback) noexcept;

}  // namespace gpuscope::activity
