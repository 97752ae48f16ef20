// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "gpuscope/driver/cuda.h"

namespace gpuscope::nvml {

/// What a GPU could do at best, from its own description. What the driver does not tell is 0 or absent.
struct Limits {
  unsigned multiprocessors = 0;
  unsigned capability_major = 0;
  unsigned capability_minor = 0;
  uint64_t l2_bytes = 0;
  std::optional<double> memory_bandwidth;  // bytes a second
  std::optional<double> sm_hz_max;
  std::optional<double> fp32_flops;  // operations a second, an FMA counting as two
};

/// Throws CudaError when the driver refuses. No context is needed.
Limits read_limits(const driver::Cuda& cuda, int ordinal);

}  // namespace gpuscope::nvml
