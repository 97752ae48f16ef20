// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "gpuscope/base/event_log.h"

namespace gpuscope::base {

/// All thread logs of the process. The list only grows. Logs of ended threads are reused by new threads.
class EventLogs {
 public:
  static EventLogs& process() noexcept;

  /// The calling thread's log. Null if the thread is ending or memory ran out.
  static EventLog* current() noexcept {
    EventLog* log = current_;
    return log != nullptr ? log : instance().adopt();
  }

  template <class F>
  void each(F&& visit) {
    for (EventLog* log = first_.load(std::memory_order_acquire); log != nullptr; log = log->next_) {
      visit(*log);
    }
  }
  /// For the reader: lets another thread use the log if its thread has ended and all events are read.
  static void release_if_done(EventLog& log) noexcept;

  /// For a forked child: its one thread begins a new log. The parent's logs stay unchanged.
  void forget_all() noexcept;

  /// Within this scope, nothing of the calling thread is logged. For the work of the recording itself.
  class Silence {
   public:
    Silence() noexcept : log_(std::exchange(current_, nullptr)), ended_before_(std::exchange(ended_, true)) {}
    ~Silence() {
      current_ = log_;
      ended_ = ended_before_;
    }
    Silence(const Silence&) = delete;
    Silence& operator=(const Silence&) = delete;

   private:
    EventLog* log_;
    bool ended_before_;
  };

 private:
  struct ThreadEnd {
    bool armed = false;
    ~ThreadEnd();
  };

  static EventLogs& instance() noexcept { return process(); }
  EventLog* adopt() noexcept;

#if defined(__x86_64__) || defined(__aarch64__)
  // A pointer fits the static TLS block of a library loaded late, and saves the hot path a call.
  [[gnu::tls_model("initial-exec")]]
#endif
  static constinit thread_local EventLog* current_;  // constinit: no check for initialization at each use
  static thread_local ThreadEnd end_;
  static constinit thread_local bool ended_;

  std::atomic<EventLog*> first_{nullptr};
  std::atomic<uint32_t> threads_{0};
};

/// The ends of regions that ended on another thread than they began on, in ticks. The reader processes these ends
/// before later events of the other thread.
///
/// One writer, with the GIL, and one reader. Without room, an end is dropped: the region then ends when the reader
/// reaches it.
class EndsElsewhere {
 public:
  static EndsElsewhere& process() noexcept;

  /// Called after the end was logged.
  void add(uint64_t ticks) noexcept {
    const uint32_t written = written_.load(std::memory_order_relaxed);
    const uint32_t waiting = written - read_.load(std::memory_order_acquire);
    if (waiting < times_.size()) {
      times_[written % times_.size()] = ticks;
      written_.store(written + 1, std::memory_order_release);
    }
    if (waiting == times_.size() / 2) {
      EventLog::wake().release();
    }
  }
  /// The oldest end, 0 if there is none.
  uint64_t first() const noexcept {
    const uint32_t read = read_.load(std::memory_order_relaxed);
    return read != written_.load(std::memory_order_acquire) ? times_[read % times_.size()] : 0;
  }
  void take_first() noexcept { read_.fetch_add(1, std::memory_order_release); }
  void take_all() noexcept { read_.store(written_.load(std::memory_order_acquire), std::memory_order_release); }

 private:
  std::array<uint64_t, 4096> times_{};  // a power of two, as the counters wrap
  std::atomic<uint32_t> written_{0};
  std::atomic<uint32_t> read_{0};
};

}  // namespace gpuscope::base
