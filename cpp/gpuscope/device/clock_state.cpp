// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/clock_state.h"

#include <array>

namespace gpuscope::device {
namespace {

// nvml.h
constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;
constexpr int kGpuSensor = 0;

std::string error_text(const driver::Nvml& nvml, int code) {
  const char* text = nvml.error_string != nullptr ? nvml.error_string(code) : nullptr;
  return text != nullptr ? std::string(text) : std::string("NVML error ") + std::to_string(code);
}

driver::NvmlDevice find(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal, std::string& why) {
  if (nvml.init == nullptr || nvml.device_by_uuid == nullptr) {
    why = std::string("libnvidia-ml was not found (") + nvml.library.why() + ")";
    return nullptr;
  }
  if (!cuda.library || cuda.init == nullptr) {
    why = std::string("no NVIDIA driver was found (") + cuda.library.why() + ")";
    return nullptr;
  }
  driver::CuDevice device = 0;
  driver::CuUuid uuid{};
  for (const int code : {cuda.init(0), cuda.device_get(&device, ordinal), cuda.device_get_uuid(&uuid, device)}) {
    if (code != 0) {
      why = std::string("CUDA does not name device ") + std::to_string(ordinal) + " (" + cuda.error_name(code) + ")";
      return nullptr;
    }
  }
  // Never shut down: other users of NVML in the process count on one another's initialisation.
  if (const int code = nvml.init(); code != 0) {
    why = std::string("nvmlInit_v2 failed: ") + error_text(nvml, code);
    return nullptr;
  }
  driver::NvmlDevice found = nullptr;
  const int code = nvml.device_by_uuid(driver::uuid_text(uuid).c_str(), &found);
  if (code == 0) {
    return found;
  }
  std::array<char, 32> address{};
  if (cuda.device_get_pci_bus_id != nullptr && nvml.device_by_pci_bus_id != nullptr &&
      cuda.device_get_pci_bus_id(address.data(), static_cast<int>(address.size()), device) == 0 &&
      nvml.device_by_pci_bus_id(address.data(), &found) == 0) {
    return found;
  }
  why = std::string("NVML does not know device ") + std::to_string(ordinal) + ": " + error_text(nvml, code);
  return nullptr;
}

}  // namespace

ClockReader::ClockReader(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal)
    : nvml_(nvml), device_(find(nvml_, cuda, ordinal, why_)) {}

ClockState ClockReader::read() const {
  ClockState state;
  if (device_ == nullptr) {
    state.why = why_;
    return state;
  }
  const auto lacking = [&](const char* what, const std::string& reason) {
    state.why.append(state.why.empty() ? "" : "; ").append(what).append(": ").append(reason);
  };
  // One number of NVML's, in units of `scale`.
  const auto number = [&](const char* what, auto function, double scale, auto... selector) -> std::optional<double> {
    unsigned value = 0;
    const int code = function != nullptr ? function(device_, selector..., &value) : 0;
    if (function != nullptr && code == 0) {
      return value * scale;
    }
    lacking(what, function == nullptr ? std::string("this driver's NVML cannot tell") : error_text(nvml_, code));
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
  const int code = reasons != nullptr ? reasons(device_, &bits) : 0;
  if (reasons != nullptr && code == 0) {
    state.reasons = bits;
  } else {
    lacking("reasons", reasons == nullptr ? std::string("this driver's NVML cannot tell") : error_text(nvml_, code));
  }
  return state;
}

}  // namespace gpuscope::device
