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
  /// Has room for so many more, and that many values in all, so that adding them does not fail half way.
  void make_room(std::size_t more, std::size_t more_values);
};

/// What CUPTI has decoded and nobody has evaluated yet: the times of samples, and their counts in an image.
struct Decoded {
  Bytes image;
  std::size_t first = 0;  // of the image, that has the first of these times
  std::vector<uint64_t> starts, ends;

  std::size_t used() const noexcept { return first + starts.size(); }
};

/// CUPTI's PM sampling of one device: the GPU writes its counters every so often into a buffer, no kernel waits for it.
/// One a device and process; CUPTI changes the configuration of none, so that another one is made for that.
///
/// One thread at a time, and beside it one that evaluates.
class PmSampler {
 public:
  /// Throws NotAvailable; InvalidArgument for metrics that do not exist or fit, when all are asked for.
  PmSampler(const driver::Cupti& cupti, const Request& request, int device);
  ~PmSampler();
  PmSampler(const PmSampler&) = delete;
  PmSampler& operator=(const PmSampler&) = delete;

  /// Starts or continues. After a loss the object is made anew with twice the interval, up to 1 ms. It is also made
  /// anew once if CUPTI refuses to start, as it did after a stop (error 999, H100, CUPTI 13.0).
  void start();
  void stop();  // or stays so
  /// Stops, and gives the counters back; it cannot be started again.
  void close() noexcept;
  /// An image without samples.
  void clear(Decoded& image);
  /// Appends what the GPU has written since the last call, without the first sample after a start, which is shorter
  /// than the others; that one takes an image that was cleared. False where some was lost: nothing is decoded any more
  /// until the next start.
  ///
  /// CUPTI also decodes samples written during the call. If an image is full before the end, CUPTI loses its place and
  /// hands out samples of the beginning from then on (H100, CUPTI 13.0). So a full image counts as a loss. Samples that
  /// do not follow upon one another are a loss, too, and are not taken.
  bool decode(Decoded& into);
  /// That an image has room for.
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
  std::vector<double> row_;     // of whoever evaluates
  std::unique_ptr<Host> host_;  // likewise
  void* object_ = nullptr;
  std::size_t image_bytes_ = 0;
  bool running_ = false;
  bool has_lost_ = false;  // since the last start
  bool skips_ = false;     // the next sample
  uint64_t last_end_ = 0;  // 0: none yet
};

/// Reads the samples of one device on two threads of its own. One has CUPTI decode; the other evaluates: each takes 30
/// to 60 us a sample (H100, 24 metrics), and one thread for both was too slow for 100 us.
///
/// Any thread for ask, wait and why_ended; one at a time for the others.
class PmReader {
 public:
  enum class Change { None, Start, Stop, End };
  /// How long the last of each took.
  struct Times {
    int64_t start_ns = 0, stop_ns = 0, decode_ns = 0, disable_ns = 0;
  };

  /// Throws NotAvailable where there can be no thread.
  explicit PmReader(std::unique_ptr<PmSampler> sampler);
  /// Ends sampling.
  ~PmReader();
  PmReader(const PmReader&) = delete;
  PmReader& operator=(const PmReader&) = delete;

  /// What was evaluated since the last call; it takes what `into` had.
  void take(Samples& into);
  /// Has sampling start, stop, with all that was sampled until then read, or end. Does not wait for it.
  void ask(Change change);
  /// Waits for what was asked.
  void wait();
  Times times();
  uint64_t take_overflows() noexcept { return overflows_.exchange(0, std::memory_order_relaxed); }
  int64_t take_cpu_time() noexcept { return cpu_ns_.exchange(0, std::memory_order_relaxed); }
  /// How long samples are by now.
  int64_t interval_ns() const noexcept { return interval_ns_.load(std::memory_order_relaxed); }
  std::string why_ended();

  const PmSampler& sampler() const noexcept { return *sampler_; }

 private:
  void run() noexcept;
  /// Reads what was sampled, and does what is asked; why sampling ends, "" where nothing ends it.
  std::string read(Change change);
  void decode(bool is_last);
  void evaluate() noexcept;
  void add(const Samples& samples);
  /// Has an image without samples; waits for one where the other thread has them all.
  void take_image();
  /// Has what was decoded evaluated.
  void hand_over();
  bool has_room() const noexcept;

  const std::unique_ptr<PmSampler> sampler_;
  std::atomic<int64_t> interval_ns_;
  // Of the thread that decodes alone: what it decodes into, empty at first, and when the last decoding began.
  Decoded image_;
  std::chrono::steady_clock::time_point decode_began_;
  std::mutex mutex_;  // guards what follows; never held over a call into CUPTI
  std::condition_variable changed_;
  std::vector<Decoded> free_;
  std::deque<Decoded> decoded_;  // to be evaluated
  std::size_t images_ = 0;       // in all, free or not
  bool evaluates_ = false;       // one of them right now
  bool has_decoded_all_ = false;
  Samples samples_;
  std::string why_not_evaluated_;
  bool ends_ = false;
  bool is_active_ = false;
  bool is_over_ = false;  // nothing is sampled any more
  Change asked_ = Change::None;
  std::string why_ended_;
  Times times_;
  std::atomic<uint64_t> overflows_{0};
  std::atomic<int64_t> cpu_ns_{0};
  std::thread thread_;  // last: it uses what is above
};

/// Samples devices, each with a `PmReader`.
///
/// Any thread for begin and why_ended; one at a time for the others.
class PmSampling {
 public:
  /// Throws as PmSampler does, or NotAvailable. Nothing is sampled yet.
  PmSampling(const driver::Cupti& cupti, const Request& request);

  /// Begins sampling, or goes on.
  void begin();
  /// Has sampling stop, and all that was sampled until then read; `last`: ends it. Does not wait for it.
  void begin_finish(bool last);
  void wait_finished();
  /// What was decoded since the last call, per device in the order of the request; it takes what `into` had.
  void take(std::vector<Samples>& into);
  /// How long the steps took: the longest of a device, and making them all.
  struct Times {
    int64_t make_ns = 0;
    PmReader::Times steps;
  };
  Times times();
  /// How often samples were lost since the last call: `decode` says so, or the memory that they wait in was full.
  uint64_t take_overflows() noexcept;
  /// CPU time that reading took while all was sampled, since the last call.
  int64_t take_cpu_time() noexcept;
  /// How long samples are by now, the longest of a device.
  int64_t interval_ns() const noexcept;
  /// Why sampling of a device has ended before its time; "" while all go on.
  std::string why_ended();

  const std::vector<std::unique_ptr<PmReader>>& readers() const noexcept { return readers_; }

 private:
  std::vector<std::unique_ptr<PmReader>> readers_;
  int64_t make_ns_ = 0;
};

}  // namespace gpuscope::counters
