// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/state.h"

#include <array>

#include "gpuscope/nvml/device.h"

namespace gpuscope::nvml {
namespace {

// nvml.h
constexpr int kCorrected = 0;
constexpr int kUncorrected = 1;
constexpr int kAggregate = 1;

// NVML_FI_DEV_*
constexpr unsigned kMemoryTemperature = 82;
constexpr unsigned kPowerInstant = 186;
constexpr unsigned kPcieSentBytes = 197;
constexpr unsigned kPcieReceivedBytes = 198;

constexpr double kHzPerMhz = 1e6;
constexpr double kWattsPerMilliwatt = 1e-3;
constexpr double kJoulesPerMillijoule = 1e-3;
constexpr double kSecondsPerNs = 1e-9;
constexpr double kPerPercent = 0.01;

/// Reads one GPU: each figure is set, or named with why it is not.
class Reader {
 public:
  Reader(const driver::Nvml& nvml, driver::NvmlDevice device, GpuState& state)
      : nvml_(nvml), device_(device), state_(state) {}

  void read() {
    read_names();
    read_use();
    read_power();
    read_clocks();
    read_link();
    read_errors();
    read_processes();
  }

 private:
  /// Why a call failed, "" when it did not.
  template <class Function, class... Arguments>
  std::string ask(Function* function, Arguments... arguments) const {
    if (function == nullptr) {
      return kNoFunction;
    }
    const int code = function(device_, arguments...);
    return code == 0 ? "" : nvml_.error_text(code);
  }

  bool is_known(const char* figure, const std::string& why) {
    if (!why.empty()) {
      state_.why.emplace_back(figure, why);
    }
    return why.empty();
  }

  template <class T, class Function, class... Selectors>
  void read_number(const char* name, std::optional<T>& figure, double scale, Function* function,
                   Selectors... selectors) {
    unsigned value = 0;
    if (is_known(name, ask(function, selectors..., &value))) {
      figure = static_cast<T>(value * scale);
    }
  }

  void read_names() {
    std::array<char, 96> text{};
    if (is_known("name", ask(nvml_.name, text.data(), static_cast<unsigned>(text.size())))) {
      state_.name = text.data();
    }
    if (is_known("uuid", ask(nvml_.uuid, text.data(), static_cast<unsigned>(text.size())))) {
      state_.uuid = text.data();
    }
    driver::NvmlPciInfo pci;
    if (is_known("pci_address", ask(nvml_.pci_info, &pci))) {
      state_.pci_address = pci.bus_id.data();
    }
    unsigned current = 0;
    unsigned pending = 0;
    if (is_known("mig", ask(nvml_.mig_mode, &current, &pending))) {
      state_.mig = current == 1;
    }
  }

  void read_use() {
    driver::NvmlUtilization utilization;
    const std::string why = ask(nvml_.utilization, &utilization);
    if (is_known("busy_ratio", why)) {
      state_.busy_ratio = utilization.gpu * kPerPercent;
    }
    if (is_known("memory_busy_ratio", why)) {
      state_.memory_busy_ratio = utilization.memory * kPerPercent;
    }
    driver::NvmlMemory memory;
    const std::string memory_why = ask(nvml_.memory_info, &memory);
    const auto set = [&](const char* name, std::optional<uint64_t>& figure, unsigned long long bytes) {
      if (is_known(name, memory_why)) {
        figure = bytes;
      }
    };
    set("memory_used_bytes", state_.memory_used_bytes, memory.used);
    set("memory_free_bytes", state_.memory_free_bytes, memory.free);
    set("memory_reserved_bytes", state_.memory_reserved_bytes, memory.reserved);
    set("memory_total_bytes", state_.memory_total_bytes, memory.total);
  }

  void read_power() {
    read_number("power_w", state_.power_w, kWattsPerMilliwatt, nvml_.power_usage);
    read_field("power_instant_w", state_.power_instant_w, kWattsPerMilliwatt, kPowerInstant);
    read_number("power_limit_w", state_.power_limit_w, kWattsPerMilliwatt, nvml_.power_limit);
    read_number("power_limit_default_w", state_.power_limit_default_w, kWattsPerMilliwatt, nvml_.power_limit_default);
    unsigned long long millijoules = 0;
    if (is_known("energy_total_j", ask(nvml_.energy, &millijoules))) {
      state_.energy_total_j = static_cast<double>(millijoules) * kJoulesPerMillijoule;
    }
    read_number("temperature_c", state_.temperature_c, 1, nvml_.temperature, kGpuSensor);
    driver::NvmlMarginTemperature margin;
    if (is_known("temperature_margin_c", ask(nvml_.margin_temperature, &margin))) {
      state_.temperature_margin_c = margin.celsius;
    }
    read_field("memory_temperature_c", state_.memory_temperature_c, 1, kMemoryTemperature);
    read_number("fan_ratio", state_.fan_ratio, kPerPercent, nvml_.fan_speed);
  }

