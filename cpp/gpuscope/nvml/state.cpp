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

// nvmlReturn_t: what a driver that says it will say again.
bool is_final(int code) {
  constexpr int kInvalidArgument = 2;
  constexpr int kNotSupported = 3;
  constexpr int kNoPermission = 4;
  constexpr int kFunctionNotFound = 13;
  return code == kInvalidArgument || code == kNotSupported || code == kNoPermission || code == kFunctionNotFound;
}

}  // namespace

GpuReader::GpuReader(const driver::Nvml& nvml, unsigned index) : nvml_(nvml) {
  state_.index = index;
  find();
}

bool GpuReader::find() {
  if (device_ != nullptr) {
    return true;
  }
  if (const int code = nvml_.device_by_index(state_.index, &device_); code != 0) {
    device_ = nullptr;
    state_.why["all"] = nvml_.error_text(code);  // fallen off the bus, or not allowed here
    return false;
  }
  state_.why.erase("all");
  read_names();
  return true;
}

template <class Function, class... Arguments>
bool GpuReader::ask(std::initializer_list<const char*> figures, Function* function, Arguments... arguments) {
  if (refused_.contains(*figures.begin())) {
    return false;
  }
  const int code = function != nullptr ? function(device_, arguments...) : 0;
  return is_known(figures, code, function == nullptr ? kNoFunction : "");
}

bool GpuReader::is_known(std::initializer_list<const char*> figures, int code, const std::string& reason) {
  const bool failed = code != 0 || !reason.empty();
  for (const char* figure : figures) {
    if (!failed) {
      state_.why.erase(figure);
      continue;
    }
    state_.why[figure] = reason.empty() ? nvml_.error_text(code) : reason;
    if (!reason.empty() || is_final(code)) {
      refused_.insert(figure);
    }
  }
  return !failed;
}

template <class T, class Function, class... Selectors>
void GpuReader::read_number(const char* name, std::optional<T>& figure, double scale, Function* function,
                            Selectors... selectors) {
  unsigned value = 0;
  figure.reset();
  if (ask({name}, function, selectors..., &value)) {
    figure = static_cast<T>(value * scale);
  }
}

template <class T>
void GpuReader::read_field(const char* name, std::optional<T>& figure, double scale, unsigned field) {
  driver::NvmlFieldValue value;
  value.field = field;
  figure.reset();
  if (ask({name}, nvml_.field_values, 1, &value) && is_known({name}, value.code, "")) {
    figure = static_cast<T>(value.number() * scale);
  }
}

void GpuReader::read_names() {
  std::array<char, 96> text{};
  if (ask({"name"}, nvml_.name, text.data(), static_cast<unsigned>(text.size()))) {
    state_.name = text.data();
  }
  if (ask({"uuid"}, nvml_.uuid, text.data(), static_cast<unsigned>(text.size()))) {
    state_.uuid = text.data();
  }
  driver::NvmlPciInfo pci;
  if (ask({"pci_address"}, nvml_.pci_info, &pci)) {
    state_.pci_address = pci.bus_id.data();
  }
}

void GpuReader::read_fast() {
  if (!find()) {
    return;
  }
  read_use();
  read_number("power_w", state_.power_w, kWattsPerMilliwatt, nvml_.power_usage);
  read_number("power_limit_w", state_.power_limit_w, kWattsPerMilliwatt, nvml_.power_limit);
  read_number("temperature_c", state_.temperature_c, 1, nvml_.temperature, kGpuSensor);
  read_number("sm_hz", state_.sm_hz, kHzPerMhz, nvml_.clock_info, kSmClock);
  read_number("memory_hz", state_.memory_hz, kHzPerMhz, nvml_.clock_info, kMemoryClock);
  read_number("performance_state", state_.performance_state, 1, nvml_.performance_state);
  unsigned long long bits = 0;
  const bool is_renamed = nvml_.clocks_event_reasons != nullptr;
  state_.throttle_bits.reset();
  if (ask({"throttle_reasons"}, is_renamed ? nvml_.clocks_event_reasons : nvml_.clocks_throttle_reasons, &bits)) {
    state_.throttle_bits = bits;
  }
}

