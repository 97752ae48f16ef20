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

/// A GPU and this process at a moment.
struct GpuSample {
  static constexpr unsigned kNoGpu = UINT32_MAX;

  int64_t time_ns = 0;          // since the Unix epoch, on the clock of recordings
  int64_t took_ns = 0;          // to read it
  unsigned gpu = kNoGpu;        // NVML's number; kNoGpu where there is none, and then the process alone is known
  double process_cpu_s = 0;     // what all threads of this process have run so far
  uint64_t resident_bytes = 0;  // read as often as the memory of GPUs
  int64_t slow_time_ns = 0;     // when what is read once a second was: seconds of throttling
  int64_t rare_time_ns = 0;     // when what takes long was: energy, errors, and seconds of what `takes_long`
  int64_t host_time_ns = 0;     // when the host was
  GpuState state;
  base::HostState host;
};

/// What sampling has cost, and what it did not keep up with.
struct SamplingCost {
  uint64_t rounds = 0;
  uint64_t skipped = 0;  // rounds that were due while another took too long
  uint64_t dropped = 0;  // samples that nobody took in time
  int64_t cpu_ns = 0;
  int64_t elapsed_ns = 0;  // since sampling began
  int64_t longest_ns = 0;  // of a round
  int64_t mean_ns = 0;     // of a sample of one GPU
  int64_t p99_ns = 0;
  int64_t slow_mean_ns = 0;  // of what is read of a GPU seldom, with what is read rarely where that was due
  int64_t slow_p99_ns = 0;
  int64_t slow_interval_ns = 0;   // after how long that is read again
  Divisors divisors{1, 1, 1, 1};  // each how manieth round reads a part
};

/// Reads all GPUs at an interval on a thread of its own, limits and the memory's clock once a second, and the rest on a
/// second one: neither takes Python's GIL, and no thread that launches waits for them. That one reads seconds of
/// throttling once a second; what differs seldom and the host likewise, unless that takes more than `kSlowShare` of a
/// core, and then as often as it takes no more; and what takes long as often as both threads together keep to
/// `kSamplingShare`. Each is read each half minute at least, the last each minute, and at once where what holds clocks
/// back has changed. Where reading takes too much of the interval or of a core, less is read each time (`Pace`), and
/// `cost` says of what; figures that a round did not read are those of an earlier one, but for bytes of links, which
/// are absent. Samples are kept until they are taken, the newest 10,000 at most. Any thread may call; a forked child
/// has neither thread, and samples no more.
class GpuSampler {
 public:
  /// Throws NotAvailable where a thread cannot be made.
  GpuSampler(const driver::Nvml& nvml, std::chrono::nanoseconds interval);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  /// Ends both threads after the round that is under way, for which it waits a second at most: whether they ended. One
  /// whose call of NVML does not return is left behind, and keeps nothing any more.
  bool stop() noexcept;
  /// Samples that were not taken before, oldest first.
  std::vector<GpuSample> take();
  SamplingCost cost() const;
  /// Why there is no GPU; empty where there is one.
  const std::string& why() const noexcept;

 private:
  class State;

  /// Whether this process is a forked child of the one that has the threads.
  bool is_childs() const noexcept;

  pid_t process_;
  std::shared_ptr<State> state_;  // the threads' too
};

}  // namespace gpuscope::nvml
