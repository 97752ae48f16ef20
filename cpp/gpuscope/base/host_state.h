// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/base/host_usage.h"

namespace gpuscope::base {

// X(type, name). The name ends with the unit: seconds, bytes, or a count. Counters grow from the start of the machine,
// the process or the control group. The difference of two readings is the usage in between.
#define GPUSCOPE_HOST_FIGURES(X)          \
  X(uint64_t, machine_cpus)               \
  X(double, machine_cpu_s)                \
  X(uint64_t, machine_memory_used_bytes)  \
  X(uint64_t, machine_memory_total_bytes) \
  X(double, process_wait_s)               \
  X(uint64_t, process_read_bytes)         \
  X(uint64_t, process_written_bytes)      \
  X(uint64_t, process_major_faults)       \
  X(uint64_t, process_preemptions)        \
  X(double, cpu_limit_cpus)               \
  X(double, cpu_throttled_s)              \
  X(uint64_t, cpu_throttled_periods)      \
  X(uint64_t, memory_limit_bytes)         \
  X(uint64_t, memory_charged_bytes)       \
  X(double, cpu_pressure_s)               \
  X(double, memory_pressure_s)            \
  X(double, memory_stalled_s)             \
  X(double, io_pressure_s)                \
  X(double, io_stalled_s)

/// The machine, this process and its control group at one moment. `why` gives the reason for each missing figure.
struct HostState {
#define GPUSCOPE_HOST_MEMBER(type, figure) std::optional<type> figure;
  GPUSCOPE_HOST_FIGURES(GPUSCOPE_HOST_MEMBER)
#undef GPUSCOPE_HOST_MEMBER
  std::map<std::string, std::string> why;
};

/// Reads the state repeatedly. One thread.
class HostStateReader {
 public:
  explicit HostStateReader(std::string proc = "/proc", const std::string& groups = "/sys/fs/cgroup");

  HostState read();

 private:
  void read_machine(HostState& state) const;
  void read_process(HostState& state);
  void read_cpu_limit(HostState& state) const;
  void read_memory_limit(HostState& state) const;
  void read_pressure(HostState& state) const;
  std::optional<double> thread_waits_s();

  std::string proc_;
  std::vector<ControlGroup> cpu_groups_;
  std::vector<ControlGroup> memory_groups_;
  std::unordered_map<uint32_t, int64_t> waits_ns_;  // of the live threads
  int64_t waited_ns_ = 0;                           // of all threads so far
};

}  // namespace gpuscope::base
