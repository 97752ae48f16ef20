// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "gpuscope/nvml/device.h"

namespace gpuscope::nvml {
namespace {

// nvml.h
constexpr int kCorrected = 0;
constexpr int kUncorrected = 1;
constexpr int kAggregate = 1;
constexpr unsigned kUnknownState = 32;  // NVML_PSTATE_UNKNOWN

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

constexpr double kBytesUntilWrap = 4294967296.0;  // of a 32-bit counter

// Bytes per second and lane by generation, from the first: GT/s and coding of the PCIe base specifications.
constexpr std::array kLaneBytesPerS{0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};

constexpr const char* kOverTime = "it is a mean over time, which a sampler has and a moment has not";

constexpr const char* kWhileWatched = "NVML tells of errors when they happen, to a sampler; the kernel's log has them";

constexpr int kFreeSearches = 2;
constexpr std::chrono::seconds kLongestWait(60);

}  // namespace

GpuReader::GpuReader(const driver::Nvml& nvml, unsigned index) : nvml_(nvml) {
  state_.index = index;
  find();
}

bool GpuReader::find() {
  if (device_ != nullptr) {
    return true;
  }
  const auto now = std::chrono::steady_clock::now();
  if (searches_ > kFreeSearches && now < search_at_) {
    return false;
  }
  search_at_ = now + std::min<std::chrono::seconds>(std::chrono::seconds(1U << std::min(searches_, 6)), kLongestWait);
  ++searches_;
  if (lost_by_ != 0) {
    nvml_.init();  // needed after the driver was reloaded
  }
  if (const int code = nvml_.device_by_index(state_.index, &device_); code != 0) {
    device_ = nullptr;
    state_.why["all"] = nvml_.error_text(code);  // lost, or not permitted
    return false;
  }
  state_.why.clear();
  refused_.clear();
  lost_by_ = 0;
  read_names();
  searches_ = device_ != nullptr ? 0 : searches_;
  return device_ != nullptr;
}

void GpuReader::lose(int code) {
  GpuState lost;
  lost.index = state_.index;
  lost.name = state_.name;
  lost.uuid = state_.uuid;
  lost.pci_address = state_.pci_address;
  lost.why["all"] = nvml_.error_text(code);
  state_ = std::move(lost);
  device_ = nullptr;
  gpm_.reset();
  mig_.reset();
  lost_by_ = code;
}

template <class Function, class... Arguments>
bool GpuReader::ask(std::initializer_list<const char*> figures, Function* function, Arguments... arguments) {
  if (device_ == nullptr || refused_.contains(*figures.begin())) {
    return false;
  }
  const int code = function != nullptr ? function(device_, arguments...) : 0;
  const bool is_answer = function != nullptr && (code != 0 || !(is_unknown(arguments) || ...));
  return is_known(figures, code, function == nullptr ? kNoFunction : is_answer ? "" : kNotKnown);
}

bool GpuReader::is_known(std::initializer_list<const char*> figures, int code, const std::string& reason) {
  if (is_loss(code)) {
    lose(code);
    return false;
  }
  const bool failed = code != 0 || !reason.empty();
  for (const char* figure : figures) {
    if (!failed) {
      if (const auto known = state_.why.find(figure); known != state_.why.end()) {
        state_.why.erase(known);
      }
      continue;
    }
    state_.why[figure] = reason.empty() ? nvml_.error_text(code) : reason;
    if (reason == kNoFunction || is_refusal(code)) {
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
  if (ask({name}, nvml_.field_values, 1, &value) &&
      is_known({name}, value.code, value.code == 0 && std::isnan(value.number()) ? kNotKnown : "")) {
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
  read_load();
  read_settled();
}

void GpuReader::read_settled() {
  if (device_ == nullptr) {
    return;
  }
  read_number("temperature_c", state_.temperature_c, 1, nvml_.temperature, kGpuSensor);
  read_number("power_limit_w", state_.power_limit_w, kWattsPerMilliwatt, nvml_.power_limit);
  read_number("memory_hz", state_.memory_hz, kHzPerMhz, nvml_.clock_info, kMemoryClock);
  read_number("performance_state", state_.performance_state, 1, nvml_.performance_state);
  if (state_.performance_state == kUnknownState) {
    state_.performance_state.reset();
    state_.why["performance_state"] = kNotKnown;
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

void GpuReader::read_load() {
  if (!find()) {
    return;
  }
  driver::NvmlUtilization utilization;
  state_.busy_ratio.reset();
  state_.memory_busy_ratio.reset();
  if (ask({"busy_ratio", "memory_busy_ratio"}, nvml_.utilization, &utilization)) {
    state_.busy_ratio = utilization.gpu * kPerPercent;
    state_.memory_busy_ratio = utilization.memory * kPerPercent;
  }
  read_number("power_w", state_.power_w, kWattsPerMilliwatt, nvml_.power_usage);
  read_number("sm_hz", state_.sm_hz, kHzPerMhz, nvml_.clock_info, kSmClock);
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
  read_limits();
  driver::NvmlMarginTemperature margin;
  state_.temperature_margin_c.reset();
  if (ask({"temperature_margin_c"}, nvml_.margin_temperature, &margin)) {
    state_.temperature_margin_c = margin.celsius;
  }
  read_field("memory_temperature_c", state_.memory_temperature_c, 1, kMemoryTemperature);
  read_number("fan_ratio", state_.fan_ratio, kPerPercent, nvml_.fan_speed);
  read_throttled(false);
  read_media();
  read_bar1();
  read_processes();
  read_instances();
}

void GpuReader::read_rare() {
  read_throttled(true);
  read_number("pcie_generation", state_.pcie_generation, 1, nvml_.pcie_generation);
  read_number("pcie_width", state_.pcie_width, 1, nvml_.pcie_width);
  read_widest_link();
  read_errors();
}

void GpuReader::read_energy() {
  unsigned long long millijoules = 0;
  state_.energy_total_j.reset();
  if (ask({"energy_total_j"}, nvml_.energy, &millijoules)) {
    state_.energy_total_j = static_cast<double>(millijoules) * kJoulesPerMillijoule;
  }
}

// Constant while the GPU is present, and the clocks take 1.2 ms each on some hosts.
void GpuReader::read_limits() {
  if (!state_.power_limit_default_w) {
    read_number("power_limit_default_w", state_.power_limit_default_w, kWattsPerMilliwatt, nvml_.power_limit_default);
  }
  if (!state_.sm_max_hz) {
    read_number("sm_max_hz", state_.sm_max_hz, kHzPerMhz, nvml_.max_clock_info, kSmClock);
  }
  if (!state_.memory_max_hz) {
    read_number("memory_max_hz", state_.memory_max_hz, kHzPerMhz, nvml_.max_clock_info, kMemoryClock);
  }
}

void GpuReader::read_link_bytes(std::chrono::nanoseconds interval) {
  if (device_ == nullptr) {
    return;
  }
  const std::optional<double> wrap_s = link_wrap_s();
  const double interval_s = std::chrono::duration<double>(interval).count();
  if (wrap_s && *wrap_s <= interval_s) {
    state_.pcie_received_bytes.reset();
    state_.pcie_sent_bytes.reset();
    const std::string reason = "the counter has 32 bits and may wrap each " +
                               std::to_string(static_cast<int>(1e3 * *wrap_s)) +
                               " ms on this link: an interval as short would tell";
    state_.why["pcie_received_bytes"] = state_.why["pcie_sent_bytes"] = reason;
    return;
  }
  read_field("pcie_received_bytes", state_.pcie_received_bytes, 1, kPcieReceivedBytes);
  read_field("pcie_sent_bytes", state_.pcie_sent_bytes, 1, kPcieSentBytes);
}

// An unknown link is assumed to be the fastest.
std::optional<double> GpuReader::link_wrap_s() {
  read_widest_link();
  const double bytes_per_s =
      link_bytes_per_s(state_.pcie_generation_max.value_or(kLaneBytesPerS.size()), state_.pcie_width_max.value_or(16));
  return bytes_per_s > 0 ? std::optional(kBytesUntilWrap / bytes_per_s) : std::nullopt;
}

void GpuReader::read_counters() {
  if (device_ == nullptr) {
    return;
  }
  if (!gpm_) {
    gpm_.emplace(nvml_, device_);
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const GpmState& gpm = gpm_->read(std::chrono::nanoseconds(now).count(), state_.busy_ratio.value_or(0) > 0);
#define GPUSCOPE_TAKE_GPM(figure, id, unit) \
  state_.figure = gpm.figure;               \
  state_.why.erase(#figure);
  GPUSCOPE_GPM_FIGURES(GPUSCOPE_TAKE_GPM)
#undef GPUSCOPE_TAKE_GPM
  state_.why.insert(gpm.why.begin(), gpm.why.end());
}

void GpuReader::read_throttled(bool takes_long) {
  for (std::size_t at = 0; at < kThrottleReasons.size(); ++at) {
    const ThrottleReason& reason = kThrottleReasons[at];
    if (reason.takes_long == takes_long && reason.field != 0) {
      const std::string name = std::string("throttled_s.") + reason.name;
      read_field(name.c_str(), state_.throttled_s[at], kSecondsPerNs, reason.field);
    }
  }
}

// Constant while the GPU is present.
void GpuReader::read_widest_link() {
  if (!state_.pcie_generation_max) {
    read_number("pcie_generation_max", state_.pcie_generation_max, 1, nvml_.pcie_generation_max);
  }
  if (!state_.pcie_width_max) {
    read_number("pcie_width_max", state_.pcie_width_max, 1, nvml_.pcie_width_max);
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

void GpuReader::read_media() {
  const auto read_busy = [this](const char* name, std::optional<double>& figure, auto* function) {
    unsigned percent = 0;
    unsigned period_us = 0;
    figure.reset();
    if (ask({name}, function, &percent, &period_us)) {
      figure = percent * kPerPercent;
    }
  };
  read_busy("encoder_busy_ratio", state_.encoder_busy_ratio, nvml_.encoder_utilization);
  read_busy("decoder_busy_ratio", state_.decoder_busy_ratio, nvml_.decoder_utilization);
  read_busy("jpeg_busy_ratio", state_.jpeg_busy_ratio, nvml_.jpeg_utilization);
  read_busy("optical_flow_busy_ratio", state_.optical_flow_busy_ratio, nvml_.optical_flow_utilization);
}

void GpuReader::read_bar1() {
  driver::NvmlBar1Memory bar1;
  state_.bar1_used_bytes.reset();
  state_.bar1_total_bytes.reset();
  if (ask({"bar1_used_bytes", "bar1_total_bytes"}, nvml_.bar1_memory, &bar1)) {
    state_.bar1_used_bytes = bar1.used;
    state_.bar1_total_bytes = bar1.total;
  }
}

void GpuReader::read_processes() {
  if (device_ == nullptr) {  // it was lost meanwhile
    return;
  }
  std::string why;
  state_.processes = compute_processes(nvml_, device_, why);
  if (state_.processes.has_value()) {
    state_.why.erase("processes");
  } else {
    state_.why["processes"] = why;
  }
}

void GpuReader::read_instances() {
  state_.instances.reset();
  state_.why.erase("instances");
  if (device_ == nullptr || !state_.mig.value_or(false)) {
    mig_.reset();
    return;
  }
  if (!mig_) {
    mig_.emplace(nvml_, device_);
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::string why;
  state_.instances = mig_->read(std::chrono::nanoseconds(now).count(), why);
  if (!state_.instances.has_value()) {
    state_.why["instances"] = why;
    return;
  }
  if (state_.processes.has_value()) {
    return;
  }
  // NVML reports processes of a split GPU only per instance.
  std::vector<driver::NvmlProcess> processes;
  for (const MigInstance& instance : *state_.instances) {
    if (!instance.processes.has_value()) {
      return;
    }
    processes.insert(processes.end(), instance.processes->begin(), instance.processes->end());
  }
  state_.processes = std::move(processes);
  state_.why.erase("processes");
}

double link_bytes_per_s(uint64_t generation, uint64_t lanes) {
  const bool is_known = generation >= 1 && generation <= kLaneBytesPerS.size();
  return is_known ? kLaneBytesPerS[generation - 1] * static_cast<double>(lanes) : 0;
}

unsigned count_gpus(const driver::Nvml& nvml, std::string& why) {
  if (nvml.init == nullptr || nvml.device_count == nullptr || nvml.device_by_index == nullptr) {
    why = "libnvidia-ml was not found (" + nvml.library.why() + ")";
    return 0;
  }
  // Never shut down: other users of NVML in the process rely on the initialisation.
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
    reader.read_rare();
    reader.read_energy();
    reader.read_link_bytes(std::chrono::nanoseconds(0));  // a single reading
    states.gpus.push_back(reader.state());
    if (states.gpus.back().why.contains("all")) {
      continue;
    }
    states.gpus.back().why.emplace("xid_errors", kWhileWatched);
#define GPUSCOPE_EXPLAIN_GPM(figure, id, unit) states.gpus.back().why.emplace(#figure, kOverTime);
    GPUSCOPE_GPM_FIGURES(GPUSCOPE_EXPLAIN_GPM)
#undef GPUSCOPE_EXPLAIN_GPM
  }
  return states;
}

}  // namespace gpuscope::nvml
