// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpuscope/counters/metrics.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::counters {

/// What is sampled, on each of the devices.
struct Request {
  std::vector<std::string> metrics;  // with their endings; none: nothing is sampled
  bool in_full = false;              // all of them or none; else as many as fit into one pass, the first first
  int64_t interval_ns = 100'000;
  std::vector<int> devices = {0};  // CUDA's numbers
};

/// A metric that is sampled, as CUPTI describes it; texts are "" where it does not.
struct Sampled {
  std::string metric;
  std::string unit;
  std::string description;
};

/// Samples of one device, oldest first; times as CUPTI's records have them.
struct Samples {
  std::vector<uint64_t> starts, ends;
  std::vector<float> values;  // of each sample, in the order of the metrics

  std::size_t size() const noexcept { return starts.size(); }
  void clear() noexcept {
    starts.clear();
    ends.clear();
    values.clear();
  }
};

/// CUPTI's PM sampling of one device: the GPU writes its counters every so often into a buffer, no kernel waits for it.
/// One a device and process; CUPTI changes the configuration of none, so that another one is made for that.
///
/// One thread at a time.
class PmSampler {
 public:
  /// Throws NotAvailable; InvalidArgument for metrics that do not exist or fit, when all are asked for.
  PmSampler(const driver::Cupti& cupti, const Request& request, int device);
  ~PmSampler();
  PmSampler(const PmSampler&) = delete;
  PmSampler& operator=(const PmSampler&) = delete;

  /// Starts, or goes on. Where CUPTI refuses, as it once did after a stop (error 999, H100, CUPTI 13.0), the object is
  /// made anew once.
  void start();
  void stop();  // or stays so
  /// Stops, and gives the counters back; it cannot be started again.
  void close() noexcept;
  /// Appends the samples that the GPU has written since the last call, but for the first after a start, which is
  /// shorter than the others. False when some were lost, as the buffer was full.
  bool decode(Samples& into);

  int device() const noexcept { return device_; }
  const std::string& chip() const noexcept { return chip_; }
  const Choice& choice() const noexcept { return choice_; }
  /// The metrics, in the order of their values.
  const std::vector<Sampled>& sampled() const noexcept { return sampled_; }

 private:
  void enable();
  void disable() noexcept;
  void set_config();
  void initialize_data();
  void start_once();

  const driver::Cupti& cupti_;
  int device_;
  int64_t interval_ns_;
  std::string chip_;
  Bytes availability_;
  Choice choice_;
  std::vector<Sampled> sampled_;
  std::vector<const char*> names_;
  std::vector<double> row_;
  std::unique_ptr<Host> host_;  // evaluates
  void* object_ = nullptr;
  Bytes data_;
  bool running_ = false;
  bool skips_ = false;  // the next sample
};

/// Samples devices on a thread of its own, which alone calls CUPTI for it: CUPTI decodes on one thread at a time.
///
/// All but why_ended: one thread at a time.
class PmSampling {
 public:
  /// Throws as PmSampler does, or std::system_error.
  PmSampling(const driver::Cupti& cupti, const Request& request);
  /// Ends sampling.
  ~PmSampling();
  PmSampling(const PmSampling&) = delete;
  PmSampling& operator=(const PmSampling&) = delete;

  /// What was decoded since the last call, per device in the order of the request; it takes what `into` had.
  void take(std::vector<Samples>& into);
  /// Ends sampling for a moment, so that all that was sampled until now is decoded, and goes on; `last`: ends it.
  void finish_samples(bool last);
  /// How long the steps of it took.
  struct Times {
    int64_t start_ns = 0;                                // until all devices were sampled
    int64_t stop_ns = 0, decode_ns = 0, disable_ns = 0;  // of the last finish_samples
  };
  Times times();
  /// How often the buffer of a device was full, or the memory that samples wait in, since the last call.
  uint64_t take_overflows() noexcept { return overflows_.exchange(0, std::memory_order_relaxed); }
  /// CPU time that reading took while all was sampled, since the last call.
  int64_t take_cpu_time() noexcept { return cpu_ns_.exchange(0, std::memory_order_relaxed); }
  /// Why sampling has ended before its time; "" while it goes on.
  std::string why_ended();

  const std::vector<std::unique_ptr<PmSampler>>& samplers() const noexcept { return samplers_; }

 private:
  enum class Finish { No, GoOn, End };
  void run() noexcept;
  /// Reads what was sampled; why sampling ends, "" where it goes on.
  std::string read(Finish finish);
  void decode_all();
  void hand_over();

  std::vector<std::unique_ptr<PmSampler>> samplers_;
  std::vector<Samples> fresh_;             // the thread's
  std::chrono::nanoseconds most_rest_{0};  // the thread's: less where a buffer filled up
  std::mutex mutex_;                       // guards what follows; never held over a call into CUPTI
  std::condition_variable changed_;
  std::vector<Samples> decoded_;
  bool ends_ = false;
  bool is_over_ = false;  // nothing is sampled any more
  Finish finish_ = Finish::No;
  std::string why_ended_;
  Times times_;
  std::atomic<uint64_t> overflows_{0};
  std::atomic<int64_t> cpu_ns_{0};
  std::thread thread_;  // last: it uses what is above
};

}  // namespace gpuscope::counters
