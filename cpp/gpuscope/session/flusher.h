// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <semaphore>
#include <thread>

#include "gpuscope/activity/collector.h"

namespace gpuscope::session {

/// Flushes CUPTI's buffers on a thread of its own, as a flush waits for CUPTI's worker, which loses records while the
/// thread that empties its buffers waits for it.
///
/// One thread at a time. Nobody calls the collector while a flush is under way.
class Flusher {
 public:
  /// Throws std::system_error where no thread can be started. The thread has the signal mask of this one.
  explicit Flusher(activity::Collector& collector);
  /// Waits for the flush that is under way.
  ~Flusher();
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;

  /// Begins a flush, unless one is under way. The decode thread is woken when it has ended.
  void begin() noexcept;
  /// Waits for the flush that is under way, at most so long. True when none is.
  bool wait(std::chrono::nanoseconds limit) noexcept;

  /// Since the last call: CPU time of flushes, and the longest.
  struct Spent {
    int64_t cpu_ns = 0, longest_ns = 0;
  };
  Spent take_spent() noexcept { return {cpu_ns_.exchange(0), longest_ns_.exchange(0)}; }

 private:
  void run() noexcept;

  activity::Collector& collector_;
  bool under_way_ = false;  // for all that the caller knows
  std::counting_semaphore<> begins_{0};
  std::binary_semaphore ended_{0};
  std::atomic<bool> ends_thread_{false};
  std::atomic<int64_t> cpu_ns_{0};
  std::atomic<int64_t> longest_ns_{0};
  std::thread thread_;  // last: it uses what is above
};

}  // namespace gpuscope::session
