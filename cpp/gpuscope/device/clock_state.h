// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpuscope/device/nvml_device.h"
#include "gpuscope/driver/cuda.h"
#include "gpuscope/driver/nvml.h"

namespace gpuscope::device {

/// A GPU's clocks and what limits them, now. What is absent is named in `why`, with the reason.
struct ClockState {
  std::optional<double> sm_hz;
  std::optional<double> memory_hz;
  std::optional<double> power_w;
  std::optional<double> power_limit_w;
  std::optional<double> temperature_c;
  std::optional<uint64_t> reasons;  // bits of nvmlClocksEventReasons
  std::string why;
};

/// Reads a GPU's clock state from NVML. Never throws for what a machine lacks. Immutable; any thread.
class ClockReader {
 public:
  /// Finds CUDA's device among NVML's, by its UUID, or by its address on the bus where that names a part of a GPU.
  ClockReader(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal);

  ClockState read() const;

 private:
  driver::Nvml nvml_;
  FoundDevice found_;
};

}  // namespace gpuscope::device
