// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/clock_state.h"

namespace gpuscope::device {
namespace {

// nvml.h
constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;
constexpr int kGpuSensor = 0;

}  // namespace

ClockReader::ClockReader(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal)
    : nvml_(nvml), found_(find_nvml_device(nvml_, cuda, ordinal)) {}

ClockState ClockReader::read() const {
  ClockState state;
  if (found_.handle == nullptr) {
    state.why = found_.why;
    return state;
  }
  const auto lacking = [&](const char* what, const std::string& reason) {
    state.why.append(state.why.empty() ? "" : "; ").append(what).append(": ").append(reason);
  };
  // One number of NVML's, in units of `scale`.
  const auto number = [&](const char* what, auto function, double scale, auto... selector) -> std::optional<double> {
    unsigned value = 0;
    const int code = function != nullptr ? function(found_.handle, selector..., &value) : 0;
    if (function != nullptr && code == 0) {
      return value * scale;
    }
    lacking(what, function == nullptr ? std::string("this driver's NVML cannot tell") : nvml_error_text(nvml_, code));
    return std::nullopt;
  };
  constexpr double kHzPerMhz = 1e6;
  constexpr double kWattsPerMilliwatt = 1e-3;
  state.sm_hz = number("sm_hz", nvml_.clock_info, kHzPerMhz, kSmClock);
  state.memory_hz = number("memory_hz", nvml_.clock_info, kHzPerMhz, kMemoryClock);
  state.power_w = number("power_w", nvml_.power_usage, kWattsPerMilliwatt);
  state.power_limit_w = number("power_limit_w", nvml_.power_limit, kWattsPerMilliwatt);
  state.temperature_c = number("temperature_c", nvml_.temperature, 1, kGpuSensor);
  const auto reasons =
      nvml_.clocks_event_reasons != nullptr ? nvml_.clocks_event_reasons : nvml_.clocks_throttle_reasons;
  unsigned long long bits = 0;
  const int code = reasons != nullptr ? reasons(found_.handle, &bits) : 0;
  if (reasons != nullptr && code == 0) {
    state.reasons = bits;
  } else {
    lacking("reasons",
            reasons == nullptr ? std::string("this driver's NVML cannot tell") : nvml_error_text(nvml_, code));
  }
  return state;
}

}  // namespace gpuscope::device
