// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpuscope/counters/metrics.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::counters {

/// The requested sampling, for each device.
struct Request {
  std::vector<std::string> metrics;  // with their suffixes; empty: no sampling
  bool in_full = false;              // all or none; otherwise those that fit into one pass, in order
  int64_t interval_ns = 100'000;
  std::vector<int> devices = {0};  // CUDA's numbers
};

/// A sampled metric, as described by CUPTI. Missing texts are "".
struct Sampled {
  std::string metric;
  std::string unit;
  std::string description;
};

/// Samples of one device, oldest first. Times as in CUPTI's records.
struct Samples {
  std::vector<uint64_t> starts, ends;
  std::vector<float> values;  // of each sample, in the order of the metrics

  std::size_t size() const noexcept { return starts.size(); }
  void clear() noexcept {
    starts.clear();
    ends.clear();
    values.clear();
  }
  /// Reserves room, so that adding samples cannot fail half-way.
  void make_room(std::size_t more, std::size_t more_values);
};

/// Decoded samples that are not evaluated yet: their times, and their counts in an image.
struct Decoded {
  Bytes image;
  std::size_t first = 0;  // index in the image of the first time
  std::vector<uint64_t> starts, ends;

  std::size_t used() const noexcept { return first + starts.size(); }
};

/// CUPTI's PM sampling of one device: the GPU writes its counters into a buffer at intervals. Kernels do not wait for
/// it. One per device and process. CUPTI cannot change a configuration, so a change needs a new object.
///
/// One thread at a time. A second thread may evaluate meanwhile.
class PmSampler {
 public:
  /// Throws NotAvailable. InvalidArgument if all metrics are required, and some do not exist or fit.
  PmSampler(const driver::Cupti& cupti, const Request& request, int device);
  ~PmSampler();
  PmSampler(const PmSampler&) = delete;
  PmSampler& operator=(const PmSampler&) = delete;

  /// Starts or continues. After a loss, the object is recreated with twice the interval, up to 1 ms. If CUPTI refuses
  /// to start, the object is recreated once: this happened after a stop (error 999, H100, CUPTI 13.0).
  void start();
  void stop();  // or stays so
  /// Stops and releases the counters. It cannot be restarted.
  void close() noexcept;
  /// An image without samples.
  void clear(Decoded& image);
  /// Appends the samples since the last call, without the first sample after a start, which is shorter. After a start,
  /// `into` must be a cleared image. False if samples were lost: then nothing is decoded until the next start.
  ///
  /// CUPTI also decodes samples written during the call. If an image becomes full, CUPTI loses its position and returns
  /// samples from the beginning from then on (H100, CUPTI 13.0). So a full image counts as a loss. Samples with a gap
  /// between them count as a loss too, and are dropped.
  bool decode(Decoded& into);
  /// The capacity of an image.
  static std::size_t samples_of_image() noexcept;
  /// Appends the samples.
  void evaluate(const Decoded& decoded, Samples& into);

  int device() const noexcept { return device_; }
  int64_t interval_ns() const noexcept { return interval_ns_; }
  const std::string& chip() const noexcept { return chip_; }
  const Choice& choice() const noexcept { return choice_; }
  /// The metrics, in the order of their values.
  const std::vector<Sampled>& sampled() const noexcept { return sampled_; }

 private:
  void enable();
  void disable() noexcept;
  void set_config();
  void start_once();
  bool follows(uint64_t start) const noexcept;

  const driver::Cupti& cupti_;
  int device_;
  int64_t interval_ns_;
  std::string chip_;
  Bytes availability_;
  Choice choice_;
  std::vector<Sampled> sampled_;
  std::vector<const char*> names_;
  std::vector<double> row_;     // for evaluate
  std::unique_ptr<Host> host_;  // likewise
  void* object_ = nullptr;
  std::size_t image_bytes_ = 0;
  bool running_ = false;
  bool has_lost_ = false;  // since the last start
  bool skips_ = false;     // the next sample
  uint64_t last_end_ = 0;  // 0: none yet
};

