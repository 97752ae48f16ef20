// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/device_sampling.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/nvml/energy_ticks.h"
#include "gpuscope/nvml/pace.h"
#include "gpuscope/nvml/state.h"

namespace gpuscope::nvml {
namespace {

using namespace std::chrono_literals;
using Rows = DeviceSampling::Rows;
using Sample = store::DeviceSamples::Row;
using Count = store::DeviceCounters::Row;

using store::kNotRead;
constexpr int64_t kSlowNs = std::chrono::nanoseconds(1s).count();
constexpr int64_t kRareNs = 10 * kSlowNs;
// CPU time per GPU at the begin, without the first search for ticks; lasts some ten seconds.
constexpr int64_t kAtOnceNs = std::chrono::nanoseconds(180ms).count();
// Shares of the budget. Reading memory takes 70 us of CPU time, other calls 10 us (H100). The energy counter keeps its
// share even if other calls are slow, as on a host that intercepts system calls.
constexpr double kOfMemory = 1.0 / 6;
constexpr double kOfEnergy = 1.0 / 3;
constexpr int64_t kMemoryAtOnceNs = std::chrono::nanoseconds(5ms).count();  // readings of some seconds
// Time between searches for the first context of the process, and for more.
constexpr int64_t kFirstLook = std::chrono::nanoseconds(20ms).count();
constexpr int64_t kNextLook = std::chrono::nanoseconds(1s).count();
constexpr std::size_t kMostRows = std::size_t{1} << 16;  // not taken yet: 10 MB
constexpr auto kEndLimit = 1s;

int64_t moment_ns() { return base::Clock::process().now_ns(); }

template <class Column>
void blank(Column& column) {
  column = static_cast<Column>(kNotRead);
}

#define GPUSCOPE_BLANK(type, name, meaning, doc) blank(row.name);
Sample empty_sample(int64_t time_ns, unsigned device) {
  Sample row{};
  GPUSCOPE_DEVICE_SAMPLE(GPUSCOPE_BLANK)
  row.start_ns = time_ns;
  row.device = device;
  return row;
}

Count empty_count(int64_t time_ns, unsigned device) {
  Count row{};
  GPUSCOPE_DEVICE_COUNTER(GPUSCOPE_BLANK)
  row.start_ns = time_ns;
  row.device = device;
  return row;
}
#undef GPUSCOPE_BLANK

// Whether no column was read.
#define GPUSCOPE_COMPARE(type, name, meaning, doc) is_empty = is_empty && row.name == nothing.name;
bool is_empty_row(const Sample& row) {
  const Sample nothing = empty_sample(row.start_ns, row.device);
  bool is_empty = true;
  GPUSCOPE_DEVICE_SAMPLE(GPUSCOPE_COMPARE)
  return is_empty;
}

bool is_empty_row(const Count& row) {
  const Count nothing = empty_count(row.start_ns, row.device);
  bool is_empty = true;
  GPUSCOPE_DEVICE_COUNTER(GPUSCOPE_COMPARE)
  return is_empty;
}
#undef GPUSCOPE_COMPARE

template <class Row>
void keep(const Row& row, std::vector<Row>& rows) {
  if (!is_empty_row(row)) {
    rows.push_back(row);
  }
}

/// In the column's unit; -1 if absent or too large for the column.
template <class Column, class T>
Column in_units(const std::optional<T>& figure, double per_unit) {
  const double value = figure ? std::round(static_cast<double>(*figure) * per_unit) : kNotRead;
  const bool fits = value >= 0 && value < static_cast<double>(std::numeric_limits<Column>::max());
  return fits ? static_cast<Column>(value) : static_cast<Column>(kNotRead);
}

/// The column of a reason's time; null if NVML does not count it.
int64_t Count::*throttled_column(std::size_t reason) {
  constexpr std::array<std::pair<std::string_view, int64_t Count::*>, 5> kColumns{{
      {"sw_power_cap", &Count::sw_power_cap_ns},
      {"sync_boost", &Count::sync_boost_ns},
      {"sw_thermal_slowdown", &Count::sw_thermal_slowdown_ns},
      {"hw_thermal_slowdown", &Count::hw_thermal_slowdown_ns},
      {"hw_power_brake_slowdown", &Count::hw_power_brake_slowdown_ns},
  }};
  const std::string_view name = kThrottleReasons[reason].name;
  const auto* found = std::ranges::find(kColumns, name, [](const auto& pair) { return pair.first; });
  return found != kColumns.end() ? found->second : nullptr;
}

/// The column of a figure in `GpuState::why`; "" if it has none.
std::string column_of(const std::string& figure) {
  constexpr std::string_view kThrottled = "throttled_s.";
  if (figure.starts_with(kThrottled)) {
    return figure.substr(kThrottled.size()) + "_ns";
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kColumns{{
      {"all", "all"},
      {"energy_total_j", "energy_mj"},
      {"memory_used_bytes", "memory_used_bytes"},
      {"throttle_reasons", "throttle_reasons"},
      {"power_w", "power_mw"},
      {"power_limit_w", "power_limit_mw"},
      {"power_limit_default_w", "power_limit_default_mw"},
      {"sm_hz", "sm_mhz"},
      {"sm_max_hz", "sm_max_mhz"},
      {"memory_hz", "memory_mhz"},
      {"temperature_c", "temperature_c"},
      {"busy_ratio", "busy_percent"},
      {"memory_busy_ratio", "memory_busy_percent"},
  }};
  const auto* found = std::ranges::find(kColumns, figure, [](const auto& pair) { return pair.first; });
  return found != kColumns.end() ? std::string(found->second) : "";
}

}  // namespace

/// A GPU and the schedule of its readings. Only for the thread.
class SampledDevice {
 public:
  SampledDevice(unsigned ordinal, GpuReader reader, bool is_part, int64_t interval_ns, int64_t now)
      : ordinal_(ordinal),
        is_part_(is_part),
        interval_ns_(interval_ns),
        reader_(std::move(reader)),
        ticks_(interval_ns),
        allowance_(kSamplingShare, kAtOnceNs, now),
        of_memory_(kOfMemory * kSamplingShare, kMemoryAtOnceNs, now),
        fast_due_ns_(now) {
    begin_window(now);
  }

