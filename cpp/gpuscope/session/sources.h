// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/attribution/decoder.h"
#include "gpuscope/counters/pm_sampling.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::session {

/// The facts about a recorded window, for its audit.
struct Facts {
  attribution::Counters counters;
  attribution::GpuRecords::ClockKernels clock_kernels;
  std::string notes;                                      // a line each
  std::vector<std::pair<std::string, std::string>> rows;  // keys and texts of info rows

  void add(std::string key, std::string text) { rows.emplace_back(std::move(key), std::move(text)); }
  void add(std::string key, std::integral auto number) { add(std::move(key), std::to_string(number)); }
};

/// What a recording reads in addition to CUPTI's buffers and the threads' event logs.
///
/// start and begin: any thread, one at a time. The others: the decode thread.
class Source {
 public:
  Source() = default;
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  /// Before a window opens. Waits until reading has begun.
  virtual void start() {}
  /// The window is open.
  virtual void begin() {}
  /// Passes on what was read since the last call. Before the records of the same time are decoded.
  virtual void take(attribution::Decoder&) {}
  /// The window has ended: later readings belong to no window. Does not wait. `last`: no window follows.
  virtual void end(bool last) { static_cast<void>(last); }
  /// After the window's GPU work: waits for the readings until the end.
  virtual void finish() {}
  /// Another client needs CUPTI from now on.
  virtual void release_cupti() {}
  /// Adds facts about the window since the last call.
  virtual void facts(Facts& facts) = 0;
};

/// Samples hardware counters. Throws InvalidArgument for metrics that the GPU does not have. If sampling is not
/// available, only the reason is recorded.
std::unique_ptr<Source> sample_counters(const driver::Cuda& cuda, const driver::Cupti& cupti,
                                        counters::Request request);
/// Samples the state of GPUs. If no thread can be started, only the reason is recorded.
std::unique_ptr<Source> sample_devices(const driver::Nvml& nvml, const driver::Cuda& cuda,
                                       std::chrono::nanoseconds interval);
/// Reads the system's clocks once a second.
std::unique_ptr<Source> clock_anchors();
/// Samples of Python, which the decoder reads with the event logs.
std::unique_ptr<Source> python_samples();

}  // namespace gpuscope::session
