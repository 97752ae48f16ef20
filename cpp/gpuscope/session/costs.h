// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::session {

/// What recording costs the program's threads, in ns.
struct Costs {
  double event_ns = 30;    // ours: an event in a thread's log, with its time
  double launch_ns = 800;  // CUPTI's: of a launch its two callbacks and the record of its kernel
  double copy_ns = 1200;   // CUPTI's: of a copy or fill likewise
  double call_ns = 60;     // CUPTI's: the two callbacks of another call
  bool is_measured = false;
  std::string why_not = "nothing was measured in this process yet";  // "" where it is
  int64_t took_ns = 0;                                               // to measure it
  int failures = 0;                                                  // so often it could not be
  std::chrono::nanoseconds limit = std::chrono::milliseconds(20);    // of a LaunchProbe's waits and launches
};

struct Overhead {
  int64_t own_ns;
  int64_t cupti_ns;
};

/// What a window with these counts cost.
Overhead overhead_of(const attribution::Counters& counters, const Costs& costs) noexcept;

/// The same for each event, in ns: a launch, a copy, another call, and a region with all that was gathered for it.
struct EventCosts {
  int64_t launch_ns;
  int64_t copy_ns;
  int64_t call_ns;
  int64_t region_ns;
};
EventCosts event_costs_of(const attribution::Counters& counters, const Costs& costs) noexcept;

/// What an event costs that is written to a log of this function's own, with its time: 100 us.
double measure_event() noexcept;

/// Launches empty kernels and copies of a few bytes on a stream of its own, with what CUPTI does for a recording and
/// without: the difference is CUPTI's cost, and that of our callbacks. One thread.
///
/// Only where the program has made a primary context already, and while nothing is captured in it. Waits for the GPU
/// for at most `limit` at a time: another program, or a kernel that never ends, may hold it. What is not ended then is
/// left behind, as to destroy it would wait too. Launches that take `limit` in all are given up as well.
class LaunchProbe {
 public:
  /// Throws NotAvailable where a launch cannot or should not be made, CudaError when the driver refuses.
  explicit LaunchProbe(const driver::Cuda& cuda, std::chrono::nanoseconds limit);
  ~LaunchProbe();
  LaunchProbe(const LaunchProbe&) = delete;
  LaunchProbe& operator=(const LaunchProbe&) = delete;

  /// ns of a launch, of a copy, and of a call that waits for nothing: medians of some batches.
  struct Times {
    double launch_ns;
    double copy_ns;
    double call_ns;
  };
  /// Throws NotAvailable where the GPU or the driver is held by others.
  Times measure();

 private:
  struct Work;

  std::unique_ptr<Work> work_;
  std::chrono::nanoseconds limit_;
};

}  // namespace gpuscope::session
