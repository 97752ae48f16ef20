// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gpuscope/driver/libraries.h"
#include "gpuscope/nvml/gpm.h"
#include "gpuscope/nvml/mig.h"
#include "gpuscope/nvml/xid.h"

namespace gpuscope::nvml {

// X(type, name). Ratios are 0 to 1. Other names end with the unit: SI base units, and bytes.
#define GPUSCOPE_GPU_FIGURES(X)          \
  X(double, busy_ratio)                  \
  X(double, memory_busy_ratio)           \
  X(double, encoder_busy_ratio)          \
  X(double, decoder_busy_ratio)          \
  X(double, jpeg_busy_ratio)             \
  X(double, optical_flow_busy_ratio)     \
  X(uint64_t, memory_used_bytes)         \
  X(uint64_t, memory_free_bytes)         \
  X(uint64_t, memory_reserved_bytes)     \
  X(uint64_t, memory_total_bytes)        \
  X(uint64_t, bar1_used_bytes)           \
  X(uint64_t, bar1_total_bytes)          \
  X(double, power_w)                     \
  X(double, power_instant_w)             \
  X(double, power_limit_w)               \
  X(double, power_limit_default_w)       \
  X(double, energy_total_j)              \
  X(double, sm_hz)                       \
  X(double, sm_max_hz)                   \
  X(double, memory_hz)                   \
  X(double, memory_max_hz)               \
  X(double, temperature_c)               \
  X(double, temperature_margin_c)        \
  X(double, memory_temperature_c)        \
  X(double, fan_ratio)                   \
  X(uint64_t, pcie_generation)           \
  X(uint64_t, pcie_generation_max)       \
  X(uint64_t, pcie_width)                \
  X(uint64_t, pcie_width_max)            \
  X(uint64_t, pcie_received_bytes)       \
  X(uint64_t, pcie_sent_bytes)           \
  X(uint64_t, ecc_corrected)             \
  X(uint64_t, ecc_uncorrected)           \
  X(uint64_t, remapped_rows)             \
  X(bool, remapping_pending)             \
  X(bool, remapping_failed)              \
  X(uint64_t, performance_state)         \
  X(double, sm_active_ratio)             \
  X(double, sm_occupancy_ratio)          \
  X(double, tensor_active_ratio)         \
  X(double, fp64_active_ratio)           \
  X(double, fp32_active_ratio)           \
  X(double, fp16_active_ratio)           \
  X(double, integer_active_ratio)        \
  X(double, dram_bandwidth_ratio)        \
  X(double, pcie_received_bytes_per_s)   \
  X(double, pcie_sent_bytes_per_s)       \
  X(double, nvlink_received_bytes_per_s) \
  X(double, nvlink_sent_bytes_per_s)

// X(name, bit of nvmlClocksEventReasons or 0, NVML field that counts ns or 0, whether it is a fault of the machine,
// whether the field is slow to read). Slow is 0.4 ms on an H100, fast (74, 269) is 1.5 us. 76 is assumed to be slow.
#define GPUSCOPE_THROTTLE_REASONS(X)                \
  X(gpu_idle, 0x1, 0, false, false)                 \
  X(applications_clocks, 0x2, 0, false, false)      \
  X(sw_power_cap, 0x4, 74, true, false)             \
  X(hw_slowdown, 0x8, 0, true, false)               \
  X(sync_boost, 0x10, 76, true, true)               \
  X(sw_thermal_slowdown, 0x20, 269, true, false)    \
  X(hw_thermal_slowdown, 0x40, 270, true, true)     \
  X(hw_power_brake_slowdown, 0x80, 271, true, true) \
  X(display_clocks, 0x100, 0, false, false)

struct ThrottleReason {
  const char* name;
  uint64_t bit;
  unsigned field;
  bool is_fault;
  bool takes_long;
};
#define GPUSCOPE_THROTTLE_REASON(name, ...) ThrottleReason{#name, __VA_ARGS__},
inline constexpr std::array kThrottleReasons{GPUSCOPE_THROTTLE_REASONS(GPUSCOPE_THROTTLE_REASON)};
#undef GPUSCOPE_THROTTLE_REASON

/// The bits of the reasons that are slow to read.
inline constexpr uint64_t kRareReasons = [] {
  uint64_t bits = 0;
  for (const ThrottleReason& reason : kThrottleReasons) {
    bits |= reason.takes_long ? reason.bit : 0;
  }
  return bits;
}();

/// A GPU's state at one moment, from NVML. `why` gives the reason for each missing figure.
struct GpuState {
  unsigned index = 0;  // NVML's, in PCI address order
  std::string name;
  std::string uuid;
  std::string pci_address;
#define GPUSCOPE_FIGURE_MEMBER(type, figure) std::optional<type> figure;
  GPUSCOPE_GPU_FIGURES(GPUSCOPE_FIGURE_MEMBER)
#undef GPUSCOPE_FIGURE_MEMBER
  std::optional<uint64_t> throttle_bits;                                   // current throttle reasons
  std::array<std::optional<double>, kThrottleReasons.size()> throttled_s;  // since the driver was loaded
  std::optional<bool> mig;                                                 // the GPU is split into instances
  std::optional<std::vector<MigInstance>> instances;                       // of a split GPU
  std::optional<std::vector<XidCount>> xid_errors;                         // since the watch began
  std::optional<std::vector<driver::NvmlProcess>> processes;               // compute processes; numbers of the host
  Reasons why;
};

/// Reads one GPU repeatedly. Figures that a driver refuses are not requested again, until `forget_refusals`. A lost GPU
/// is searched at growing intervals, up to once per minute. Its figures are absent until then, and `why` has the reason
/// under "all". Only `read_load` and `read_slow` search. One thread.
class GpuReader {
 public:
  GpuReader(const driver::Nvml& nvml, unsigned index);

