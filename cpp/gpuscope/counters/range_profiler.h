// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gpuscope/counters/metrics.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::counters {

/// CUPTI's range profiler of one context: exact metric values over a range of work, which the caller repeats until all
/// are collected. One per context at a time, and not together with PM sampling of the device.
///
/// One thread at a time, with the context current. The context's work must be synchronized before begin_pass and
/// end_pass.
class RangeProfiler {
 public:
  /// Throws NotAvailable. InvalidArgument for metrics that this GPU does not have or cannot collect together.
  RangeProfiler(const driver::Cupti& cupti, driver::CuContext context, int device, std::vector<std::string> metrics);
  ~RangeProfiler();
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;

  void begin_pass();
  /// Whether the work must be repeated.
  bool end_pass();
  /// After the last pass: the values, in the order of the metrics.
  std::vector<double> read();

  std::size_t passes() const noexcept { return passes_; }
  const std::string& chip() const noexcept { return chip_; }

 private:
  void release() noexcept;
  void set_up();

  const driver::Cupti& cupti_;
  std::string chip_;
  std::vector<std::string> metrics_;
  std::vector<const char*> names_;
  std::unique_ptr<Host> host_;
  std::size_t passes_ = 0;
  void* object_ = nullptr;
  Bytes image_;
  Bytes data_;
  bool in_range_ = false;
  bool running_ = false;
};

}  // namespace gpuscope::counters
