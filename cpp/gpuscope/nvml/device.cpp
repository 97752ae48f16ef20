// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/device.h"

#include <array>
#include <cstddef>
#include <vector>

#include "gpuscope/driver/devices.h"

namespace gpuscope::nvml {
namespace {

constexpr int kInsufficientSize = 7;

constexpr const char* kPart = "NVML tells a GPU's memory as a whole, and this device is a part of one (MIG)";

// Adds the reason for a missing figure to a struct's `why`.
void add_reason(std::string& why, const char* what, const std::string& reason) {
  why.append(why.empty() ? "" : "; ").append(what).append(": ").append(reason);
}

}  // namespace

Device::Device(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal)
    : nvml_(nvml), cuda_(cuda), ordinal_(ordinal) {
  find();
}

void Device::find() {
  if (nvml_.init == nullptr || nvml_.device_by_uuid == nullptr) {
    why_ = std::string("libnvidia-ml was not found (") + nvml_.library.why() + ")";
    return;
  }
  if (!cuda_.library || cuda_.init == nullptr) {
    why_ = std::string("no NVIDIA driver was found (") + cuda_.library.why() + ")";
    return;
  }
  driver::CuDevice device = 0;
  driver::CuUuid uuid{};
  for (const int code : {cuda_.init(0), cuda_.device_get(&device, ordinal_), cuda_.device_get_uuid(&uuid, device)}) {
    if (code != 0) {
      why_ = std::string("CUDA does not name device ") + std::to_string(ordinal_) + " (" + cuda_.error_name(code) + ")";
      return;
    }
  }
  // Never shut down: other users of NVML in the process rely on the initialisation.
  if (const int code = nvml_.init(); code != 0) {
    why_ = std::string("nvmlInit_v2 failed: ") + nvml_.error_text(code);
    return;
  }
  const int code = nvml_.device_by_uuid(driver::uuid_text(uuid).c_str(), &handle_);
  if (code == 0) {
    whole_ = true;
    return;
  }
  std::array<char, 32> address{};
  if (cuda_.device_get_pci_bus_id != nullptr && nvml_.device_by_pci_bus_id != nullptr &&
      cuda_.device_get_pci_bus_id(address.data(), static_cast<int>(address.size()), device) == 0 &&
      nvml_.device_by_pci_bus_id(address.data(), &handle_) == 0) {
    return;
  }
  handle_ = nullptr;
  why_ = std::string("NVML does not know device ") + std::to_string(ordinal_) + ": " + nvml_.error_text(code);
}

template <class Function, class... Arguments>
std::string Device::ask(Function* function, Arguments... arguments) const {
  if (function == nullptr) {
    return kNoFunction;
  }
  const int code = function(handle_, arguments...);
  return code != 0 ? nvml_.error_text(code) : (is_unknown(arguments) || ...) ? kNotKnown : "";
}

ClockState Device::clock_state() const {
  ClockState state;
  if (handle_ == nullptr) {
    state.why = why_;
    return state;
  }
  // Reads one number from NVML, in units of `scale`.
  const auto number = [&](const char* what, auto function, double scale, auto... selector) -> std::optional<double> {
    unsigned value = 0;
    if (const std::string why = ask(function, selector..., &value); !why.empty()) {
      add_reason(state.why, what, why);
      return std::nullopt;
    }
    return value * scale;
  };
  constexpr double kHzPerMhz = 1e6;
  constexpr double kWattsPerMilliwatt = 1e-3;
  state.sm_hz = number("sm_hz", nvml_.clock_info, kHzPerMhz, kSmClock);
  state.memory_hz = number("memory_hz", nvml_.clock_info, kHzPerMhz, kMemoryClock);
  state.power_w = number("power_w", nvml_.power_usage, kWattsPerMilliwatt);
  state.power_limit_w = number("power_limit_w", nvml_.power_limit, kWattsPerMilliwatt);
  state.temperature_c = number("temperature_c", nvml_.temperature, 1, kGpuSensor);

  unsigned long long bits = 0;
  const bool renamed = nvml_.clocks_event_reasons != nullptr;
  const std::string why = ask(renamed ? nvml_.clocks_event_reasons : nvml_.clocks_throttle_reasons, &bits);
  if (why.empty()) {
    state.reasons = bits;
  } else {
    add_reason(state.why, "reasons", why);
  }
  return state;
}

MemoryInfo Device::memory_info(unsigned pid) const {
  MemoryInfo info;
  if (const std::optional device = driver::find_device_if_any(cuda_, ordinal_); device.has_value()) {
    std::array<char, 128> name{};
    if (cuda_.device_get_name(name.data(), static_cast<int>(name.size()), *device) == 0) {
      info.name = name.data();
    }
    size_t total = 0;
    if (cuda_.device_total_mem(&total, *device) == 0) {
      info.total = total;
    }
    info.context = driver::has_primary_context(cuda_, *device);
  }
  if (handle_ == nullptr || !whole_) {
    add_reason(info.why, "process, used, free", handle_ == nullptr ? why_ : std::string(kPart));
    return info;
  }
  driver::NvmlMemory memory;
  if (const std::string why = ask(nvml_.memory_info, &memory); !why.empty()) {
    add_reason(info.why, "used, free", why);
  } else {
    info.used = memory.used;
    info.free = memory.free;
    info.total = memory.total;
  }
  std::string why;
  info.process = process_memory(pid, info.context, why);
  if (!info.process.has_value()) {
    add_reason(info.why, "process", why);
  }
  return info;
}

std::optional<std::vector<driver::NvmlProcess>> compute_processes(const driver::Nvml& nvml, driver::NvmlDevice device,
                                                                  std::string& why) {
  if (nvml.compute_processes == nullptr) {
    why = kNoFunction;
    return std::nullopt;
  }
  std::vector<driver::NvmlProcess> processes(32);
  unsigned count = 0;
  int code = kInsufficientSize;
  // Processes may start between two calls.
  for (int attempt = 0; attempt < 3 && code == kInsufficientSize; ++attempt) {
    processes.resize(count + processes.size());
    count = static_cast<unsigned>(processes.size());
    code = nvml.compute_processes(device, &count, processes.data());
  }
  if (code != 0) {
    why = nvml.error_text(code);
    return std::nullopt;
  }
  processes.resize(count);
  return processes;
}

std::optional<uint64_t> Device::process_memory(unsigned pid, bool context, std::string& why) const {
  const auto processes = compute_processes(nvml_, handle_, why);
  if (!processes.has_value()) {
    return std::nullopt;
  }
  uint64_t bytes = 0;
  bool listed = false;
  for (const driver::NvmlProcess& process : *processes) {
    if (process.pid != pid) {
      continue;
    }
    if (process.bytes == driver::NvmlProcess::kUnknown) {
      why = "NVML does not tell the memory of processes here";
      return std::nullopt;
    }
    listed = true;
    bytes += process.bytes;
  }
  if (!listed && context) {
    why = "NVML does not list this process, as in containers with pids of their own";
    return std::nullopt;
  }
  return bytes;
}

const Device& Devices::of(int ordinal) {
  const std::lock_guard lock(mutex_);
  auto device = devices_.find(ordinal);
  if (device == devices_.end()) {
    device = devices_.try_emplace(ordinal, nvml_, cuda_, ordinal).first;
  }
  return device->second;
}

}  // namespace gpuscope::nvml