/// Reads the samples of one device on two threads: one has CUPTI decode, the other evaluates. Each takes 30 to 60 us
/// per sample (H100, 24 metrics), so a single thread was too slow for 100 us.
///
/// ask, wait and why_ended: any thread. The others: one thread at a time.
class PmReader {
 public:
  enum class Change { None, Start, Stop, End };
  /// The duration of the latest of each.
  struct Times {
    int64_t start_ns = 0, stop_ns = 0, decode_ns = 0, disable_ns = 0;
  };

  /// Throws NotAvailable if no thread can be started.
  explicit PmReader(std::unique_ptr<PmSampler> sampler);
  /// Ends sampling.
  ~PmReader();
  PmReader(const PmReader&) = delete;
  PmReader& operator=(const PmReader&) = delete;

  /// Moves out the samples evaluated since the last call. Reuses the memory of `into`.
  void take(Samples& into);
  /// Requests a start, a stop (all samples until then are read), or the end. Does not wait.
  void ask(Change change);
  /// Waits for the requested change.
  void wait();
  Times times();
  uint64_t take_overflows() noexcept { return overflows_.exchange(0, std::memory_order_relaxed); }
  int64_t take_cpu_time() noexcept { return cpu_ns_.exchange(0, std::memory_order_relaxed); }
  /// The current sampling interval.
  int64_t interval_ns() const noexcept { return interval_ns_.load(std::memory_order_relaxed); }
  std::string why_ended();

  const PmSampler& sampler() const noexcept { return *sampler_; }

 private:
  void run() noexcept;
  /// Reads samples and performs the change. Returns why sampling ends, "" if it continues.
  std::string read(Change change);
  void decode(bool is_last);
  void evaluate() noexcept;
  void add(const Samples& samples);
  /// Provides an image without samples. Waits if the other thread has all images.
  void take_image();
  /// Passes the decoded samples to the evaluating thread.
  void hand_over();
  bool has_room() const noexcept;

  const std::unique_ptr<PmSampler> sampler_;
  std::atomic<int64_t> interval_ns_;
  // Only for the decoding thread: the image being filled, empty at first, and the start of the last decoding.
  Decoded image_;
  std::chrono::steady_clock::time_point decode_began_;
  std::mutex mutex_;  // guards the members below; never held during a call of CUPTI
  std::condition_variable changed_;
  std::vector<Decoded> free_;
  std::deque<Decoded> decoded_;  // to be evaluated
  std::size_t images_ = 0;       // in total, free or not
  bool evaluates_ = false;       // an image is being evaluated
  bool has_decoded_all_ = false;
  Samples samples_;
  std::string why_not_evaluated_;
  bool ends_ = false;
  bool is_active_ = false;
  bool is_over_ = false;  // sampling has ended
  Change asked_ = Change::None;
  std::string why_ended_;
  Times times_;
  std::atomic<uint64_t> overflows_{0};
  std::atomic<int64_t> cpu_ns_{0};
  std::thread thread_;  // last: it uses the members above
};

/// Samples devices, each with a `PmReader`.
///
/// begin and why_ended: any thread. The others: one thread at a time.
class PmSampling {
 public:
  /// Throws like PmSampler, or NotAvailable. Does not sample yet.
  PmSampling(const driver::Cupti& cupti, const Request& request);

  /// Begins or continues sampling.
  void begin();
  /// Requests a stop, with all samples until then read. `last`: ends sampling. Does not wait.
  void begin_finish(bool last);
  void wait_finished();
  /// Moves out the samples since the last call, per device in the order of the request. Reuses the memory of `into`.
  void take(std::vector<Samples>& into);
  /// The durations of the steps: the longest of all devices, and the creation of all.
  struct Times {
    int64_t make_ns = 0;
    PmReader::Times steps;
  };
  Times times();
  /// The number of losses since the last call: reported by `decode`, or because the waiting memory was full.
  uint64_t take_overflows() noexcept;
  /// CPU time of reading during sampling, since the last call.
  int64_t take_cpu_time() noexcept;
  /// The current sampling interval, the longest of all devices.
  int64_t interval_ns() const noexcept;
  /// Why sampling of a device ended early. "" while all continue.
  std::string why_ended();

  const std::vector<std::unique_ptr<PmReader>>& readers() const noexcept { return readers_; }

 private:
  std::vector<std::unique_ptr<PmReader>> readers_;
  int64_t make_ns_ = 0;
};

}  // namespace gpuscope::counters