void GpuReader::read_slow() {
  if (!find()) {
    return;
  }
  unsigned current = 0;
  unsigned pending = 0;
  state_.mig.reset();
  if (ask({"mig"}, nvml_.mig_mode, &current, &pending)) {
    state_.mig = current == 1;
  }
  read_field("power_instant_w", state_.power_instant_w, kWattsPerMilliwatt, kPowerInstant);
  read_number("power_limit_default_w", state_.power_limit_default_w, kWattsPerMilliwatt, nvml_.power_limit_default);
  unsigned long long millijoules = 0;
  state_.energy_total_j.reset();
  if (ask({"energy_total_j"}, nvml_.energy, &millijoules)) {
    state_.energy_total_j = static_cast<double>(millijoules) * kJoulesPerMillijoule;
  }
  driver::NvmlMarginTemperature margin;
  state_.temperature_margin_c.reset();
  if (ask({"temperature_margin_c"}, nvml_.margin_temperature, &margin)) {
    state_.temperature_margin_c = margin.celsius;
  }
  read_field("memory_temperature_c", state_.memory_temperature_c, 1, kMemoryTemperature);
  read_number("fan_ratio", state_.fan_ratio, kPerPercent, nvml_.fan_speed);
  read_number("sm_max_hz", state_.sm_max_hz, kHzPerMhz, nvml_.max_clock_info, kSmClock);
  read_number("memory_max_hz", state_.memory_max_hz, kHzPerMhz, nvml_.max_clock_info, kMemoryClock);
  for (std::size_t reason = 0; reason < kThrottleReasons.size(); ++reason) {
    read_throttled(reason);
  }
  read_number("pcie_generation", state_.pcie_generation, 1, nvml_.pcie_generation);
  read_number("pcie_generation_max", state_.pcie_generation_max, 1, nvml_.pcie_generation_max);
  read_number("pcie_width", state_.pcie_width, 1, nvml_.pcie_width);
  read_number("pcie_width_max", state_.pcie_width_max, 1, nvml_.pcie_width_max);
  read_field("pcie_received_bytes", state_.pcie_received_bytes, 1, kPcieReceivedBytes);
  read_field("pcie_sent_bytes", state_.pcie_sent_bytes, 1, kPcieSentBytes);
  read_errors();
  read_processes();
}

void GpuReader::read_use() {
  driver::NvmlUtilization utilization;
  state_.busy_ratio.reset();
  state_.memory_busy_ratio.reset();
  if (ask({"busy_ratio", "memory_busy_ratio"}, nvml_.utilization, &utilization)) {
    state_.busy_ratio = utilization.gpu * kPerPercent;
    state_.memory_busy_ratio = utilization.memory * kPerPercent;
  }
  driver::NvmlMemory memory;
  const bool is_told = ask({"memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes", "memory_total_bytes"},
                           nvml_.memory_info, &memory);
  const auto told = [is_told](unsigned long long bytes) {
    return is_told ? std::optional<uint64_t>(bytes) : std::nullopt;
  };
  state_.memory_used_bytes = told(memory.used);
  state_.memory_free_bytes = told(memory.free);
  state_.memory_reserved_bytes = told(memory.reserved);
  state_.memory_total_bytes = told(memory.total);
}

void GpuReader::read_throttled(std::size_t reason) {
  if (kThrottleReasons[reason].field != 0) {
    const std::string name = std::string("throttled_s.") + kThrottleReasons[reason].name;
    read_field(name.c_str(), state_.throttled_s[reason], kSecondsPerNs, kThrottleReasons[reason].field);
  }
}

void GpuReader::read_errors() {
  const auto read_ecc = [this](const char* name, std::optional<uint64_t>& figure, int kind) {
    unsigned long long count = 0;
    figure.reset();
    if (ask({name}, nvml_.total_ecc_errors, kind, kAggregate, &count)) {
      figure = count;
    }
  };
  read_ecc("ecc_corrected", state_.ecc_corrected, kCorrected);
  read_ecc("ecc_uncorrected", state_.ecc_uncorrected, kUncorrected);
  unsigned corrected = 0;
  unsigned uncorrected = 0;
  unsigned pending = 0;
  unsigned failed = 0;
  state_.remapped_rows.reset();
  state_.remapping_pending.reset();
  state_.remapping_failed.reset();
  if (ask({"remapped_rows", "remapping_pending", "remapping_failed"}, nvml_.remapped_rows, &corrected, &uncorrected,
          &pending, &failed)) {
    state_.remapped_rows = corrected + uncorrected;
    state_.remapping_pending = pending != 0;
    state_.remapping_failed = failed != 0;
  }
}

void GpuReader::read_processes() {
  std::string why;
  state_.processes = compute_processes(nvml_, device_, why);
  if (state_.processes.has_value()) {
    state_.why.erase("processes");
  } else {
    state_.why["processes"] = why;
  }
}

unsigned count_gpus(const driver::Nvml& nvml, std::string& why) {
  if (nvml.init == nullptr || nvml.device_count == nullptr || nvml.device_by_index == nullptr) {
    why = "libnvidia-ml was not found (" + nvml.library.why() + ")";
    return 0;
  }
  // Never shut down: other users of NVML in the process count on one another's initialisation.
  if (const int code = nvml.init(); code != 0) {
    why = "nvmlInit_v2 failed: " + nvml.error_text(code);
    return 0;
  }
  unsigned count = 0;
  if (const int code = nvml.device_count(&count); code != 0) {
    why = "nvmlDeviceGetCount_v2 failed: " + nvml.error_text(code);
    return 0;
  }
  if (count == 0) {
    why = "NVML shows no GPU";
  }
  return count;
}

GpuStates read_gpu_states(const driver::Nvml& nvml) {
  GpuStates states;
  const unsigned count = count_gpus(nvml, states.why);
  std::array<char, 96> version{};
  if (count != 0 && nvml.system_get_driver_version != nullptr &&
      nvml.system_get_driver_version(version.data(), static_cast<unsigned>(version.size())) == 0) {
    states.driver_version = version.data();
  }
  for (unsigned index = 0; index < count; ++index) {
    GpuReader reader(nvml, index);
    reader.read_fast();
    reader.read_slow();
    states.gpus.push_back(reader.state());
  }
  return states;
}

}  // namespace gpuscope::nvml
