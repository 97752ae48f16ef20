// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "gpuscope/driver/cuda.h"
#include "gpuscope/driver/nvml.h"

namespace gpuscope::device {

/// NVML's device for one of CUDA's.
struct FoundDevice {
  driver::NvmlDevice handle = nullptr;
  bool whole = false;  // false: CUDA's device is a part of the GPU that the handle stands for
  std::string why;     // there is none
};

/// Finds CUDA's device among NVML's, by its UUID, or by its address on the bus where that names a part of a GPU.
/// Initialises both libraries, makes no context, and never throws for what a machine lacks.
FoundDevice find_nvml_device(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal);

std::string nvml_error_text(const driver::Nvml& nvml, int code);

}  // namespace gpuscope::device
