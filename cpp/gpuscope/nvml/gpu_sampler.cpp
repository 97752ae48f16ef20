// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/gpu_sampler.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/host_usage.h"

namespace gpuscope::nvml {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMostSamples = 10'000;  // some 15 MB
constexpr auto kStopLimit = 1s;
// An energy reading can take 17 ms of CPU time (host of an H100): every 30 s, that would be 0.06 % of a core.
constexpr std::chrono::nanoseconds kRarest = 60s;

double process_cpu_s() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

// The second number of /proc/self/statm, see proc(5).
uint64_t resident_bytes(const base::KeptFile& statm) {
  std::array<char, 128> room{};  // with room for the final zero
  const std::string_view text = statm.read(room.data(), room.size() - 1);
  char* rest = room.data();
  if (!text.empty()) {
    std::strtoull(rest, &rest, 10);
  }
  return std::strtoull(rest, nullptr, 10) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int64_t now_ns() { return base::Clock::process().to_ns(base::ticks()); }

/// The memory of a split GPU is the sum of its GPU instances. Compute instances share the memory of their GPU instance.
void take_memory_of_instances(GpuState& state, const std::vector<MigInstance>& instances) {
  uint64_t used = 0;
  std::set<unsigned> counted;
  for (const MigInstance& instance : instances) {
    if (!instance.memory_used_bytes.has_value()) {
      return;
    }
    if (counted.insert(instance.gpu_instance).second) {
      used += *instance.memory_used_bytes;
    }
  }
  state.memory_used_bytes = used;
  state.why.erase("memory_used_bytes");
}

/// The time of the last rare reading of a GPU, and its slow throttle reasons then.
struct RareReading {
  int64_t time_ns = 0;
  uint64_t held = 0;

  /// Due at any cost: the last one is too old, or the reasons have changed.
  bool is_due(int64_t now_ns, std::optional<uint64_t> held_now) {
    const bool has_changed = held_now && *held_now != std::exchange(held, *held_now);
    return has_changed || time_ns == 0 || now_ns - time_ns >= kRarest.count();
  }
};

/// Adds the latest figures of the slow thread. Those of the fast thread remain. A lost GPU gets only XID errors.
void merge_slow(GpuState& state, const GpuState& slow) {
  constexpr const char* kLost = "all";
  state.xid_errors = slow.xid_errors;  // also for a lost GPU: they show why
  if (const auto why = slow.why.find("xid_errors"); why != slow.why.end()) {
    state.why.insert(*why);
  }
  if (state.why.contains(kLost)) {
    return;
  }
  if (const auto lost = slow.why.find(kLost); lost != slow.why.end()) {
    state.why.emplace("energy_total_j", lost->second);  // explains the missing counters
    return;
  }
  // A figure that the fast thread cannot read stays absent, even with an earlier value of the slow thread.
#define GPUSCOPE_MERGE_FIGURE(type, figure)                        \
  if (!state.figure.has_value() && !state.why.contains(#figure)) { \
    state.figure = slow.figure;                                    \
  }
  GPUSCOPE_GPU_FIGURES(GPUSCOPE_MERGE_FIGURE)
#undef GPUSCOPE_MERGE_FIGURE
  state.throttled_s = slow.throttled_s;
  state.mig = slow.mig;
  state.processes = slow.processes;
  state.instances = slow.instances;
  if (!state.memory_used_bytes.has_value() && slow.instances.has_value() && !slow.instances->empty()) {
    take_memory_of_instances(state, *slow.instances);
  }
  state.why.insert(slow.why.begin(), slow.why.end());
}

}  // namespace

/// State of both threads and the sampler. A thread in an NVML call may outlive the sampler.
class GpuSampler::State {
 public:
  State(const driver::Nvml& nvml, std::chrono::nanoseconds interval)
      : nvml_(nvml),
        interval_(interval),
        count_(count_gpus(nvml, why_)),
        slow_(count_, std::make_shared<SlowState>()),
        held_(count_),
        began_ns_(now_ns()) {}

  /// Starts a thread that shares the state. Throws NotAvailable if that fails.
  static void begin(const std::shared_ptr<State>& state, void (State::*run)());
  bool end() noexcept;
  bool ends() const noexcept;
  std::vector<GpuSample> take();
  SamplingCost cost() const;
  const std::string& why() const noexcept { return why_; }

  void run_fast();
  void run_slow();

 private:
  struct SlowState {
    int64_t time_ns = 0;
    int64_t rare_time_ns = 0;
    GpuState state;
  };
  struct SlowHost {
    int64_t time_ns = 0;
    base::HostState state;
  };
  /// The latest figures of the slow thread.
  struct Newest {
    std::shared_ptr<const SlowState> slow;  // null without a GPU
    std::shared_ptr<const SlowHost> host;
  };
  /// A sample of the fast thread and the latest slow figures. They are merged in `take`, because the caches of the fast
  /// thread are cold after its sleep.
  struct Kept {
    GpuSample sample;
    Newest newest;
  };

  static GpuSample merged(Kept kept);
  void read_parts(GpuReader& reader, const Pace& pace, bool is_settled_due) const;
  /// Returns false if sampling ends before the moment.
  bool sleep_until(std::chrono::steady_clock::time_point moment);
  void keep(GpuSample sample, Newest newest);
  Newest newest_of(unsigned gpu) const;
  /// The throttle reasons with slow times, as the fast thread last read them.
  std::optional<uint64_t> held_of(unsigned gpu) const;
  void count_thread(int change) noexcept;

  driver::Nvml nvml_;
  std::chrono::nanoseconds interval_;
  std::string why_;
  unsigned count_ = 0;
  mutable std::mutex mutex_;  // guards the members below; never held during NVML calls
  std::condition_variable wake_;
  int threads_ = 0;
  bool ends_ = false;
  bool has_read_slow_ = false;
  std::deque<Kept> samples_;
  std::vector<std::shared_ptr<const SlowState>> slow_;  // the latest, per GPU
  std::vector<std::optional<uint64_t>> held_;
  std::shared_ptr<const SlowHost> slow_host_ = std::make_shared<SlowHost>();
  SamplingCost cost_;  // without the figures from durations
  Durations durations_;
  Durations slow_durations_;
  int64_t began_ns_ = 0;
};

void GpuSampler::State::begin(const std::shared_ptr<State>& state, void (State::*run)()) {
  state->count_thread(1);
  try {
    base::start_thread("a monitor of GPUs", [state, run] {
      (state.get()->*run)();
      state->count_thread(-1);
    }).detach();
  } catch (...) {
    state->count_thread(-1);
    throw;
  }
}

void GpuSampler::State::count_thread(int change) noexcept {
  const std::lock_guard lock(mutex_);
  threads_ += change;
  wake_.notify_all();
}

bool GpuSampler::State::end() noexcept {
  std::unique_lock lock(mutex_);
  ends_ = true;
  wake_.notify_all();
  return wake_.wait_for(lock, kStopLimit, [this] { return threads_ == 0; });
}

bool GpuSampler::State::ends() const noexcept {
  const std::lock_guard lock(mutex_);
  return ends_;
}

std::vector<GpuSample> GpuSampler::State::take() {
  std::deque<Kept> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(samples_);
  }
  std::vector<GpuSample> samples;
  samples.reserve(taken.size());
  for (Kept& kept : taken) {
    samples.push_back(merged(std::move(kept)));
  }
  return samples;
}

GpuSample GpuSampler::State::merged(Kept kept) {
  GpuSample sample = std::move(kept.sample);
  if (sample.gpu != GpuSample::kNoGpu) {
    merge_slow(sample.state, kept.newest.slow->state);
    sample.slow_time_ns = kept.newest.slow->time_ns;
    sample.rare_time_ns = kept.newest.slow->rare_time_ns;
  } else {
    sample.slow_time_ns = kept.newest.host->time_ns;
  }
  sample.host_time_ns = kept.newest.host->time_ns;
  sample.host = kept.newest.host->state;
  return sample;
}

SamplingCost GpuSampler::State::cost() const {
  const std::lock_guard lock(mutex_);
  SamplingCost cost = cost_;
  const auto mean = [](const Durations& of) {
    return of.sum_ns() / static_cast<int64_t>(std::max<uint64_t>(1, of.count()));
  };
  cost.elapsed_ns = now_ns() - began_ns_;
  cost.mean_ns = mean(durations_);
  cost.p99_ns = durations_.quantile_ns(0.99);
  cost.slow_mean_ns = mean(slow_durations_);
  cost.slow_p99_ns = slow_durations_.quantile_ns(0.99);
  return cost;
}

bool GpuSampler::State::sleep_until(std::chrono::steady_clock::time_point moment) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_until(lock, moment, [this] { return ends_; });
}

