// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/driver/libraries.h"
#include "gpuscope/store/schema.h"

namespace gpuscope::nvml {

/// Reads the GPUs of this process during a recording, on its own thread without the GIL.
///
/// At the interval: power, SM clock, use, temperature, throttle reasons. Each second: memory clock, power limit. Each
/// 10 s and on changed throttle reasons: maximum clock, default limit, slow throttle times. The budget is 0.18 % of a
/// core per GPU, plus 0.18 s at the begin. Memory has a sixth of it, the energy counter a third.
///
/// A GPU is read once the process has its primary context; CUDA is not initialised for it. Any number of windows. Any
/// thread, one at a time. Not for forked children.
class DeviceSampling {
 public:
  struct Rows {
    std::vector<store::DeviceSamples::Row> samples;
    std::vector<store::DeviceCounters::Row> counters;
    std::size_t size() const noexcept { return samples.size() + counters.size(); }
    void clear() noexcept {
      samples.clear();
      counters.clear();
    }
  };
  /// Why columns of a device are unknown.
  using Why = std::map<std::pair<unsigned, std::string>, std::string>;

  /// Throws NotAvailable if no thread can be started.
  DeviceSampling(const driver::Nvml& nvml, const driver::Cuda& cuda, std::chrono::nanoseconds interval);
  /// Waits at most a second for the current NVML call. A call that never returns keeps its thread.
  ~DeviceSampling();
  DeviceSampling(const DeviceSampling&) = delete;
  DeviceSampling& operator=(const DeviceSampling&) = delete;

  /// Begins a window.
  void begin();
  /// Reads all figures a last time and pauses. Waits for that, up to `limit`.
  void finish(std::chrono::nanoseconds limit = std::chrono::milliseconds(100));
  /// The rows since the last call.
  Rows take();

  /// Since the last call.
  struct Spent {
    int64_t cpu_ns = 0;      // of the thread
    int64_t longest_ns = 0;  // of NVML calls in a row
    uint64_t dropped = 0;    // rows not taken in time
  };
  Spent take_spent();
  Why why() const;
  /// Why no GPU is read; "" if one is.
  std::string why_none() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
};

}  // namespace gpuscope::nvml