  unsigned ordinal() const noexcept { return ordinal_; }
  void begin_window(int64_t now) noexcept {
    ticks_.begin_window(now);
    rare_due_ns_ = now;
  }
  /// Charges the CPU time of a reading. `read_fast` above its share is free: the interval is kept anyway.
  void spend(int64_t now, int64_t cpu_ns) {
    constexpr double kOfRest = (1 - kOfEnergy) * kSamplingShare;
    const auto most_ns = static_cast<int64_t>(kOfRest * static_cast<double>(interval_ns_));
    const int64_t over_ns = std::max<int64_t>(std::exchange(fast_ns_, 0) - most_ns, 0);
    allowance_.spend(now, ticks_.charge(std::max<int64_t>(cpu_ns - over_ns, 0)));
    ticks_.allow(allowance_.left_ns(), allowance_.free_ns());
  }

  int64_t due_ns(int64_t now) { return std::min({fast_due_ns_, rare_due_ns_, ticks_.next_ns(now)}); }

  /// Reads the due groups of figures; all of them if `is_last`.
  void read(int64_t now, bool is_last, Rows& rows) {
    if (is_last || ticks_.next_ns(now) <= now) {
      read_energy(is_last, rows);
    }
    if (is_last || fast_due_ns_ <= now) {
      const int64_t cpu_ns = base::thread_cpu_ns();
      read_fast(now, is_last, rows);
      fast_ns_ = base::thread_cpu_ns() - cpu_ns;
      fast_due_ns_ += (std::max<int64_t>(now - fast_due_ns_, 0) / interval_ns_ + 1) * interval_ns_;
    }
    if (is_last || rare_due_ns_ <= now) {
      read_rare(rows);
      rare_read_ns_ = now;
      rare_due_ns_ = now + std::max(kRareNs, interval_ns_);
    }
  }

  void explain(DeviceSampling::Why& why) const {
    for (const auto& [figure, reason] : reader_.state().why) {
      if (const std::string column = column_of(figure); !column.empty()) {
        why[{ordinal_, column}] = reason;
      }
    }
    if (is_part_) {
      why[{ordinal_, "whole"}] = "the device is a part of a GPU (MIG), and NVML tells of the GPU as a whole";
    }
  }

