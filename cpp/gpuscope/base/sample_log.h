// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gpuscope/base/row_ring.h"

namespace gpuscope::base {

/// The place of a program thread during an interval.
struct Sample {
  uint64_t begin_ticks;  // the previous sample: the thread counts as being there since then
  uint64_t end_ticks;    // the last sample that found it there
  int64_t cpu_ns;        // on a CPU in between
  uint64_t thread;       // unique, never reused
  uint32_t thread_id;    // the system's
  uint32_t stack;        // a Stacks id
  uint32_t count;        // samples that found it there
  bool ends_thread;      // the thread's last row. Without a stack, the row only says that
};

/// Samples on their way from the sampling thread to the decoding one. Lock-free, and without allocation after begin. A
/// full log drops new samples.
class SampleLog {
 public:
  static SampleLog& process() {
    static auto* log = new SampleLog;  // leaked: both threads may run until process exit
    return *log;
  }

  /// Empties the log. Not while samples are taken. Throws std::bad_alloc.
  void begin() {
    samples_.begin();
    dropped_.store(0, std::memory_order_relaxed);
    cpu_ns_.store(0, std::memory_order_relaxed);
  }
  /// On the sampling thread. Returns whether this sample made the log half full: the reader should then be woken.
  bool append(const Sample& sample) noexcept {
    const std::size_t filled = samples_.append(sample);
    if (filled == 0) {
      dropped_.fetch_add(sample.count, std::memory_order_relaxed);
    }
    return filled == kCapacity / 2;
  }
  /// On the decoding thread: passes all samples to `take(const Sample&)`.
  template <class F>
  void read(F&& take) {
    samples_.read(take);
  }
  /// The number of samples dropped since the last call.
  uint64_t take_dropped() noexcept { return dropped_.exchange(0, std::memory_order_relaxed); }
  /// CPU time of the sampling thread.
  void add_cpu_time(int64_t cpu_ns) noexcept { cpu_ns_.fetch_add(cpu_ns, std::memory_order_relaxed); }
  int64_t take_cpu_time() noexcept { return cpu_ns_.exchange(0, std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kCapacity = std::size_t{1} << 15;  // 2 MiB: 300 running threads for 100 ms

  RowRing<Sample, kCapacity> samples_;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<int64_t> cpu_ns_{0};
};

}  // namespace gpuscope::base
