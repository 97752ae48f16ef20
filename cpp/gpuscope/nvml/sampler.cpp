// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/sampler.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "gpuscope/base/hooks.h"
#include "gpuscope/base/host_usage.h"
#include "gpuscope/store/values.h"

namespace gpuscope::nvml {
namespace {

constexpr std::chrono::seconds kStopLimit(1);

}  // namespace

void Sampler::Loop::Durations::add(int64_t ns) {
  ++bins[std::min<std::size_t>(store::histogram_bin(ns), bins.size() - 1)];
  ++count;
  sum_ns += ns;
}

int64_t Sampler::Loop::Durations::p99_ns() const {
  auto left = static_cast<uint64_t>(count - count / 100);
  std::size_t bin = 0;
  for (; bin < bins.size() - 1 && bins[bin] < left; ++bin) {
    left -= bins[bin];
  }
  return count == 0 ? 0 : store::histogram_middle(static_cast<uint32_t>(bin));
}

void Sampler::Loop::begin() {
  const std::lock_guard lock(mutex_);
  is_active_ = has_begun_ = true;
  is_last_ = false;
  changed_.notify_all();
}

void Sampler::Loop::finish(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  if (!is_active_) {
    return;
  }
  is_last_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, limit, [this] { return !is_last_; });
  is_last_ = is_active_ = false;
}

bool Sampler::Loop::end() noexcept {
  std::unique_lock lock(mutex_);
  ends_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, kStopLimit, [this] { return has_ended_; });
}

bool Sampler::Loop::ends() const noexcept {
  const std::lock_guard lock(mutex_);
  return ends_;
}

SamplingCost Sampler::Loop::cost() const {
  const std::lock_guard lock(mutex_);
  SamplingCost cost = cost_;
  cost.elapsed_ns = now_ns() - created_ns_;
  cost.mean_ns = durations_.sum_ns / std::max<int64_t>(1, durations_.count);
  cost.p99_ns = durations_.p99_ns();
  return cost;
}

void Sampler::Loop::run() noexcept {
  pthread_setname_np(pthread_self(), thread_);
  base::prepare_to_throw();
  int64_t counted_ns = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || is_active_; });
    if (ends_ && !has_begun_) {
      break;
    }
    const bool reads_all = is_last_;
    const bool begins = std::exchange(has_begun_, false);
    lock.unlock();
    bool failed = false;
    try {
      visit(begins, reads_all);
    } catch (const std::exception&) {  // no memory
      failed = true;
      round_ns_ = now_ns() + std::max(kSecondNs, interval_ns_);
      look_ns_ = std::max(look_ns_, round_ns_);
    }
    const int64_t cpu_ns = base::thread_cpu_ns();
    lock.lock();
    cost_.cpu_ns += cpu_ns - std::exchange(counted_ns, cpu_ns);
    cost_.dropped += failed ? 1 : 0;
    if (reads_all) {
      is_active_ = is_active_ && !is_last_;  // a new window may have begun after `finish` timed out
      is_last_ = false;
      changed_.notify_all();
      continue;
    }
    const int64_t wait_ns = std::min(round_ns_, look_ns_) - now_ns();
    changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(wait_ns, 0)),
                      [this] { return ends_ || has_begun_ || is_last_ || !is_active_; });
  }
  has_ended_ = true;
  lock.unlock();
  changed_.notify_all();
}

void Sampler::Loop::visit(bool begins, bool reads_all) {
  const int64_t now = now_ns();
  const std::size_t known = gpus_.size();
  if (look_ns_ <= now) {
    look_ns_ = find_gpus(now);
  }
  if (begins) {
    std::ranges::for_each(gpus_, read_all_soon);
  }
  if (begins || reads_all || gpus_.size() != known) {
    round_ns_ = now;
  }
  if (round_ns_ <= now) {
    read_round(now, reads_all);
  }
}