 private:
  void read_fast(int64_t now, bool is_last, Rows& rows) {
    const int64_t before = moment_ns();
    const bool has_settled = is_last || settled_due_ns_ <= now;
    const bool has_memory = is_last || of_memory_.free_ns() <= now;
    if (has_settled) {
      reader_.read_use();
      settled_due_ns_ = now + kSlowNs;
    } else {
      reader_.read_load();
    }
    if (has_memory) {
      const int64_t cpu_ns = base::thread_cpu_ns();
      reader_.read_memory();
      of_memory_.spend(now, base::thread_cpu_ns() - cpu_ns);
    }
    read_throttled(false);
    const int64_t time_ns = before + (moment_ns() - before) / 2;
    Sample row = empty_sample(time_ns, ordinal_);
    const GpuState& state = reader_.state();
    row.power_mw = in_units<int32_t>(state.power_w, 1e3);
    row.sm_mhz = in_units<int32_t>(state.sm_hz, 1e-6);
    if (has_settled) {
      row.power_limit_mw = in_units<int32_t>(state.power_limit_w, 1e3);
      row.memory_mhz = in_units<int32_t>(state.memory_hz, 1e-6);
    }
    row.temperature_c = in_units<int32_t>(state.temperature_c, 1);
    row.busy_percent = in_units<int32_t>(state.busy_ratio, 100);
    row.memory_busy_percent = in_units<int32_t>(state.memory_busy_ratio, 100);
    if (has_memory) {
      row.memory_used_bytes = in_units<int64_t>(state.memory_used_bytes, 1);
    }
    row.throttle_reasons = in_units<int64_t>(state.throttle_bits, 1);
    keep(row, rows.samples);
    keep(throttled(time_ns, false), rows.counters);
    // The times of slow reasons are read rarely, but at once on a change and each second while one throttles.
    const uint64_t held = state.throttle_bits.value_or(kRareReasons) & kRareReasons;
    if (held != std::exchange(held_, held)) {
      rare_due_ns_ = before;
    } else if (held != 0) {
      rare_due_ns_ = std::min(rare_due_ns_, rare_read_ns_ + std::max(kSlowNs, interval_ns_));
    }
  }

  void read_rare(Rows& rows) {
    const int64_t before = moment_ns();
    reader_.read_limits();
    read_throttled(true);
    const int64_t time_ns = before + (moment_ns() - before) / 2;
    Sample row = empty_sample(time_ns, ordinal_);
    row.power_limit_default_mw = in_units<int32_t>(reader_.state().power_limit_default_w, 1e3);
    row.sm_max_mhz = in_units<int32_t>(reader_.state().sm_max_hz, 1e-6);
    keep(row, rows.samples);
    keep(throttled(time_ns, true), rows.counters);
  }

  void read_energy(bool is_last, Rows& rows) {
    const int64_t before = moment_ns();
    reader_.read_energy();
    const int64_t after = moment_ns();
    const GpuState& state = reader_.state();
    if (!state.energy_total_j) {
      ticks_.rest_until(after + kSlowNs);  // the GPU is lost or refuses
      return;
    }
    Count row = empty_count(before + (after - before) / 2, ordinal_);
    row.energy_mj = in_units<int64_t>(state.energy_total_j, 1e3);
    const EnergyTicks::Reading reading{before, after, row.energy_mj};
    const EnergyTicks::Taken taken =
        is_last ? EnergyTicks::Taken{ticks_.find_tick(reading), true} : ticks_.take(reading);
    if (taken.tick) {
      row.tick_error_ns = (taken.tick->last_ns - taken.tick->first_ns + 1) / 2;
      row.tick_ns = taken.tick->first_ns + row.tick_error_ns;
    }
    if (taken.is_new) {
      rows.counters.push_back(row);
    }
  }

  static bool is_read(std::size_t reason, bool takes_long) {
    return throttled_column(reason) != nullptr && kThrottleReasons[reason].takes_long == takes_long;
  }

  void read_throttled(bool takes_long) {
    for (std::size_t reason = 0; reason < kThrottleReasons.size(); ++reason) {
      if (is_read(reason, takes_long)) {
        reader_.read_throttled(reason);
      }
    }
  }

  Count throttled(int64_t time_ns, bool takes_long) const {
    Count row = empty_count(time_ns, ordinal_);
    for (std::size_t reason = 0; reason < kThrottleReasons.size(); ++reason) {
      if (is_read(reason, takes_long)) {
        row.*throttled_column(reason) = in_units<int64_t>(reader_.state().throttled_s[reason], 1e9);
      }
    }
    return row;
  }

