// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/gpu_clocks.h"

#include <algorithm>
#include <span>

namespace gpuscope::attribution {

void GpuClocks::add(uint32_t device, const Reading& reading) {
  if (device >= clocks_.size()) {
    clocks_.resize(device + 1);
  }
  Clock& clock = clocks_[device];
  clock.readings[clock.count % kKept] = reading;
  ++clock.count;
  const Reading& oldest = clock.readings[clock.count > kKept ? clock.count % kKept : 0];
  const auto device_ns = static_cast<int64_t>(reading.device_ns - oldest.device_ns);
  if (device_ns >= kNearestNs) {
    clock.rate = static_cast<double>(reading.host_ns - oldest.host_ns - device_ns) / static_cast<double>(device_ns);
  }
}

bool GpuClocks::was_read_between(uint32_t device, uint64_t first, uint64_t last) const noexcept {
  if (!knows(device)) {
    return false;
  }
  const Clock& clock = clocks_[device];
  const std::span kept{clock.readings.data(), std::min<std::size_t>(clock.count, kKept)};
  return std::any_of(kept.begin(), kept.end(),
                     [&](const Reading& reading) { return reading.device_ns >= first && reading.device_ns <= last; });
}

int64_t GpuClocks::to_ns(uint32_t device, uint64_t device_ns) const noexcept {
  if (!knows(device)) {
    return static_cast<int64_t>(device_ns);
  }
  const Clock& clock = clocks_[device];
  const Reading& latest = clock.readings[(clock.count - 1) % kKept];
  const auto since_ns = static_cast<int64_t>(device_ns - latest.device_ns);
  return latest.host_ns + since_ns + static_cast<int64_t>(static_cast<double>(since_ns) * clock.rate);
}

}  // namespace gpuscope::attribution
