// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gpuscope/base/row_ring.h"

namespace gpuscope::base {

/// Where a thread of the program was found for a while.
struct Sample {
  uint64_t begin_ticks;  // when it was looked at before, which is from when on it counts as being there
  uint64_t end_ticks;    // when it was found there last
  int64_t cpu_ns;        // how long it was on a CPU in between
  uint64_t thread;       // a number that no other thread has or had
  uint32_t thread_id;    // the system's
  uint32_t stack;        // a Stacks id
  uint32_t count;        // how often it was found there
  bool ends_thread;      // nothing more comes of this thread; of no stack, this alone is said
};

/// Samples on their way from the one thread that takes them to the one that decodes: no lock, no allocation once
/// begun. A full log drops what comes.
class SampleLog {
 public:
  static SampleLog& process() {
    static auto* log = new SampleLog;  // leaked: both threads may run to the last moment
    return *log;
  }

  /// Empties it. While nobody takes samples. Throws std::bad_alloc.
  void begin() {
    samples_.begin();
    dropped_.store(0, std::memory_order_relaxed);
    cpu_ns_.store(0, std::memory_order_relaxed);
  }
  /// The sampling thread. Returns whether the log is half full from this one on, which the reader should know.
  bool append(const Sample& sample) noexcept {
    const std::size_t filled = samples_.append(sample);
    if (filled == 0) {
      dropped_.fetch_add(sample.count, std::memory_order_relaxed);
    }
    return filled == kCapacity / 2;
  }
  /// The decoding thread: hands all that is there to `take(const Sample&)`.
  template <class F>
  void read(F&& take) {
    samples_.read(take);
  }
  /// Samples that found no room since the last call.
  uint64_t take_dropped() noexcept { return dropped_.exchange(0, std::memory_order_relaxed); }
  /// What the sampling thread took of a CPU.
  void add_cpu_time(int64_t cpu_ns) noexcept { cpu_ns_.fetch_add(cpu_ns, std::memory_order_relaxed); }
  int64_t take_cpu_time() noexcept { return cpu_ns_.exchange(0, std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kCapacity = std::size_t{1} << 15;  // 2 MiB: of 300 threads that run in 100 ms

  RowRing<Sample, kCapacity> samples_;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<int64_t> cpu_ns_{0};
};

}  // namespace gpuscope::base
