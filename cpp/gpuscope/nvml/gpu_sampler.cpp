// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/gpu_sampler.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/file.h"

namespace gpuscope::nvml {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kSlowInterval = 1s;
constexpr std::size_t kMostSamples = 10'000;  // some 15 MB

double process_cpu_s() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

// The second number of /proc/self/statm, see proc(5).
uint64_t resident_bytes() {
  const std::string text = base::read_file("/proc/self/statm");
  char* rest = nullptr;
  std::strtoull(text.c_str(), &rest, 10);
  return std::strtoull(rest, nullptr, 10) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int64_t now_ns() { return base::Clock::process().to_ns(base::ticks()); }

/// Takes over what the slow thread read last; what the fast one reads stays. Nothing for a GPU that is lost.
void merge_slow(GpuState& state, const GpuState& slow) {
  constexpr const char* kLost = "all";
  if (state.why.contains(kLost)) {
    return;
  }
  if (const auto lost = slow.why.find(kLost); lost != slow.why.end()) {
    state.why.emplace("energy_total_j", lost->second);  // the counters that it would have had
    return;
  }
  // What the fast thread cannot read is absent, however the slow one found it before.
#define GPUSCOPE_MERGE_FIGURE(type, figure)                        \
  if (!state.figure.has_value() && !state.why.contains(#figure)) { \
    state.figure = slow.figure;                                    \
  }
  GPUSCOPE_GPU_FIGURES(GPUSCOPE_MERGE_FIGURE)
#undef GPUSCOPE_MERGE_FIGURE
  state.throttled_s = slow.throttled_s;
  state.mig = slow.mig;
  state.processes = slow.processes;
  state.why.insert(slow.why.begin(), slow.why.end());
}

}  // namespace

GpuSampler::GpuSampler(const driver::Nvml& nvml, std::chrono::nanoseconds interval)
    : nvml_(nvml), interval_(interval), count_(count_gpus(nvml, why_)), process_(getpid()), slow_(count_) {
  fast_thread_ = std::thread([this] { run_fast(); });
  try {
    slow_thread_ = std::thread([this] { run_slow(); });
  } catch (...) {
    stop();
    throw;
  }
}

GpuSampler::~GpuSampler() { stop(); }

void GpuSampler::stop() noexcept {
  if (getpid() != process_) {  // the threads are the parent's
    if (fast_thread_.joinable()) {
      fast_thread_.detach();
    }
    if (slow_thread_.joinable()) {
      slow_thread_.detach();
    }
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  for (std::thread* thread : {&fast_thread_, &slow_thread_}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
}

std::vector<GpuSample> GpuSampler::take() {
  if (getpid() != process_) {  // the lock may be held for ever
    return {};
  }
  std::deque<GpuSample> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(samples_);
  }
  return {std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end())};
}

SamplingCost GpuSampler::cost() const {
  if (getpid() != process_) {
    return {};
  }
  const std::lock_guard lock(mutex_);
  return cost_;
}

bool GpuSampler::sleep_until(std::chrono::steady_clock::time_point moment) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_until(lock, moment, [this] { return ends_; });
}

void GpuSampler::keep(GpuSample sample) {
  const std::lock_guard lock(mutex_);
  if (sample.gpu != GpuSample::kNoGpu) {
    merge_slow(sample.state, slow_[sample.gpu].state);
    sample.slow_time_ns = slow_[sample.gpu].time_ns;
  } else {
    sample.slow_time_ns = slow_host_.time_ns;
  }
  sample.host_time_ns = slow_host_.time_ns;
  sample.host = slow_host_.host;
  samples_.push_back(std::move(sample));
  if (samples_.size() > kMostSamples) {
    samples_.pop_front();
    ++cost_.dropped;
  }
}

std::optional<bool> GpuSampler::mig_of(unsigned gpu) const {
  const std::lock_guard lock(mutex_);
  return slow_[gpu].state.mig;
}

void GpuSampler::run_fast() {
  pthread_setname_np(pthread_self(), "gpuscope-gpus");
  std::vector<GpuReader> readers;
  readers.reserve(count_);
  for (unsigned index = 0; index < count_; ++index) {
    readers.emplace_back(nvml_, index);
  }
  {
    std::unique_lock lock(mutex_);  // what differs seldom is in the first sample, too
    wake_.wait(lock, [this] { return ends_ || has_read_slow_; });
  }
  std::vector<std::optional<bool>> mig(count_);
  int64_t cpu_ns = 0;
  auto due = std::chrono::steady_clock::now();
  do {
    const auto began = std::chrono::steady_clock::now();
    GpuSample sample{.process_cpu_s = process_cpu_s(), .resident_bytes = resident_bytes(), .state = {}, .host = {}};
    if (readers.empty()) {
      sample.time_ns = now_ns();
      keep(sample);
    }
    for (GpuReader& reader : readers) {
      const unsigned gpu = reader.state().index;
      if (const std::optional<bool> is_split = mig_of(gpu); is_split != std::exchange(mig[gpu], is_split)) {
        reader.forget_refusals();  // what a split GPU does not tell, a whole one does
      }
      const uint64_t before = base::ticks();
      reader.read_fast();
      reader.read_counters();
      reader.read_link_bytes(interval_);
      const uint64_t after = base::ticks();
      sample.time_ns = base::Clock::process().to_ns(before + (after - before) / 2);
      sample.took_ns = base::Clock::process().to_ns(after) - base::Clock::process().to_ns(before);
      sample.gpu = gpu;
      sample.state = reader.state();
      keep(sample);
    }
    const auto ended = std::chrono::steady_clock::now();
    due += interval_;
    const int64_t missed = ended > due ? (ended - due) / interval_ : 0;  // deadlines stay where they were
    due += missed * interval_;
    const std::lock_guard lock(mutex_);
    ++cost_.rounds;
    cost_.skipped += static_cast<uint64_t>(missed);
    cost_.longest_ns = std::max<int64_t>(cost_.longest_ns, (ended - began).count());
    const int64_t before_ns = std::exchange(cpu_ns, base::thread_cpu_ns());
    cost_.cpu_ns += cpu_ns - before_ns;
  } while (sleep_until(due));
}

void GpuSampler::run_slow() {
  pthread_setname_np(pthread_self(), "gpuscope-gpus-2");
  base::HostStateReader host_reader;
  std::vector<GpuReader> readers;
  readers.reserve(count_);
  for (unsigned index = 0; index < count_; ++index) {
    readers.emplace_back(nvml_, index);
  }
  int64_t cpu_ns = 0;
  auto due = std::chrono::steady_clock::now();
  do {
    SlowState host{.time_ns = now_ns(), .state = {}, .host = host_reader.read()};
    {
      const std::lock_guard lock(mutex_);
      slow_host_ = std::move(host);
    }
    for (GpuReader& reader : readers) {
      const std::optional<bool> mig = reader.state().mig;
      const int64_t began_ns = now_ns();
      reader.read_slow();
      if (reader.state().mig != mig) {
        reader.forget_refusals();
      }
      const std::lock_guard lock(mutex_);
      slow_[reader.state().index] = {
          .time_ns = began_ns + (now_ns() - began_ns) / 2, .state = reader.state(), .host = {}};
    }
    due = std::max(due + std::max(kSlowInterval, interval_), std::chrono::steady_clock::now());
    const std::lock_guard lock(mutex_);
    has_read_slow_ = true;
    wake_.notify_all();
    const int64_t before_ns = std::exchange(cpu_ns, base::thread_cpu_ns());
    cost_.cpu_ns += cpu_ns - before_ns;
  } while (sleep_until(due));
}

}  // namespace gpuscope::nvml
