// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpuscope/base/host_state.h"
#include "gpuscope/nvml/pace.h"
#include "gpuscope/nvml/state.h"

namespace gpuscope::nvml {

/// A GPU and this process at one moment.
struct GpuSample {
  static constexpr unsigned kNoGpu = UINT32_MAX;

  // Times are since the Unix epoch, on the clock of recordings. Without a GPU, `gpu` is kNoGpu, and only the figures of
  // the process and the host are known. The slow figures are throttling seconds. The rare ones are energy, errors and
  // the seconds of reasons that `takes_long`.
  int64_t time_ns = 0;
  int64_t took_ns = 0;       // duration of the reading
  unsigned gpu = kNoGpu;     // NVML's number
  double process_cpu_s = 0;  // of all threads
  uint64_t resident_bytes = 0;
  int64_t slow_time_ns = 0;
  int64_t rare_time_ns = 0;
  int64_t host_time_ns = 0;
  GpuState state;
  base::HostState host;
};

/// The cost of sampling, and missed rounds and samples.
struct SamplingCost {
  uint64_t rounds = 0;
  uint64_t skipped = 0;  // rounds due during a longer one
  uint64_t dropped = 0;  // samples not taken in time
  int64_t cpu_ns = 0;
  int64_t elapsed_ns = 0;  // since sampling began
  int64_t longest_ns = 0;  // of a round
  int64_t mean_ns = 0;     // of a sample of one GPU
  int64_t p99_ns = 0;
  int64_t slow_mean_ns = 0;  // of a GPU's slow figures, and the rare ones if due
  int64_t slow_p99_ns = 0;
  int64_t slow_interval_ns = 0;   // between readings of slow figures
  Divisors divisors{1, 1, 1, 1};  // a part is read every n-th round
};

/// Reads all GPUs at an interval on two threads, which take no GIL and block no launch.
///
/// The fast thread reads limits and the memory clock each second, other fast figures each round. The slow thread reads
/// throttling seconds each second, and slow figures and the host within `kSlowShare`, at least each 30 s. Rare figures
/// follow within `kSamplingShare` of both threads, at least each minute and on changed throttle reasons. `Pace` lowers
/// the rate of expensive parts, and `cost` reports it. Skipped figures keep their value; skipped link bytes are absent.
///
/// The newest 10,000 samples are kept until taken. Any thread may call. A forked child does not sample.
class GpuSampler {
 public:
  /// Throws NotAvailable if a thread cannot be started.
  GpuSampler(const driver::Nvml& nvml, std::chrono::nanoseconds interval);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  /// Ends both threads after the current round; waits at most a second. Returns whether they ended. A thread in an NVML
  /// call that does not return remains, without further samples.
  bool stop() noexcept;
  /// The samples since the last call, oldest first.
  std::vector<GpuSample> take();
  SamplingCost cost() const;
  /// Why there is no GPU; empty if there is one.
  const std::string& why() const noexcept;

 private:
  class State;

  /// Whether this process is a forked child of the sampling process.
  bool is_childs() const noexcept;

  pid_t process_;
  std::shared_ptr<State> state_;  // shared with the threads
};

}  // namespace gpuscope::nvml
