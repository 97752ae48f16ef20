// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/recording_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>

#include "gpuscope/driver/devices.h"

namespace gpuscope::nvml {
namespace {

using Sample = store::DeviceSamples::Row;
using Count = store::DeviceCounters::Row;
using store::kNotRead;

// The time between searches for the first context of the process, and for more.
constexpr int64_t kFirstLookNs = kSecondNs / 50;
constexpr int64_t kNextLookNs = kSecondNs;
constexpr std::size_t kMostRows = std::size_t{1} << 16;  // not taken yet: 10 MB

// X(group, figure, its column, size of the figure's unit in the column's).
#define GPUSCOPE_SAMPLED_FIGURES(X)                            \
  X(kFast, power_w, power_mw, 1e3)                             \
  X(kFast, sm_hz, sm_mhz, 1e-6)                                \
  X(kSecond, temperature_c, temperature_c, 1)                  \
  X(kFast, busy_ratio, busy_percent, 100)                      \
  X(kFast, memory_busy_ratio, memory_busy_percent, 100)        \
  X(kSecond, memory_used_bytes, memory_used_bytes, 1)          \
  X(kSecond, power_limit_w, power_limit_mw, 1e3)               \
  X(kSecond, memory_hz, memory_mhz, 1e-6)                      \
  X(kRare, power_limit_default_w, power_limit_default_mw, 1e3) \
  X(kRare, sm_max_hz, sm_max_mhz, 1e-6)

/// The columns of throttle times, in the order of kThrottleReasons. Null if NVML does not count it.
constexpr std::array<int64_t Count::*, kThrottleReasons.size()> kThrottleColumns{
    nullptr,
    nullptr,
    &Count::sw_power_cap_ns,
    nullptr,
    &Count::sync_boost_ns,
    &Count::sw_thermal_slowdown_ns,
    &Count::hw_thermal_slowdown_ns,
    &Count::hw_power_brake_slowdown_ns,
    nullptr,
};

#define GPUSCOPE_BLANK(type, name, meaning, doc) row.name = static_cast<type>(kNotRead);
template <class Row>
Row blank_row(int64_t time_ns, unsigned device) {
  Row row{};
  if constexpr (std::is_same_v<Row, Sample>) {
    GPUSCOPE_DEVICE_SAMPLE(GPUSCOPE_BLANK)
  } else {
    GPUSCOPE_DEVICE_COUNTER(GPUSCOPE_BLANK)
  }
  row.start_ns = time_ns;
  row.device = device;
  return row;
}
#undef GPUSCOPE_BLANK

/// Fills a column, unless the figure is absent or too large for it. Returns whether it did.
template <class Column, class T>
bool fill(Column& column, const std::optional<T>& figure, double per_unit) {
  const double value = figure ? std::round(static_cast<double>(*figure) * per_unit) : kNotRead;
  const bool fits = value >= 0 && value < static_cast<double>(std::numeric_limits<Column>::max());
  column = fits ? static_cast<Column>(value) : static_cast<Column>(kNotRead);
  return fits;
}

/// The column of a figure in `GpuState::why`; "" if it has none.
std::string column_of(std::string_view figure) {
  constexpr std::string_view kThrottled = "throttled_s.";
  if (figure.starts_with(kThrottled)) {
    return std::string(figure.substr(kThrottled.size())) + "_ns";
  }
#define GPUSCOPE_FIND_COLUMN(group, name, column, per_unit) \
  if (figure == #name) {                                    \
    return #column;                                         \
  }
  GPUSCOPE_SAMPLED_FIGURES(GPUSCOPE_FIND_COLUMN)
#undef GPUSCOPE_FIND_COLUMN
  return figure == "energy_total_j"                        ? "energy_mj"
         : figure == "all" || figure == "throttle_reasons" ? std::string(figure)
                                                           : "";
}

/// Compares the format of NVML, "00000000:1B:00.0", with that of CUDA, "0000:1b:00.0".
bool is_same_address(std::string_view nvml, std::string_view cuda) {
  const auto lower = [](char letter) { return letter >= 'A' && letter <= 'Z' ? letter + ('a' - 'A') : int{letter}; };
  const std::size_t length = std::min(nvml.size(), cuda.size());
  return length != 0 &&
         std::ranges::equal(nvml.substr(nvml.size() - length), cuda.substr(cuda.size() - length), {}, lower, lower);
}

}  // namespace

class RecordingSampler::Tables : public Sampler::Loop {
 public:
  Tables(const driver::Nvml& nvml, const driver::Cuda& cuda, std::chrono::nanoseconds interval)
      : Loop(nvml, interval, "gpuscope-nvml"), cuda_(cuda) {}

  Rows take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(rows_, {});
  }
  SamplingCost take_cost() {
    const std::lock_guard lock(mutex_);
    return std::exchange(cost_, {});
  }
  Why why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  std::string why_none() const {
    const std::lock_guard lock(mutex_);
    return why_none_;
  }

 private:
  static constexpr const char* kNoContext = "the process has no context on a GPU";

  int64_t find_gpus(int64_t now) override {
    std::string reason = find_contexts();
    const std::lock_guard lock(mutex_);
    why_none_ = gpus_.empty() ? std::move(reason) : "";
    return now + (gpus_.empty() && cuda_.library ? kFirstLookNs : kNextLookNs);
  }

