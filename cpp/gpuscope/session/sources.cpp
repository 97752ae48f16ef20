// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/sources.h"

#include <atomic>
#include <cstdint>
#include <mutex>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/sample_log.h"
#include "gpuscope/driver/devices.h"
#include "gpuscope/nvml/recording_sampler.h"

namespace gpuscope::session {
namespace {

class CounterSource final : public Source {
 public:
  CounterSource(const driver::Cupti& cupti, const counters::Request& request) : sampling_(cupti, request) {}

  void start() override { sampling_.begin(); }
  void take(attribution::Decoder& decoder) override {
    sampling_.take(samples_);
    for (std::size_t index = 0; index < samples_.size(); ++index) {
      const counters::Samples& samples = samples_[index];
      if (samples.starts.empty()) {
        continue;
      }
      const counters::PmSampler& sampler = sampling_.readers()[index]->sampler();
      std::vector<attribution::SampledCounter> counters;
      for (const counters::Sampled& each : sampler.sampled()) {
        counters.push_back({each.metric, each.unit, each.description});
      }
      decoder.take_counters(static_cast<uint32_t>(sampler.device()), counters,
                            {samples.starts, samples.ends, samples.values});
    }
  }
  void end(bool last) override { sampling_.begin_finish(last); }
  void finish() override { sampling_.wait_finished(); }
  void release_cupti() override {
    end(true);
    finish();
    why_ = "another profiler was started and needs CUPTI for itself";
  }
  void facts(Facts& facts) override {
    const std::string why = why_.empty() ? sampling_.why_ended() : why_;
    if (!why.empty()) {
      facts.add("counters.why", why);
    }
    if (std::exchange(is_over_, !why_.empty())) {  // since an earlier window
      return;
    }
    std::string left_out;
    for (const auto& reader : sampling_.readers()) {
      const counters::Choice& choice = reader->sampler().choice();
      for (const auto& names : {choice.unknown, choice.too_many}) {
        for (const std::string& name : names) {
          left_out += (left_out.empty() ? "" : " ") + name;
        }
      }
    }
    const counters::PmSampling::Times times = sampling_.times();
    facts.add("counters.left_out", left_out);
    facts.add("audit.counter_samples", facts.counters.counter_samples);
    facts.add("audit.counter_overflows", sampling_.take_overflows());
    facts.add("audit.counter_cpu_ns", sampling_.take_cpu_time());
    facts.add("audit.counter_interval_ns", sampling_.interval_ns());
    facts.add("audit.counter_make_ns", times.make_ns);
    facts.add("audit.counter_start_ns", times.steps.start_ns);
    facts.add("audit.counter_stop_ns", times.steps.stop_ns);
    facts.add("audit.counter_decode_ns", times.steps.decode_ns);
    facts.add("audit.counter_disable_ns", times.steps.disable_ns);
  }

 private:
  counters::PmSampling sampling_;
  std::vector<counters::Samples> samples_;
  std::string why_;  // why another client ended it
  bool is_over_ = false;
};

class DeviceSource final : public Source {
 public:
  DeviceSource(const driver::Nvml& nvml, const driver::Cuda& cuda, std::chrono::nanoseconds interval)
      : sampler_(nvml, cuda, interval) {}

  void begin() override { sampler_.begin(); }
  void take(attribution::Decoder& decoder) override {
    const nvml::RecordingSampler::Rows rows = sampler_.take();
    decoder.take_device_samples(rows.samples, rows.counters);
  }
  void finish() override { sampler_.finish(); }
  void facts(Facts& facts) override {
    const nvml::SamplingCost cost = sampler_.take_cost();
    const std::string why = sampler_.why_none();
    if (cost.cpu_ns != 0 || !why.empty()) {
      facts.add("device_samples.why", why);
    }
    if (cost.cpu_ns != 0) {
      facts.add("audit.device_samples", facts.counters.device_samples);
      facts.add("audit.device_samples_thinned", facts.counters.device_samples_thinned);
      facts.add("audit.device_samples_dropped", cost.dropped);
      facts.add("audit.device_samples_cpu_ns", cost.cpu_ns);
      facts.add("audit.device_samples_longest_ns", cost.longest_ns);
      for (const auto& [what, reason] : sampler_.why()) {
        facts.add("device_samples." + std::to_string(what.first) + "." + what.second, reason);
      }
    }
  }

 private:
  nvml::RecordingSampler sampler_;
};

class PythonSource final : public Source {
 public:
  void facts(Facts& facts) override {
    if (const int64_t cpu_ns = base::SampleLog::process().take_cpu_time(); cpu_ns != 0) {
      facts.add("audit.samples", facts.counters.samples);
      facts.add("audit.samples_dropped", facts.counters.samples_dropped);
      facts.add("audit.sampler_cpu_ns", cpu_ns);
    }
  }
};

class AnchorSource final : public Source {
 public:
  void begin() override { read(); }
  void take(attribution::Decoder& decoder) override {
    if (base::Clock::process().now_ns() >= due_ns_.load()) {
      read();
    }
    const std::lock_guard lock(mutex_);
    for (const store::Anchors::Row& row : rows_) {
      decoder.take_anchor(row);
    }
    rows_.clear();
  }
  void facts(Facts&) override {}

 private:
  static constexpr int64_t kIntervalNs = 1'000'000'000;

  void read() {
    const base::Anchor anchor = base::take_anchor();
    const int64_t at_ns = base::Clock::process().to_ns(anchor.ticks);
    due_ns_ = at_ns + kIntervalNs;
    const std::lock_guard lock(mutex_);
    rows_.push_back({at_ns, anchor.realtime_ns, anchor.monotonic_ns});
  }

  std::atomic<int64_t> due_ns_{0};
  std::mutex mutex_;
  std::vector<store::Anchors::Row> rows_;  // guarded
};

/// Stands in for a source that is not available.
class Absent final : public Source {
 public:
  Absent(std::string key, std::string why) : key_(std::move(key)), why_(std::move(why)) {}
  void facts(Facts& facts) override { facts.add(key_, why_); }

 private:
  std::string key_, why_;
};

}  // namespace

std::unique_ptr<Source> sample_counters(const driver::Cuda& cuda, const driver::Cupti& cupti,
                                        counters::Request request) {
  try {
    driver::find_device(cuda, 0);  // initialises the driver
    const std::vector<int> in_use = driver::devices_in_use(cuda);
    request.devices = in_use.empty() ? request.devices : in_use;
    return std::make_unique<CounterSource>(cupti, request);
  } catch (const base::InvalidArgument&) {
    throw;
  } catch (const base::Error& error) {
    return std::make_unique<Absent>("counters.why", error.what());
  }
}

std::unique_ptr<Source> sample_devices(const driver::Nvml& nvml, const driver::Cuda& cuda,
                                       std::chrono::nanoseconds interval) {
  try {
    return std::make_unique<DeviceSource>(nvml, cuda, interval);
  } catch (const base::NotAvailable& error) {
    return std::make_unique<Absent>("device_samples.why", error.what());
  }
}

std::unique_ptr<Source> clock_anchors() { return std::make_unique<AnchorSource>(); }
std::unique_ptr<Source> python_samples() { return std::make_unique<PythonSource>(); }

}  // namespace gpuscope::session