void GpuSampler::State::keep(GpuSample sample, Newest newest) {
  const std::lock_guard lock(mutex_);
  durations_.add(sample.took_ns);
  if (sample.gpu != GpuSample::kNoGpu) {
    held_[sample.gpu] = sample.state.throttle_bits;
  }
  samples_.push_back({std::move(sample), std::move(newest)});
  if (samples_.size() > kMostSamples) {
    samples_.pop_front();
    ++cost_.dropped;
  }
}

GpuSampler::State::Newest GpuSampler::State::newest_of(unsigned gpu) const {
  const std::lock_guard lock(mutex_);
  return {gpu != GpuSample::kNoGpu ? slow_[gpu] : nullptr, slow_host_};
}

std::optional<uint64_t> GpuSampler::State::held_of(unsigned gpu) const {
  const std::lock_guard lock(mutex_);
  const std::optional<uint64_t> bits = held_[gpu];
  return bits ? std::optional(*bits & kRareReasons) : std::nullopt;
}

void GpuSampler::State::read_parts(GpuReader& reader, const Pace& pace, bool is_settled_due) const {
  const bool was_lost = reader.device() == nullptr;  // a GPU that came back has no earlier figures
  const auto has = [&](Part part) { return was_lost || pace.has(part); };
  if (was_lost || is_settled_due) {
    reader.read_use();
  } else if (has(Part::kUse)) {
    reader.read_load();
  }
  if (has(Part::kMemory)) {
    reader.read_memory();
  }
  if (has(Part::kCounters)) {
    reader.read_counters();
  }
  if (has(Part::kLinks)) {
    reader.read_link_bytes(interval_ * pace.divisor(Part::kLinks));
  } else {
    reader.forget_link_bytes();
  }
}