  /// Adds the GPUs with a new context. Returns why there are none.
  std::string find_contexts() {
    if (!cuda_.library) {
      return "no NVIDIA driver was found (" + cuda_.library.why() + ")";
    }
    std::string reason = kNoContext;
    for (const int ordinal : driver::devices_in_use(cuda_)) {
      const auto number = static_cast<unsigned>(ordinal);
      driver::CuDevice device = 0;
      const bool is_known = std::ranges::find(gpus_, number, &Gpu::number) != gpus_.end();
      if (is_known || cuda_.device_get(&device, ordinal) != 0) {
        continue;
      }
      if (count_ == 0) {
        no_gpu_why_.clear();
        count_ = count_gpus(nvml_, no_gpu_why_);
      }
      add_gpu(number, device);
      reason = !no_gpu_why_.empty() ? no_gpu_why_ : "NVML does not know the GPU that the process uses";
    }
    return reason;
  }

  void add_gpu(unsigned number, driver::CuDevice device) {
    driver::CuUuid uuid{};
    std::array<char, 32> address{};
    if (cuda_.device_get_uuid == nullptr || cuda_.device_get_uuid(&uuid, device) != 0) {
      return;
    }
    if (cuda_.device_get_pci_bus_id == nullptr ||
        cuda_.device_get_pci_bus_id(address.data(), static_cast<int>(address.size()), device) != 0) {
      address[0] = '\0';
    }
    std::optional<GpuReader> found;
    bool is_whole = false;
    for (unsigned index = 0; index < count_ && !is_whole; ++index) {
      GpuReader reader(nvml_, index);
      is_whole = reader.state().uuid == driver::uuid_text(uuid);
      if (is_whole || is_same_address(reader.state().pci_address, address.data())) {
        found.emplace(std::move(reader));
      }
    }
    if (found) {
      gpus_.push_back({std::move(*found), number, !is_whole});
    }
  }

  void read(Gpu& gpu, unsigned groups) override {
    GpuReader& reader = gpu.reader;
    if ((groups & kFast) != 0) {
      reader.read_load();
      reader.read_throttled(false);
    }
    if ((groups & kSecond) != 0) {
      reader.read_settled();
    }
    if ((groups & kRare) != 0) {
      reader.read_limits();
      reader.read_throttled(true);
    }
    if ((groups & kEnergy) != 0) {
      reader.read_energy();
    }
  }

  void keep(const Gpu& gpu, unsigned groups, int64_t began_ns, int64_t ended_ns) override {
    const GpuState& state = gpu.reader.state();
    const int64_t time_ns = began_ns + (ended_ns - began_ns) / 2;
    auto sample = blank_row<Sample>(time_ns, gpu.number);
    bool is_sampled = (groups & kFast) != 0 && fill(sample.throttle_reasons, state.throttle_bits, 1);
#define GPUSCOPE_FILL(group, figure, column, per_unit) \
  is_sampled = ((groups & group) != 0 && fill(sample.column, state.figure, per_unit)) || is_sampled;
    GPUSCOPE_SAMPLED_FIGURES(GPUSCOPE_FILL)
#undef GPUSCOPE_FILL
    auto count = blank_row<Count>(time_ns, gpu.number);
    bool is_counted = (groups & kEnergy) != 0 && fill(count.energy_mj, state.energy_total_j, 1e3);
    for (std::size_t reason = 0; reason < kThrottleReasons.size(); ++reason) {
      const unsigned group = kThrottleReasons[reason].takes_long ? kRare : kFast;
      if (kThrottleColumns[reason] != nullptr && (groups & group) != 0) {
        is_counted = fill(count.*kThrottleColumns[reason], state.throttled_s[reason], 1e9) || is_counted;
      }
    }
    if (rows_.size() >= kMostRows) {
      cost_.dropped += (is_sampled ? 1 : 0) + (is_counted ? 1 : 0);
      return;
    }
    if (is_sampled) {
      rows_.samples.push_back(sample);
    }
    if (is_counted) {
      rows_.counters.push_back(count);
    }
    if ((groups & kSecond) != 0) {
      explain(gpu);
    }
  }

  void explain(const Gpu& gpu) {
    for (const auto& [figure, reason] : gpu.reader.state().why) {
      if (const std::string column = column_of(figure); !column.empty()) {
        why_.try_emplace({gpu.number, column}, reason);
      }
    }
    if (gpu.is_part) {
      why_.try_emplace({gpu.number, "whole"},
                       "the device is a part of a GPU (MIG), and NVML tells of the GPU as a whole");
    }
  }

  driver::Cuda cuda_;
  unsigned count_ = 0;  // of NVML's GPUs
  std::string no_gpu_why_;
  // Guarded.
  Rows rows_;
  Why why_;
  std::string why_none_ = kNoContext;
};
#undef GPUSCOPE_SAMPLED_FIGURES

RecordingSampler::RecordingSampler(const driver::Nvml& nvml, const driver::Cuda& cuda,
                                   std::chrono::nanoseconds interval)
    : RecordingSampler(std::make_shared<Tables>(nvml, cuda, interval)) {}

RecordingSampler::RecordingSampler(std::shared_ptr<Tables> tables)
    : Sampler(tables, "a sample of devices"), tables_(std::move(tables)) {}

void RecordingSampler::begin() { tables_->begin(); }

void RecordingSampler::finish(std::chrono::nanoseconds limit) { tables_->finish(limit); }

RecordingSampler::Rows RecordingSampler::take() { return tables_->take(); }

SamplingCost RecordingSampler::take_cost() { return tables_->take_cost(); }

RecordingSampler::Why RecordingSampler::why() const { return tables_->why(); }

std::string RecordingSampler::why_none() const { return tables_->why_none(); }

}  // namespace gpuscope::nvml
