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

/// Reads the GPUs that this process uses beside a recording, on a thread of its own that takes neither Python's GIL
/// nor, while NVML is called, a lock of ours: power, the processors' clock, use, temperature and what holds clocks back
/// at an interval, memory as often as a sixth of what may be spent allows, the memory's clock and the limit of power
/// each second, the energy counter about some of its ticks, what takes long or differs seldom every ten seconds, and
/// where what holds clocks back has changed. Of a core 0.18 % goes into each GPU in the long run, and 0.18 s more at
/// first: the energy counter, which takes most, waits for that. A third is its own: an interval at which the rest takes
/// more than two is kept nevertheless, beyond what is allowed.
///
/// A GPU is read from when the process has its primary context; CUDA is not initialised for it. Begun and ended by any
/// number of windows. Any thread, one at a time. A forked child has no thread: there, it is not to be called.
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
  /// What is not known of a device, by column, and why.
  using Why = std::map<std::pair<unsigned, std::string>, std::string>;

  /// Throws NotAvailable where no thread can be started.
  DeviceSampling(const driver::Nvml& nvml, const driver::Cuda& cuda, std::chrono::nanoseconds interval);
  /// Waits for the call of NVML that is under way, at most a second: one that never returns is left behind.
  ~DeviceSampling();
  DeviceSampling(const DeviceSampling&) = delete;
  DeviceSampling& operator=(const DeviceSampling&) = delete;

  /// From now on.
  void begin();
  /// Reads all once more, and rests; waits for that, at most so long.
  void finish(std::chrono::nanoseconds limit = std::chrono::milliseconds(100));
  /// What was read since the last call.
  Rows take();

  /// Since the last call.
  struct Spent {
    int64_t cpu_ns = 0;      // of the thread
    int64_t longest_ns = 0;  // that a call of NVML took, or some of them in a row
    uint64_t dropped = 0;    // rows that nobody took in time
  };
  Spent take_spent();
  Why why() const;
  /// Why no GPU is read, "" where one is.
  std::string why_none() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too, which may outlive this
};

}  // namespace gpuscope::nvml