  const GpuState& state() const noexcept { return state_; }
  /// NVML's. Null while the GPU is lost.
  driver::NvmlDevice device() const noexcept { return device_; }
  /// Figures that change quickly and take microseconds: `read_load` and `read_settled`.
  void read_fast();
  /// Use, power, the SM clock and throttle reasons.
  void read_load();
  /// Memory, temperature, the power limit, the memory clock and the performance state.
  void read_settled();
  /// Figures that change rarely.
  void read_slow();
  /// Slow figures, a millisecond or two: throttle times that are `takes_long`, memory errors, and the link.
  void read_rare();
  /// The energy counter: 2 to 4 ms.
  void read_energy();
  /// Parts of the above. read_throttled: throttle times, all slow or all fast ones. read_limits: the limits of clocks
  /// and power.
  void read_throttled(bool takes_long);
  void read_limits();
  /// Bytes transferred over the link to the host: 32-bit counters, about 80 us each. Read every `interval`. Absent if
  /// they could wrap within it, as the number of wraps would be unknown.
  void read_link_bytes(std::chrono::nanoseconds interval);
  /// NVML's performance counters (GPM) since the previous reading.
  void read_counters();
  void forget_refusals() {
    refused_.clear();
    gpm_.reset();  // has refusals of its own
  }

 private:
  bool find();
  void lose(int code);
  std::optional<double> link_wrap_s();
  /// Calls a function of NVML for these figures. False if it does not answer, with the reason in `why`.
  template <class Function, class... Arguments>
  bool ask(std::initializer_list<const char*> figures, Function* function, Arguments... arguments);
  bool is_known(std::initializer_list<const char*> figures, int code, const std::string& reason);
  template <class T, class Function, class... Selectors>
  void read_number(const char* name, std::optional<T>& figure, double scale, Function* function,
                   Selectors... selectors);
  template <class T>
  void read_field(const char* name, std::optional<T>& figure, double scale, unsigned field);
  void read_names();
  void read_widest_link();
  void read_errors();
  void read_media();
  void read_bar1();
  void read_processes();
  void read_instances();

  driver::Nvml nvml_;
  driver::NvmlDevice device_ = nullptr;
  GpuState state_;
  std::set<std::string, std::less<>> refused_;
  std::optional<GpmReader> gpm_;
  std::optional<MigReader> mig_;
  int lost_by_ = 0;  // code of NVML
  int searches_ = 0;
  std::chrono::steady_clock::time_point search_at_;
};

/// Bytes per second of a PCIe link in one direction, including headers. 0 for unknown generations.
double link_bytes_per_s(uint64_t generation, uint64_t lanes);

/// All GPUs of NVML, and the driver.
struct GpuStates {
  std::string driver_version;
  std::vector<GpuState> gpus;
  std::string why;  // there are none
};

/// The number of GPUs in NVML. 0 if there are none, with the reason in `why`. Initialises NVML.
unsigned count_gpus(const driver::Nvml& nvml, std::string& why);

/// Reads everything from NVML, without CUDA. Takes some ms per GPU: for single readings, not for a sampler. Never
/// throws for missing features. Any thread.
GpuStates read_gpu_states(const driver::Nvml& nvml);

}  // namespace gpuscope::nvml
