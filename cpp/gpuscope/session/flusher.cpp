// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/flusher.h"

#include <pthread.h>

#include <algorithm>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_log.h"

namespace gpuscope::session {

Flusher::Flusher(activity::Collector& collector) : collector_(collector), thread_([this] { run(); }) {}

Flusher::~Flusher() {
  ends_thread_.store(true, std::memory_order_relaxed);
  begins_.release();
  thread_.join();
}

void Flusher::begin() noexcept {
  if (wait(std::chrono::nanoseconds::zero())) {
    under_way_ = true;
    begins_.release();
  }
}

bool Flusher::wait(std::chrono::nanoseconds limit) noexcept {
  under_way_ = under_way_ && !ended_.try_acquire_for(limit);
  return !under_way_;
}

void Flusher::run() noexcept {
  pthread_setname_np(pthread_self(), "gpuscope-flush");
  while (true) {
    begins_.acquire();
    if (ends_thread_.load(std::memory_order_relaxed)) {
      return;
    }
    const int64_t cpu_ns = base::thread_cpu_ns();
    const auto began = std::chrono::steady_clock::now();
    collector_.flush(false);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
    cpu_ns_.fetch_add(base::thread_cpu_ns() - cpu_ns, std::memory_order_relaxed);
    longest_ns_.store(std::max<int64_t>(longest_ns_.load(std::memory_order_relaxed), took.count()));
    ended_.release();
    base::EventLogs::process().wake().release();
  }
}

}  // namespace gpuscope::session