void GpuSampler::State::run_fast() {
  pthread_setname_np(pthread_self(), "gpuscope-gpus");
  std::vector<GpuReader> readers;
  readers.reserve(count_);
  for (unsigned index = 0; index < count_; ++index) {
    readers.emplace_back(nvml_, index);
  }
  {
    std::unique_lock lock(mutex_);  // the first sample includes slow figures
    wake_.wait(lock, [this] { return ends_ || has_read_slow_; });
  }
  std::vector<std::optional<bool>> mig(count_);
  Pace pace(interval_, count_);
  const base::KeptFile statm("/proc/self/statm");
  uint64_t resident = 0;  // as often as the memory of GPUs
  int64_t cpu_ns = 0;
  auto due = std::chrono::steady_clock::now();
  auto settled_due = due;  // of limits and the memory's clock
  do {
    const auto began = std::chrono::steady_clock::now();
    const bool is_settled_due = settled_due <= due;
    if (is_settled_due) {
      settled_due = due + Seldom::kShortest;
    }
    resident = pace.has(Part::kMemory) ? resident_bytes(statm) : resident;
    GpuSample sample{.process_cpu_s = process_cpu_s(), .resident_bytes = resident, .state = {}, .host = {}};
    if (readers.empty()) {
      Newest newest = newest_of(GpuSample::kNoGpu);
      sample.time_ns = now_ns();
      keep(sample, std::move(newest));
    }
    for (GpuReader& reader : readers) {
      const unsigned gpu = reader.state().index;
      Newest newest = newest_of(gpu);
      if (const std::optional<bool> is_split = newest.slow->state.mig; is_split != std::exchange(mig[gpu], is_split)) {
        reader.forget_refusals();  // a whole GPU reports more than a split one
      }
      const uint64_t before = base::ticks();
      read_parts(reader, pace, is_settled_due);
      const uint64_t after = base::ticks();
      sample.time_ns = base::Clock::process().to_ns(before + (after - before) / 2);
      sample.took_ns = base::Clock::process().to_ns(after) - base::Clock::process().to_ns(before);
      sample.gpu = gpu;
      sample.state = reader.state();
      keep(sample, std::move(newest));
    }
    const auto ended = std::chrono::steady_clock::now();
    const int64_t before_ns = std::exchange(cpu_ns, base::thread_cpu_ns());
    pace.end_round((ended - began).count(), cpu_ns - before_ns);
    due += interval_;
    const int64_t missed = ended > due ? (ended - due) / interval_ : 0;  // keep the grid of deadlines
    due += missed * interval_;
    const std::lock_guard lock(mutex_);
    ++cost_.rounds;
    cost_.skipped += static_cast<uint64_t>(missed);
    cost_.longest_ns = std::max<int64_t>(cost_.longest_ns, (ended - began).count());
    cost_.divisors = pace.divisors();
    cost_.cpu_ns += cpu_ns - before_ns;
  } while (sleep_until(due));
}

