// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/hooks.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>

#include "gpuscope/base/strings.h"

namespace gpuscope::base {

struct OpenRegions::Thread {
  std::array<Open, kMax> open{};  // outermost first
  std::size_t count = 0;
  std::size_t deeper = 0;  // regions open inside the last entry, without an entry of their own
  uint32_t period = 0;

  uint32_t innermost() const noexcept { return count != 0 ? open[count - 1].region : 0; }
};

OpenRegions::Thread& OpenRegions::of_thread() noexcept {
  static constinit thread_local Thread thread;
  if (const uint32_t now = period_.load(std::memory_order_relaxed); thread.period != now) {
    thread.period = now;
    thread.count = thread.deeper = 0;
  }
  return thread;
}

void OpenRegions::begin(User user) noexcept {
  if (users_.load() == 0) {
    threads_ = 0;
    latest_ = 0;
    ++period_;
  }
  users_.fetch_or(user);
  Names::empty_caches();  // names of regions are permanent from now on
}

void OpenRegions::watch(Sink sink) noexcept {
  sink_ = sink;
  if (sink != nullptr) {
    begin(kBlackBox);
  } else {
    end(kBlackBox);
  }
}

void OpenRegions::report(Thread& thread) noexcept {
  if (sink_ != nullptr) [[unlikely]] {
    sink_({thread.open.data(), thread.count}, thread.deeper);
  }
}

void OpenRegions::enter(uint32_t name, const void* task) noexcept {
  Thread& thread = of_thread();
  if (thread.count == kMax) {
    ++thread.deeper;
  } else {
    threads_ += thread.count == 0 ? 1 : 0;
    thread.open[thread.count++] = {task, name + 1, 0, 0};
    latest_ = thread.innermost();
  }
  report(thread);
}

void OpenRegions::exit(uint32_t name, const void* task) noexcept {
  Thread& thread = of_thread();
  std::size_t found = kMax;
  bool is_of_task = false;  // whether the task matches. Otherwise it may be a deeper region, as tasks end in any order
  for (std::size_t at = thread.count; at-- != 0 && !is_of_task;) {
    is_of_task = thread.open[at].region == name + 1 && thread.open[at].task == task;
    if (is_of_task || (found == kMax && thread.open[at].region == name + 1)) {
      found = at;
    }
  }
  if (!is_of_task && thread.deeper != 0) {
    --thread.deeper;
    report(thread);
    return;
  }
  if (found == kMax) {
    return;  // entered before regions were tracked
  }
  std::copy(thread.open.begin() + found + 1, thread.open.begin() + thread.count, thread.open.begin() + found);
  --thread.count;
  threads_ -= thread.count == 0 ? 1 : 0;
  latest_ = thread.innermost();
  report(thread);
}

uint32_t OpenRegions::of_task(const void* task) noexcept {
  const Thread& thread = of_thread();
  for (std::size_t at = thread.count; at-- != 0;) {
    if (thread.open[at].task == task || thread.open[at].task == nullptr) {
      return thread.open[at].region;
    }
  }
  return 0;
}

uint32_t OpenRegions::of_program() noexcept {
  return threads_.load(std::memory_order_relaxed) == 1 ? latest_.load(std::memory_order_relaxed) : 0;
}

namespace {

#if defined(__x86_64__) || defined(__aarch64__)
[[gnu::tls_model("initial-exec")]]  // as in event_log.h
#endif
constinit thread_local uint32_t known_thread_id = 0;

void lock_dictionaries() {
  Names::process().lock();
  Stacks::process().lock();
}

void unlock_dictionaries() {
  Stacks::process().unlock();
  Names::process().unlock();
}

}  // namespace

SignalsBlocked::SignalsBlocked() noexcept {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

uint32_t thread_id() noexcept {
  if (known_thread_id == 0) [[unlikely]] {
    known_thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
  }
  return known_thread_id;
}

void survive_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(lock_dictionaries, unlock_dictionaries, [] {
      unlock_dictionaries();
      known_thread_id = 0;  // the child's only thread has a new number
    });
  });
}

}  // namespace gpuscope::base