  unsigned ordinal_;
  bool is_part_;
  int64_t interval_ns_;
  GpuReader reader_;
  EnergyTicks ticks_;
  Allowance allowance_;
  Allowance of_memory_;
  int64_t fast_due_ns_;
  int64_t fast_ns_ = 0;  // CPU time of `read_fast` since the last `spend`
  int64_t settled_due_ns_ = 0;
  int64_t rare_due_ns_ = 0;
  int64_t rare_read_ns_ = 0;
  uint64_t held_ = 0;  // of kRareReasons, at the last reading
};

namespace {

/// Compares the format of NVML, "00000000:1B:00.0", with that of CUDA, "0000:1b:00.0".
bool is_same_address(std::string_view nvml, std::string_view cuda) {
  const auto lower = [](char letter) { return letter >= 'A' && letter <= 'Z' ? letter + ('a' - 'A') : int{letter}; };
  const std::size_t length = std::min(nvml.size(), cuda.size());
  return length != 0 &&
         std::ranges::equal(nvml.substr(nvml.size() - length), cuda.substr(cuda.size() - length), {}, lower, lower);
}

}  // namespace

struct DeviceSampling::State {
  // Set before the thread begins.
  driver::Nvml nvml;
  driver::Cuda cuda;
  int64_t interval_ns = 0;

  std::mutex mutex;  // guards the members below; never held during NVML or CUDA calls
  std::condition_variable changed;
  bool is_active = false;
  bool has_begun = false;  // a new window, until the thread sees it
  bool is_last = false;    // `finish` waits for a last reading
  bool ends = false;
  bool has_ended = false;
  Rows rows;
  Spent spent;
  Why why;
  std::string why_none = "the process has no context on a GPU";

  // Only for the thread.
  std::vector<SampledDevice> devices;
  int64_t look_ns = 0;  // next search for devices
  unsigned gpus = 0;    // number in NVML
  std::string no_gpu_why;
  int64_t charged_ns = 0;  // CPU time of the thread charged to devices

