// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/nvml/state.h"

namespace gpuscope::nvml {

/// Groups of figures that are read together, with their CPU time on the host of an H200 after a sleep. The fixed rates
/// keep sampling at 10 Hz below 0.5 % of a core.
enum Figures : unsigned {
  kFast = 1,    // 0.2 ms
  kSecond = 2,  // 0.2 ms for a recording, 1 ms for a monitor
  kRare = 4,    // 1 to 2 ms
  kEnergy = 8,  // 4 ms; 16 ms on one host of an H100
};
inline constexpr int64_t kSecondNs = 1'000'000'000;

/// The cost of sampling, and missed rounds and samples.
struct SamplingCost {
  uint64_t rounds = 0;
  uint64_t skipped = 0;  // rounds due during a longer one
  uint64_t dropped = 0;  // samples or rows not taken in time
  int64_t cpu_ns = 0;
  int64_t elapsed_ns = 0;  // since sampling began
  int64_t longest_ns = 0;  // of a round
  int64_t mean_ns = 0;     // of a reading of one GPU in a round
  int64_t p99_ns = 0;      // within 3.1 %
};

/// Reads GPUs in rounds on its own thread, which takes no GIL and blocks no launch. Each figure has a fixed rate:
///
///     each round   use, power, SM clock, throttle reasons; for a recording throttle times that are fast to read
///     1 s          memory, temperature, limits, the memory clock; for a recording the energy counter; for a monitor
///                  performance counters and other figures
///     2 s          for a monitor the energy counter
///     10 s         slow throttle times, memory errors, the link
///
/// Figures of the last line are also read when a throttle reason of theirs begins, ends or continues, at most once per
/// second. No rate is above that of the rounds.
///
/// Any thread may call. A forked child does not sample.
class Sampler {
 public:
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// Ends the thread after the current round; waits at most a second. Returns whether it ended. A thread in an NVML
  /// call that does not return remains, without further samples.
  bool stop() noexcept;
  SamplingCost cost() const;

 protected:
  class Loop;

  /// Starts the thread. Throws NotAvailable for `what` if that fails.
  Sampler(std::shared_ptr<Loop> loop, const char* what);
  ~Sampler();
  /// Whether this process is a forked child of the sampling process: the lock may be held forever.
  bool is_childs() const noexcept;

 private:
  pid_t process_;
  std::shared_ptr<Loop> loop_;  // shared with the thread, which may outlive this
};

/// The state of the sampling thread. It shares the members that are marked as guarded with its sampler, under `mutex_`.
/// `mutex_` is never held during calls of NVML and CUDA.
class Sampler::Loop {
 public:
  Loop(const driver::Nvml& nvml, std::chrono::nanoseconds interval, const char* thread)
      : nvml_(nvml), interval_ns_(std::max<int64_t>(1, interval.count())), thread_(thread), created_ns_(now_ns()) {}
  virtual ~Loop() = default;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void run() noexcept;
  void begin();
  void finish(std::chrono::nanoseconds limit);
  bool end() noexcept;
  bool ends() const noexcept;
  SamplingCost cost() const;

 protected:
  /// A group of figures with its own rate.
  struct Timed {
    unsigned group;
    int64_t interval_ns;
    int64_t due_ns = 0;   // 0: at once
    int64_t read_ns = 0;  // the latest reading
  };
  struct Gpu {
    GpuReader reader;
    unsigned number;       // its user's
    bool is_part = false;  // the user's device is only a part of the GPU
    uint64_t held = 0;     // throttle reasons with slow times
    Timed second{kSecond, kSecondNs};
    Timed rare{kRare, 10 * kSecondNs};
    Timed energy{kEnergy, kSecondNs};
  };

  static int64_t now_ns() { return base::Clock::process().now_ns(); }
  /// Adds GPUs to `gpus_`. Returns the time of the next search.
  virtual int64_t find_gpus(int64_t now_ns) = 0;
  virtual void begin_round(int64_t /*due_ns*/) {}
  /// Calls NVML for these groups of figures.
  virtual void read(Gpu& gpu, unsigned groups) = 0;
  /// Keeps figures read between these times. Under the lock.
  virtual void keep(const Gpu& gpu, unsigned groups, int64_t began_ns, int64_t ended_ns) = 0;

  driver::Nvml nvml_;
  int64_t interval_ns_;
  std::vector<Gpu> gpus_;
  mutable std::mutex mutex_;
  SamplingCost cost_;  // guarded; without the figures of durations

 private:
  /// 16 bins per octave, so a quantile is within 3.1 %.
  struct Durations {
    std::array<uint64_t, 1024> bins{};  // for every store::histogram_bin of a 64-bit duration
    int64_t count = 0;
    int64_t sum_ns = 0;

    void add(int64_t ns);
    /// 0 if there are none.
    int64_t p99_ns() const;
  };

  void visit(bool begins, bool reads_all);
  void read_round(int64_t began_ns, bool reads_all);
  void read_slow_in_turn(int64_t began_ns);
  void read_and_keep(Gpu& gpu, unsigned groups);
  static void read_all_soon(Gpu& gpu) noexcept { gpu.second.due_ns = gpu.rare.due_ns = gpu.energy.due_ns = 0; }

  const char* thread_;
  int64_t created_ns_;
  int64_t round_ns_ = 0;  // when the round is or was due
  int64_t look_ns_ = 0;   // the next search for GPUs
  std::size_t turn_ = 0;  // of slow readings
  // Guarded.
  std::condition_variable changed_;
  bool is_active_ = false;
  bool has_begun_ = false;  // a new window, until the thread sees it
  bool is_last_ = false;    // `finish` waits for a last reading
  bool ends_ = false;
  bool has_ended_ = false;
  Durations durations_;
};

}  // namespace gpuscope::nvml
