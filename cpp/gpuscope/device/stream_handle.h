// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

/// The stream that a handle from Python stands for; 0 is the default one.
inline driver::CuStream as_stream(uint64_t handle) noexcept { return reinterpret_cast<driver::CuStream>(handle); }

}  // namespace gpuscope::device
