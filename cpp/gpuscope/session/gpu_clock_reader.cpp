// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/gpu_clock_reader.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "gpuscope/base/event_logs.h"
#include "gpuscope/driver/devices.h"
#include "gpuscope/timing/context.h"

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kLongestInterval = 4s;

}  // namespace

bool GpuClockReader::read(std::chrono::nanoseconds limit) noexcept {
  const base::EventLogs::Silence silence;  // these launches are not the program's
  const timing::RelaxedCapture relaxed(cuda_);
  int count = 0;
  if (cuda_.device_get_count == nullptr || cuda_.device_get_count(&count) != 0) {
    return false;
  }
  bool all = true;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    driver::CuDevice device = 0;
    if (cuda_.device_get(&device, ordinal) != 0 || !driver::has_primary_context(cuda_, device)) {
      continue;
    }
    try {
      all = read_device(ordinal, limit) && all;
    } catch (const std::exception&) {  // the driver refused, or memory ran out
      all = false;
    }
  }
  return all;
}

bool GpuClockReader::read_device(int ordinal, std::chrono::nanoseconds limit) {
  const auto now = std::chrono::steady_clock::now();
  if (const auto found = clocks_.find(ordinal); found != clocks_.end()) {
    if (now < found->second.next) {
      return true;
    }
    if (found->second.clock.was_reset()) {
      clocks_.erase(found);
    }
  }
  Clock& clock = clocks_.try_emplace(ordinal, cuda_, ordinal).first->second;
  clock.next = now + clock.interval;
  const std::optional<timing::DeviceClock::Reading> reading = clock.clock.read(limit);
  if (!reading) {
    return false;
  }
  clock.interval = std::min(2 * clock.interval, kLongestInterval);
  const std::lock_guard lock(mutex_);
  readings_.push_back({static_cast<uint32_t>(ordinal), {reading->device_ns, reading->host_ns}});
  ++count_;
  widest_ns_ = std::max(widest_ns_, reading->width_ns);
  return true;
}

void GpuClockReader::take(attribution::Decoder& decoder) {
  decltype(readings_) readings;
  {
    const std::lock_guard lock(mutex_);
    readings.swap(readings_);
  }
  for (const auto& [device, reading] : readings) {
    passed_.add(device, reading);
  }
  decoder.gpu_records().set_gpu_clocks(&passed_);
}

void GpuClockReader::facts(Facts& facts) {
  const std::lock_guard lock(mutex_);
  if (count_ == 0) {
    return;
  }
  facts.add("clock.gpu_readings", count_);
  facts.add("clock.gpu_widest_ns", widest_ns_);
  if (facts.clock_kernels.seen != 0 && facts.clock_kernels.agree == 0) {
    facts.notes += "CUPTI's records are not of the GPU's own clock, as was asked: times of GPU work may be off\n";
  }
}

}  // namespace gpuscope::session