  void run() noexcept;
  std::string find_devices(int64_t now);
  void add_device(unsigned ordinal, driver::CuDevice device, int64_t now);
  int64_t due_ns(int64_t now);
};

void DeviceSampling::State::add_device(unsigned ordinal, driver::CuDevice device, int64_t now) {
  driver::CuUuid uuid{};
  std::array<char, 32> address{};
  if (cuda.device_get_uuid == nullptr || cuda.device_get_uuid(&uuid, device) != 0) {
    return;
  }
  if (cuda.device_get_pci_bus_id == nullptr ||
      cuda.device_get_pci_bus_id(address.data(), static_cast<int>(address.size()), device) != 0) {
    address[0] = '\0';
  }
  std::optional<GpuReader> part;
  for (unsigned index = 0; index < gpus; ++index) {
    GpuReader reader(nvml, index);
    if (reader.state().uuid == driver::uuid_text(uuid)) {
      devices.emplace_back(ordinal, std::move(reader), false, interval_ns, now);
      return;
    }
    if (is_same_address(reader.state().pci_address, address.data())) {
      part.emplace(std::move(reader));
    }
  }
  if (part) {
    devices.emplace_back(ordinal, std::move(*part), true, interval_ns, now);
  }
}

std::string DeviceSampling::State::find_devices(int64_t now) {
  constexpr const char* kNoContext = "the process has no context on a GPU";
  if (!cuda.library) {
    return "no NVIDIA driver was found (" + cuda.library.why() + ")";
  }
  int count = 0;
  if (cuda.device_get_count == nullptr || cuda.device_get_count(&count) != 0) {
    return kNoContext;  // cuInit has not been called
  }
  std::string reason = kNoContext;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    driver::CuDevice device = 0;
    const auto number = static_cast<unsigned>(ordinal);
    const bool is_known = std::ranges::find(devices, number, &SampledDevice::ordinal) != devices.end();
    if (is_known || cuda.device_get(&device, ordinal) != 0 || !driver::has_primary_context(cuda, device)) {
      continue;
    }
    if (gpus == 0) {
      no_gpu_why.clear();
      gpus = count_gpus(nvml, no_gpu_why);
    }
    add_device(number, device, now);
    reason = !no_gpu_why.empty() ? no_gpu_why : "NVML does not know the GPU that the process uses";
  }
  return reason;
}

int64_t DeviceSampling::State::due_ns(int64_t now) {
  int64_t due = look_ns;
  for (SampledDevice& device : devices) {
    due = std::min(due, device.due_ns(now));
  }
  return due;
}

void DeviceSampling::State::run() noexcept {
  pthread_setname_np(pthread_self(), "gpuscope-nvml");
  base::prepare_to_throw();
  int64_t counted_ns = 0;
  Rows fresh;
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return ends || is_active; });
    if (ends) {
      break;
    }
    const bool reads_last = is_last;
    const bool begins = std::exchange(has_begun, false);
    lock.unlock();
    std::string reason;
    Why explained;
    bool failed = false;
    int64_t longest_ns = 0;
    int64_t due = INT64_MAX;
    try {
      int64_t now = moment_ns();
      if (look_ns <= now) {
        const std::size_t known = devices.size();
        reason = find_devices(now);
        if (devices.size() != known) {  // finding them, with NVML's start, is not charged
          charged_ns = base::thread_cpu_ns();
        }
        look_ns = now + (devices.empty() && cuda.library ? kFirstLook : kNextLook);
      }
      for (SampledDevice& device : devices) {
        now = moment_ns();
        if (begins) {
          device.begin_window(now);
        }
        device.read(now, reads_last, fresh);
        longest_ns = std::max(longest_ns, moment_ns() - now);
        device.explain(explained);
        const int64_t cpu_ns = base::thread_cpu_ns();
        device.spend(moment_ns(), cpu_ns - std::exchange(charged_ns, cpu_ns));
      }
      due = due_ns(moment_ns());
    } catch (const std::exception&) {  // no memory
      failed = true;
    }
    const int64_t cpu_ns = base::thread_cpu_ns();
    lock.lock();
    spent.cpu_ns += cpu_ns - std::exchange(counted_ns, cpu_ns);
    spent.longest_ns = std::max(spent.longest_ns, longest_ns);
    if (failed || rows.size() + fresh.size() > kMostRows) {
      spent.dropped += fresh.size();
    } else {
      try {
        rows.samples.insert(rows.samples.end(), fresh.samples.begin(), fresh.samples.end());
        rows.counters.insert(rows.counters.end(), fresh.counters.begin(), fresh.counters.end());
        why.merge(explained);
      } catch (const std::exception&) {
        spent.dropped += fresh.size();
      }
    }
    fresh.clear();
    if (!devices.empty()) {
      why_none.clear();
    } else if (!reason.empty()) {
      why_none = std::move(reason);
    }
    if (reads_last) {
      is_active = is_active && !is_last;  // a new window may have begun after `finish` timed out
      is_last = false;
      changed.notify_all();
      continue;
    }
    const int64_t wait_ns = failed ? kSlowNs : due - moment_ns();
    changed.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(wait_ns, 0)),
                     [this] { return ends || is_last || !is_active; });
  }
  has_ended = true;
  lock.unlock();
  changed.notify_all();
}

DeviceSampling::DeviceSampling(const driver::Nvml& nvml, const driver::Cuda& cuda, std::chrono::nanoseconds interval)
    : state_(std::make_shared<State>()) {
  state_->nvml = nvml;
  state_->cuda = cuda;
  state_->interval_ns = interval.count();
  base::start_thread("a sample of devices", [state = state_] { state->run(); }).detach();
}

DeviceSampling::~DeviceSampling() {
  std::unique_lock lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kEndLimit, [this] { return state_->has_ended; });
}

void DeviceSampling::begin() {
  const std::lock_guard lock(state_->mutex);
  state_->is_active = state_->has_begun = true;
  state_->is_last = false;
  state_->changed.notify_all();
}

void DeviceSampling::finish(std::chrono::nanoseconds limit) {
  std::unique_lock lock(state_->mutex);
  if (!state_->is_active) {
    return;
  }
  state_->is_last = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, limit, [this] { return !state_->is_last; });
  state_->is_last = state_->is_active = false;
}

DeviceSampling::Rows DeviceSampling::take() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->rows, {});
}

DeviceSampling::Spent DeviceSampling::take_spent() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->spent, {});
}

DeviceSampling::Why DeviceSampling::why() const {
  const std::lock_guard lock(state_->mutex);
  return state_->why;
}

std::string DeviceSampling::why_none() const {
  const std::lock_guard lock(state_->mutex);
  return state_->why_none;
}

}  // namespace gpuscope::nvml