  void read_clocks() {
    read_number("sm_hz", state_.sm_hz, kHzPerMhz, nvml_.clock_info, kSmClock);
    read_number("sm_max_hz", state_.sm_max_hz, kHzPerMhz, nvml_.max_clock_info, kSmClock);
    read_number("memory_hz", state_.memory_hz, kHzPerMhz, nvml_.clock_info, kMemoryClock);
    read_number("memory_max_hz", state_.memory_max_hz, kHzPerMhz, nvml_.max_clock_info, kMemoryClock);
    read_number("performance_state", state_.performance_state, 1, nvml_.performance_state);
    unsigned long long bits = 0;
    const bool is_renamed = nvml_.clocks_event_reasons != nullptr;
    if (is_known("throttle_reasons",
                 ask(is_renamed ? nvml_.clocks_event_reasons : nvml_.clocks_throttle_reasons, &bits))) {
      state_.throttle_bits = bits;
    }
#define GPUSCOPE_READ_THROTTLED(reason, bit, field, is_fault) \
  if (field != 0) {                                           \
    read_throttled(#reason, field);                           \
  }
    GPUSCOPE_THROTTLE_REASONS(GPUSCOPE_READ_THROTTLED)
#undef GPUSCOPE_READ_THROTTLED
  }

  void read_throttled(const char* reason, unsigned field) {
    std::optional<double> seconds;
    read_field("throttled_s", seconds, kSecondsPerNs, field, reason);
    if (seconds.has_value()) {
      state_.throttled_seconds.emplace_back(reason, *seconds);
    }
  }

  void read_link() {
    read_number("pcie_generation", state_.pcie_generation, 1, nvml_.pcie_generation);
    read_number("pcie_generation_max", state_.pcie_generation_max, 1, nvml_.pcie_generation_max);
    read_number("pcie_width", state_.pcie_width, 1, nvml_.pcie_width);
    read_number("pcie_width_max", state_.pcie_width_max, 1, nvml_.pcie_width_max);
    read_field("pcie_received_bytes", state_.pcie_received_bytes, 1, kPcieReceivedBytes);
    read_field("pcie_sent_bytes", state_.pcie_sent_bytes, 1, kPcieSentBytes);
  }

  void read_errors() {
    const auto read_ecc = [this](const char* name, std::optional<uint64_t>& figure, int kind) {
      unsigned long long count = 0;
      if (is_known(name, ask(nvml_.total_ecc_errors, kind, kAggregate, &count))) {
        figure = count;
      }
    };
    read_ecc("ecc_corrected", state_.ecc_corrected, kCorrected);
    read_ecc("ecc_uncorrected", state_.ecc_uncorrected, kUncorrected);
    unsigned corrected = 0;
    unsigned uncorrected = 0;
    unsigned pending = 0;
    unsigned failed = 0;
    const std::string why = ask(nvml_.remapped_rows, &corrected, &uncorrected, &pending, &failed);
    if (is_known("remapped_rows", why)) {
      state_.remapped_rows = corrected + uncorrected;
    }
    if (is_known("remapping_pending", why)) {
      state_.remapping_pending = pending != 0;
    }
    if (is_known("remapping_failed", why)) {
      state_.remapping_failed = failed != 0;
    }
  }

  void read_processes() {
    std::string why;
    state_.processes = compute_processes(nvml_, device_, why);
    is_known("processes", why);
  }

  /// A figure that NVML gives by a number; `detail` says which of several of a name.
  template <class T>
  void read_field(const char* name, std::optional<T>& figure, double scale, unsigned field,
                  const char* detail = nullptr) {
    driver::NvmlFieldValue value;
    value.field = field;
    std::string why = ask(nvml_.field_values, 1, &value);
    if (why.empty() && value.code != 0) {
      why = nvml_.error_text(value.code);
    }
    if (is_known((detail != nullptr ? std::string(name) + "." + detail : name).c_str(), why)) {
      figure = static_cast<T>(value.number() * scale);
    }
  }

  const driver::Nvml& nvml_;
  driver::NvmlDevice device_;
  GpuState& state_;
};

}  // namespace

GpuStates read_gpu_states(const driver::Nvml& nvml) {
  GpuStates states;
  if (nvml.init == nullptr || nvml.device_count == nullptr || nvml.device_by_index == nullptr) {
    states.why = "libnvidia-ml was not found (" + nvml.library.why() + ")";
    return states;
  }
  // Never shut down: other users of NVML in the process count on one another's initialisation.
  if (const int code = nvml.init(); code != 0) {
    states.why = "nvmlInit_v2 failed: " + nvml.error_text(code);
    return states;
  }
  std::array<char, 96> version{};
  if (nvml.system_get_driver_version != nullptr &&
      nvml.system_get_driver_version(version.data(), static_cast<unsigned>(version.size())) == 0) {
    states.driver_version = version.data();
  }
  unsigned count = 0;
  if (const int code = nvml.device_count(&count); code != 0) {
    states.why = "nvmlDeviceGetCount_v2 failed: " + nvml.error_text(code);
    return states;
  }
  for (unsigned index = 0; index < count; ++index) {
    GpuState& state = states.gpus.emplace_back();
    state.index = index;
    driver::NvmlDevice device = nullptr;
    if (const int code = nvml.device_by_index(index, &device); code != 0) {
      state.why.emplace_back("all", nvml.error_text(code));  // fallen off the bus, or not allowed here
      continue;
    }
    Reader(nvml, device, state).read();
  }
  if (count == 0) {
    states.why = "NVML shows no GPU";
  }
  return states;
}

}  // namespace gpuscope::nvml