void GpuSampler::State::run_slow() {
  pthread_setname_np(pthread_self(), "gpuscope-gpus-2");
  base::HostStateReader host_reader;
  XidReader xids(nvml_);
  std::vector<GpuReader> readers;
  readers.reserve(count_);
  for (unsigned index = 0; index < count_; ++index) {
    readers.emplace_back(nvml_, index);
  }
  int64_t cpu_ns = 0;
  int64_t charged_ns = 0;
  unsigned turn = 0;  // the GPU of the next rare reading
  std::vector<RareReading> rare(count_);
  std::optional<Allowance> allowance;  // without the first round, which is slower
  Seldom host_pace(kSlowShare, interval_);
  Seldom gpu_pace(kSlowShare * std::max(count_, 1U), interval_);
  auto due = std::chrono::steady_clock::now();
  do {
    const auto began = std::chrono::steady_clock::now();
    if (host_pace.is_due(began)) {  // reads one file per thread of the program
      const int64_t before_ns = base::thread_cpu_ns();
      const int64_t time_ns = now_ns();
      auto host = std::make_shared<const SlowHost>(SlowHost{time_ns, host_reader.read()});
      host_pace.has_taken(base::thread_cpu_ns() - before_ns, began);
      const std::lock_guard lock(mutex_);
      slow_host_ = std::move(host);
    }
    xids.read(now_ns());
    const bool is_slow_due = gpu_pace.is_due(began);
    int64_t slow_cpu_ns = 0;
    for (GpuReader& reader : readers) {
      const std::optional<bool> mig = reader.state().mig;
      const bool was_lost = reader.device() == nullptr;
      const unsigned gpu = reader.state().index;
      const int64_t began_ns = now_ns();
      if (is_slow_due || was_lost) {
        const int64_t before_ns = base::thread_cpu_ns();
        reader.read_slow();
        slow_cpu_ns += base::thread_cpu_ns() - before_ns;
      } else {
        reader.read_throttled_where(false);
      }
      if (reader.state().mig != mig) {
        reader.forget_refusals();
      }
      const int64_t read_ns = now_ns();
      const bool is_free = gpu == turn && allowance && allowance->free_ns() <= read_ns;
      if (rare[gpu].is_due(read_ns, held_of(gpu)) || was_lost || is_free) {
        reader.read_rare();
        rare[gpu].time_ns = read_ns + (now_ns() - read_ns) / 2;
        turn = (gpu + 1) % count_;
      }
      const int64_t took_ns = now_ns() - began_ns;
      auto slow = std::make_shared<SlowState>(
          SlowState{began_ns + (read_ns - began_ns) / 2, rare[gpu].time_ns, reader.state()});
      xids.watch(gpu, reader.device());
      slow->state.xid_errors = xids.counts(gpu);
      if (!slow->state.xid_errors.has_value()) {
        slow->state.why["xid_errors"] = xids.why(gpu);
      }
      const std::lock_guard lock(mutex_);
      slow_durations_.add(took_ns);
      slow_[gpu] = std::move(slow);
    }
    due = std::max(due + std::max(Seldom::kShortest, interval_), std::chrono::steady_clock::now());
    const std::lock_guard lock(mutex_);
    if (is_slow_due) {
      gpu_pace.has_taken(slow_cpu_ns, began);
      cost_.slow_interval_ns = gpu_pace.wait().count();
    }
    has_read_slow_ = true;
    wake_.notify_all();
    const int64_t before_ns = std::exchange(cpu_ns, base::thread_cpu_ns());
    cost_.cpu_ns += cpu_ns - before_ns;
    const int64_t spent_ns = cost_.cpu_ns - std::exchange(charged_ns, cost_.cpu_ns);
    if (allowance) {
      allowance->spend(now_ns(), spent_ns);
    } else {
      allowance.emplace(kSamplingShare * count_, 0, now_ns());
    }
  } while (sleep_until(due));
}

GpuSampler::GpuSampler(const driver::Nvml& nvml, std::chrono::nanoseconds interval)
    : process_(getpid()), state_(std::make_shared<State>(nvml, interval)) {
  State::begin(state_, &State::run_fast);
  try {
    State::begin(state_, &State::run_slow);
  } catch (...) {
    state_->end();
    throw;
  }
}

GpuSampler::~GpuSampler() {
  if (is_childs() || state_->ends()) {
    return;
  }
  state_->end();
}

bool GpuSampler::stop() noexcept { return is_childs() || state_->end(); }

std::vector<GpuSample> GpuSampler::take() { return is_childs() ? std::vector<GpuSample>() : state_->take(); }

SamplingCost GpuSampler::cost() const { return is_childs() ? SamplingCost() : state_->cost(); }

const std::string& GpuSampler::why() const noexcept { return state_->why(); }

// In a forked child the lock may be held forever.
bool GpuSampler::is_childs() const noexcept { return getpid() != process_; }

}  // namespace gpuscope::nvml
