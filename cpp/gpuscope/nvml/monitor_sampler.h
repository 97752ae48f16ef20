// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpuscope/base/host_state.h"
#include "gpuscope/nvml/sampler.h"

namespace gpuscope::nvml {

/// A GPU and this process at one moment.
struct GpuSample {
  static constexpr unsigned kNoGpu = UINT32_MAX;

  // Times are since the Unix epoch, on the clock of recordings. Without a GPU, `gpu` is kNoGpu, and only the figures of
  // the process and the host are known.
  int64_t time_ns = 0;
  int64_t took_ns = 0;       // duration of the reading
  unsigned gpu = kNoGpu;     // NVML's number
  double process_cpu_s = 0;  // of all threads
  uint64_t resident_bytes = 0;
  int64_t slow_time_ns = 0;  // the reading of figures of each second
  int64_t rare_time_ns = 0;  // the reading of the energy counter
  int64_t host_time_ns = 0;
  GpuState state;
  base::HostState host;
};

/// Samples all GPUs of NVML, this process and the host, from its construction on.
class MonitorSampler : public Sampler {
 public:
  MonitorSampler(const driver::Nvml& nvml, std::chrono::nanoseconds interval);

  /// The samples since the last call, oldest first. The newest 10,000 are kept.
  std::vector<GpuSample> take();
  /// Why there is no GPU; empty if there is one.
  const std::string& why() const noexcept;

 private:
  class Samples;
  explicit MonitorSampler(std::shared_ptr<Samples> samples);

  std::shared_ptr<Samples> samples_;
};

}  // namespace gpuscope::nvml
