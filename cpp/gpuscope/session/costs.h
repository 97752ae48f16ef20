// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::session {

/// The cost of recording to the program's threads, in ns.
struct Costs {
  double event_ns = 30;    // ours: an event in a thread's log, with its time
  double launch_ns = 800;  // CUPTI's: the two callbacks of a launch and its kernel's record
  double copy_ns = 1200;   // CUPTI's: the same for a copy or fill
  double call_ns = 60;     // CUPTI's: the two callbacks of another call
  bool is_measured = false;
  std::string why_not = "nothing was measured in this process yet";  // "" where it is
  int64_t took_ns = 0;                                               // to measure it
  int failures = 0;                                                  // number of failed measurements
  std::chrono::nanoseconds limit = std::chrono::milliseconds(20);    // for a LaunchProbe's waits and launches
};

struct Overhead {
  int64_t own_ns;
  int64_t cupti_ns;
};

/// The cost of a window with these counts.
Overhead overhead_of(const attribution::Counters& counters, const Costs& costs) noexcept;

/// The cost per event, in ns: a launch, a copy, another call, and a region with all its data.
struct EventCosts {
  int64_t launch_ns;
  int64_t copy_ns;
  int64_t call_ns;
  int64_t region_ns;
};
EventCosts event_costs_of(const attribution::Counters& counters, const Costs& costs) noexcept;

/// The cost of an event with its time, measured in a separate log. Takes 100 us.
double measure_event() noexcept;

/// Launches empty kernels and small copies on a separate stream, with and without CUPTI's work for a recording. The
/// difference is the cost of CUPTI and our callbacks. One thread.
///
/// Only if the program already has a primary context, and nothing is captured in it. Another program, or an endless
/// kernel, may occupy the GPU: each wait ends after `limit`, and unfinished objects are leaked, as destroying them
/// would wait too. Launches that take `limit` in total also end the measurement.
class LaunchProbe {
 public:
  /// Throws NotAvailable if a launch is impossible or unsafe, CudaError if the driver refuses.
  explicit LaunchProbe(const driver::Cuda& cuda, std::chrono::nanoseconds limit);
  ~LaunchProbe();
  LaunchProbe(const LaunchProbe&) = delete;
  LaunchProbe& operator=(const LaunchProbe&) = delete;

  /// ns of a launch, of a copy, and of a call without a wait: medians of batches.
  struct Times {
    double launch_ns;
    double copy_ns;
    double call_ns;
  };
  /// Throws NotAvailable if the GPU or the driver is busy.
  Times measure();

 private:
  struct Work;

  std::unique_ptr<Work> work_;
  std::chrono::nanoseconds limit_;
};

}  // namespace gpuscope::session
