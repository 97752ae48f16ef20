// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/event_logs.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include "gpuscope/base/errors.h"

namespace gpuscope::base {

constinit thread_local EventLog* EventLogs::current_ = nullptr;
thread_local EventLogs::ThreadEnd EventLogs::end_;
constinit thread_local bool EventLogs::ended_ = false;

EventLogs& EventLogs::process() noexcept {
  // Leaked: threads may log at process exit.
  static auto* logs = new EventLogs;  // NOLINT(bugprone-unhandled-exception-at-new): without it nothing can be logged
  return *logs;
}

EndsElsewhere& EndsElsewhere::process() noexcept {
  static constinit EndsElsewhere ends;
  return ends;
}

EventLogs::ThreadEnd::~ThreadEnd() {
  ended_ = true;
  if (current_ != nullptr) {
    current_->owner_.store(EventLog::Owner::Gone, std::memory_order_release);
    current_ = nullptr;
  }
}

EventLog* EventLogs::adopt() noexcept {
  if (ended_) {
    return nullptr;
  }
  EventLog* log = nullptr;
  each([&](EventLog& candidate) {
    auto expected = EventLog::Owner::Nobody;
    if (log == nullptr && candidate.owner_.load(std::memory_order_relaxed) == expected &&
        candidate.owner_.compare_exchange_strong(expected, EventLog::Owner::Arriving, std::memory_order_acquire)) {
      log = &candidate;
    }
  });
  const bool fresh = log == nullptr;
  if (fresh) {
    try {
      log = new EventLog;
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  log->system_id = static_cast<uint64_t>(syscall(SYS_gettid));
  log->pthread_id = static_cast<uint64_t>(pthread_self());
  log->thread_name = {};
  pthread_getname_np(pthread_self(), log->thread_name.data(), log->thread_name.size());
  log->strand = 0;
  log->timed_ = 0;
  log->until_timed_ = 1;
  log->has_lost_ = false;
  log->order = threads_.fetch_add(1, std::memory_order_relaxed);
  log->generation.fetch_add(1, std::memory_order_release);
  log->owner_.store(EventLog::Owner::Thread, std::memory_order_release);
  if (fresh) {
    log->next_ = first_.load(std::memory_order_relaxed);
    while (!first_.compare_exchange_weak(log->next_, log, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  end_.armed = true;  // the access makes its destructor run at the thread's end
  prepare_to_throw();
  current_ = log;
  return log;
}

void EventLogs::forget_all() noexcept {
  first_.store(nullptr, std::memory_order_relaxed);
  current_ = nullptr;
}

void EventLogs::release_if_done(EventLog& log) noexcept {
  if (log.owner_.load(std::memory_order_acquire) == EventLog::Owner::Gone) {
    const EventLog::Position end = log.end();
    if (log.head_ == end.chunk && log.read_ == end.size) {
      log.owner_.store(EventLog::Owner::Nobody, std::memory_order_release);
    }
  }
}

}  // namespace gpuscope::base