void Sampler::Loop::read_round(int64_t began_ns, bool reads_all) {
  begin_round(round_ns_);
  for (Gpu& gpu : gpus_) {
    for (const Timed* timed : {&gpu.energy, &gpu.rare}) {
      if (gpu.reader.device() != nullptr && (reads_all || timed->due_ns == 0)) {  // the first sample has all figures
        read_and_keep(gpu, timed->group);
      }
    }
    read_and_keep(gpu, reads_all || gpu.second.due_ns <= round_ns_ ? kFast | kSecond : kFast);
    const std::optional<uint64_t> bits = gpu.reader.state().throttle_bits;
    const uint64_t held = bits ? *bits & kRareReasons : gpu.held;
    if (held != std::exchange(gpu.held, held) || held != 0) {
      gpu.rare.due_ns = std::min(gpu.rare.due_ns, gpu.rare.read_ns + kSecondNs);
    }
  }
  read_slow_in_turn(began_ns);
  const int64_t ended_ns = now_ns();
  round_ns_ += interval_ns_;
  const int64_t missed = ended_ns > round_ns_ ? (ended_ns - round_ns_) / interval_ns_ : 0;
  round_ns_ += missed * interval_ns_;  // deadlines do not shift
  const std::lock_guard lock(mutex_);
  ++cost_.rounds;
  cost_.skipped += static_cast<uint64_t>(missed);
  cost_.longest_ns = std::max(cost_.longest_ns, ended_ns - began_ns);
}

// A slow reading takes up to 17 ms. Slow readings follow a round until half of the interval is over, at least one per
// round, and the others wait for the next round. So they delay no round, unless a single reading is too long for it.
void Sampler::Loop::read_slow_in_turn(int64_t began_ns) {
  bool has_read = false;
  for (std::size_t left = 2 * gpus_.size(); left > 0; --left, ++turn_) {
    Gpu& gpu = gpus_[turn_ / 2 % gpus_.size()];
    const Timed& timed = turn_ % 2 == 0 ? gpu.energy : gpu.rare;
    if (gpu.reader.device() == nullptr || timed.due_ns > round_ns_) {
      continue;
    }
    if (has_read && now_ns() - began_ns > interval_ns_ / 2) {
      return;
    }
    read_and_keep(gpu, timed.group);
    has_read = true;
  }
}

void Sampler::Loop::read_and_keep(Gpu& gpu, unsigned groups) {
  const int64_t began_ns = now_ns();
  read(gpu, groups);
  const int64_t ended_ns = now_ns();
  for (Timed* timed : {&gpu.second, &gpu.rare, &gpu.energy}) {
    if ((groups & timed->group) != 0) {
      timed->due_ns += timed->interval_ns;  // deadlines do not shift
      timed->due_ns = timed->due_ns > round_ns_ ? timed->due_ns : round_ns_ + timed->interval_ns;
      timed->read_ns = began_ns + (ended_ns - began_ns) / 2;
    }
  }
  if (gpu.reader.device() == nullptr) {
    read_all_soon(gpu);  // once it is back
  }
  const std::lock_guard lock(mutex_);
  if ((groups & kFast) != 0) {
    durations_.add(ended_ns - began_ns);
  }
  keep(gpu, groups, began_ns, ended_ns);
}

Sampler::Sampler(std::shared_ptr<Loop> loop, const char* what) : process_(getpid()), loop_(std::move(loop)) {
  base::start_thread(what, [shared = loop_] { shared->run(); }).detach();
}

Sampler::~Sampler() {
  if (!is_childs() && !loop_->ends()) {
    loop_->end();
  }
}

bool Sampler::stop() noexcept { return is_childs() || loop_->end(); }

SamplingCost Sampler::cost() const { return is_childs() ? SamplingCost() : loop_->cost(); }

bool Sampler::is_childs() const noexcept { return getpid() != process_; }

}  // namespace gpuscope::nvml
