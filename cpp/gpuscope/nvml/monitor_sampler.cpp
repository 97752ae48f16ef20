// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/monitor_sampler.h"

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "gpuscope/base/host_usage.h"
#include "gpuscope/nvml/xid.h"

namespace gpuscope::nvml {
namespace {

constexpr std::size_t kMostSamples = 10'000;  // some 15 MB

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

/// The memory of a split GPU is the sum of its GPU instances. Compute instances share the memory of their GPU instance.
void take_memory_of_instances(GpuState& state) {
  uint64_t used = 0;
  std::set<unsigned> counted;
  for (const MigInstance& instance : *state.instances) {
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

}  // namespace

class MonitorSampler::Samples : public Sampler::Loop {
 public:
  Samples(const driver::Nvml& nvml, std::chrono::nanoseconds interval)
      : Loop(nvml, interval, "gpuscope-gpus"), count_(count_gpus(nvml, why_)), xids_(nvml) {
    begin();
  }

  std::vector<GpuSample> take() {
    std::deque<GpuSample> taken;
    {
      const std::lock_guard lock(mutex_);
      taken.swap(samples_);
    }
    return {std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end())};
  }
  const std::string& why() const noexcept { return why_; }

 private:
  int64_t find_gpus(int64_t /*now_ns*/) override {
    for (auto index = static_cast<unsigned>(gpus_.size()); index < count_; ++index) {
      gpus_.push_back({GpuReader(nvml_, index), index});
      gpus_.back().energy.interval_ns = 2 * kSecondNs;  // a reading takes 2 to 4 ms
    }
    return INT64_MAX;
  }

  void begin_round(int64_t due_ns) override {
    const int64_t now = now_ns();
    if (host_due_ns_ <= due_ns) {
      host_due_ns_ = due_ns + kSecondNs;
      process_.host = host_.read();  // reads one file per thread of the program
      process_.host_time_ns = now;
      process_.resident_bytes = resident_bytes(statm_);
      xids_.read(now);
    }
    process_.process_cpu_s = process_cpu_s();
    if (gpus_.empty()) {
      GpuSample sample = process_;
      sample.time_ns = now;
      sample.slow_time_ns = process_.host_time_ns;
      const std::lock_guard lock(mutex_);
      push(std::move(sample));
    }
  }

  void read(Gpu& gpu, unsigned groups) override {
    GpuReader& reader = gpu.reader;
    if ((groups & kFast) != 0) {
      reader.read_load();
      reader.read_link_bytes(std::chrono::nanoseconds(interval_ns_));
    }
    // A mean of performance counters needs two readings: the first mean does not wait for a second.
    const bool is_first = !reader.state().sm_active_ratio.has_value() && now_ns() - began_ns_ < kSecondNs;
    if ((groups & kSecond) != 0 || (is_first && (groups & kFast) != 0)) {
      reader.read_counters();
    }
    if ((groups & kSecond) != 0) {
      const std::optional<bool> mig = reader.state().mig;
      reader.read_settled();
      reader.read_slow();
      if (mig.has_value() && reader.state().mig != mig) {
        reader.forget_refusals();  // a whole GPU reports more than a split one
      }
      xids_.watch(gpu.number, reader.device());
    }
    if ((groups & kRare) != 0) {
      reader.read_rare();
    }
    if ((groups & kEnergy) != 0) {
      reader.read_energy();
    }
  }

  void keep(const Gpu& gpu, unsigned groups, int64_t began_ns, int64_t ended_ns) override {
    if ((groups & kFast) == 0) {
      return;  // part of the next sample
    }
    GpuSample sample = process_;
    sample.time_ns = began_ns + (ended_ns - began_ns) / 2;
    sample.took_ns = ended_ns - began_ns;
    sample.gpu = gpu.number;
    sample.slow_time_ns = gpu.second.read_ns;
    sample.rare_time_ns = gpu.energy.read_ns;  // slow throttle times do not change unless they are read each second
    sample.state = gpu.reader.state();
    GpuState& state = sample.state;
    if (!state.memory_used_bytes && state.instances && !state.instances->empty()) {
      take_memory_of_instances(state);
    }
    state.xid_errors = xids_.counts(gpu.number);  // also of a lost GPU: they show why
    if (!state.xid_errors) {
      state.why["xid_errors"] = xids_.why(gpu.number);
    }
    push(std::move(sample));
  }

  void push(GpuSample sample) {
    samples_.push_back(std::move(sample));
    if (samples_.size() > kMostSamples) {
      samples_.pop_front();
      ++cost_.dropped;
    }
  }

  std::string why_;
  unsigned count_ = 0;
  XidReader xids_;
  base::HostStateReader host_;
  base::KeptFile statm_{"/proc/self/statm"};
  int64_t began_ns_ = now_ns();
  int64_t host_due_ns_ = 0;
  GpuSample process_;              // the latest figures of the process and the host
  std::deque<GpuSample> samples_;  // guarded
};

MonitorSampler::MonitorSampler(const driver::Nvml& nvml, std::chrono::nanoseconds interval)
    : MonitorSampler(std::make_shared<Samples>(nvml, interval)) {}

MonitorSampler::MonitorSampler(std::shared_ptr<Samples> samples)
    : Sampler(samples, "a monitor of GPUs"), samples_(std::move(samples)) {}

std::vector<GpuSample> MonitorSampler::take() { return is_childs() ? std::vector<GpuSample>() : samples_->take(); }

const std::string& MonitorSampler::why() const noexcept { return samples_->why(); }

}  // namespace gpuscope::nvml
