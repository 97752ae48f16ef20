// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "gpuscope/base/row_ring.h"

namespace gpuscope::base {

inline constexpr int64_t kUnknown = -1;  // not available from the system

/// The usage of a thread, a process or the program's control group during an interval, from the system.
struct HostUsage {
  enum class Of : uint8_t { Thread, Process, ControlGroup };

  uint64_t begin_ticks = 0;
  uint64_t end_ticks = 0;
  int64_t cpu_ns = kUnknown;
  int64_t wait_ns = kUnknown;  // runnable, waiting for a CPU
  int64_t read_bytes = kUnknown;
  int64_t throttled_ns = kUnknown;
  int64_t throttled_periods = kUnknown;
  int64_t io_wait_ns = kUnknown;
  uint64_t thread = 0;     // unique, never reused
  uint32_t system_id = 0;  // of the thread or the process
  Of of = Of::Thread;
};

/// Usage rows on their way from the sampling thread to the decoding one.
class HostLog {
 public:
  static HostLog& process() {
    static auto* log = new HostLog;  // leaked: both threads may run until process exit
    return *log;
  }
  void begin() { rows_.begin(); }
  /// Without room, the row is dropped.
  void append(const HostUsage& usage) noexcept { rows_.append(usage); }
  template <class F>
  void read(F&& take) {
    rows_.read(take);
  }

 private:
  RowRing<HostUsage, std::size_t{1} << 13> rows_;  // 0.7 MiB: 200 processes and 40 waiting threads for over 100 ms
};

/// A file of /proc or /sys that stays open and is read repeatedly.
class KeptFile {
 public:
  KeptFile() = default;
  explicit KeptFile(const std::string& path) noexcept;
  KeptFile(KeptFile&& other) noexcept;
  KeptFile& operator=(KeptFile&& other) noexcept;
  ~KeptFile();

  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// Its current content, in `room`. Empty if it cannot be read.
  std::string_view read(char* room, std::size_t bytes) const noexcept;

 private:
  int descriptor_ = -1;
};

/// The number after a word of a text. None if missing.
std::optional<int64_t> number_after(std::string_view text, std::string_view word);

/// The folder of a control group of this process, or of a group around it: limits apply at every level.
struct ControlGroup {
  std::string folder;
  bool is_new = false;  // version 2 of control groups
};

/// The groups of a controller such as "cpu", innermost first.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& proc,
                                         const std::string& groups);

/// The total wait for a CPU of a thread, or of a process's first thread, from its `schedstat`. None if the system does
/// not count it.
std::optional<int64_t> run_queue_wait_ns(const KeptFile& schedstat) noexcept;

/// Why this process's threads have no readable waits. "" if they do. Reads the calling thread's.
std::string why_no_thread_waits(const std::string& proc = "/proc");

/// Reads the usage of this process's control groups and child processes. One thread.
class HostReader {
 public:
  explicit HostReader(std::string proc = "/proc", const std::string& groups = "/sys/fs/cgroup");

  /// Why CPU time limits of the control groups, and waits for storage, cannot be read. "" if they can.
  const std::string& why_no_throttling() const noexcept { return why_no_throttling_; }
  const std::string& why_no_io_wait() const noexcept { return why_no_io_wait_; }

  /// Appends the usage since the last call. The first call appends nothing.
  void read(uint64_t now_ticks, std::vector<HostUsage>& into);

 private:
  struct Process {
    KeptFile schedstat;
    KeptFile io;
    uint64_t ticks = 0;
    int64_t cpu_ns = 0;
    std::optional<int64_t> wait_ns;
    std::optional<int64_t> read_bytes;
  };
  /// Of one group and the groups around it.
  struct Throttling {
    int64_t ns = 0;
    int64_t periods = 0;
  };

  void find_groups(const std::string& groups);
  /// Whether all processes were examined. False: the rest is for the next round.
  bool find_processes(uint64_t now_ticks);
  Process& add_process(uint32_t id);
  bool read_process(uint32_t id, Process& process, uint64_t now_ticks, std::vector<HostUsage>& into);
  Throttling throttling() const;
  std::optional<int64_t> io_wait_ns() const;

  std::string proc_;
  std::vector<KeptFile> cpu_stats_;
  bool is_in_ns_ = false;  // version 1 of control groups
  KeptFile io_pressure_;
  std::string why_no_throttling_;
  std::string why_no_io_wait_;
  uint64_t ticks_ = 0;
  Throttling throttling_;
  std::optional<int64_t> io_wait_ns_;
  std::unordered_map<uint32_t, Process> processes_;
  std::unordered_set<uint32_t> strangers_;  // processes that are not our children
  uint32_t rounds_ = 0;
  uint64_t first_ticks_ = 0;
  bool knows_all_ = false;
};

}  // namespace gpuscope::base
