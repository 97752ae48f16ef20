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

inline constexpr int64_t kUnknown = -1;  // what the system does not say

/// What the system says of a thread, a process or the control group that the program is in, for a while.
struct HostUsage {
  enum class Of : uint8_t { Thread, Process, ControlGroup };

  uint64_t begin_ticks = 0;
  uint64_t end_ticks = 0;
  int64_t cpu_ns = kUnknown;
  int64_t wait_ns = kUnknown;  // for a CPU, while it could run
  int64_t read_bytes = kUnknown;
  int64_t throttled_ns = kUnknown;
  int64_t throttled_periods = kUnknown;
  int64_t io_wait_ns = kUnknown;
  uint64_t thread = 0;     // a number that no other thread has or had
  uint32_t system_id = 0;  // of the thread or the process
  Of of = Of::Thread;
};

/// Those on their way from the sampling thread to the decoding one.
class HostLog {
 public:
  static HostLog& process() {
    static auto* log = new HostLog;  // leaked: both threads may run to the last moment
    return *log;
  }
  void begin() { rows_.begin(); }
  /// What finds no room is gone: it says less of the host, and nothing wrong.
  void append(const HostUsage& usage) noexcept { rows_.append(usage); }
  template <class F>
  void read(F&& take) {
    rows_.read(take);
  }

 private:
  RowRing<HostUsage, std::size_t{1} << 13>
      rows_;  // 0.7 MiB: 200 processes and 40 threads that wait, for 100 ms and more
};

/// A file of /proc or /sys that is read again and again.
class KeptFile {
 public:
  KeptFile() = default;
  explicit KeptFile(const std::string& path) noexcept;
  KeptFile(KeptFile&& other) noexcept;
  KeptFile& operator=(KeptFile&& other) noexcept;
  ~KeptFile();

  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// What it says now, in `room`; empty where it cannot be read.
  std::string_view read(char* room, std::size_t bytes) const noexcept;

 private:
  int descriptor_ = -1;
};

/// The number behind a word of a text; none where it is not there.
std::optional<int64_t> number_after(std::string_view text, std::string_view word);

/// The folder of a control group that this process is in, or of one around it: a limit may be that of any.
struct ControlGroup {
  std::string folder;
  bool is_new = false;  // of the second version of control groups
};

/// Those of a controller, as "cpu", from the innermost on.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& proc,
                                         const std::string& groups);

/// How long a thread or a process' first thread has waited for a CPU, of its `schedstat`; none where the system does
/// not count that.
std::optional<int64_t> run_queue_wait_ns(const KeptFile& schedstat) noexcept;

/// Why waits of this process' threads cannot be read; "" where they can. Of the thread that asks.
std::string why_no_thread_waits(const std::string& proc = "/proc");

/// Reads what the control groups of this process and its child processes use. One thread.
class HostReader {
 public:
  explicit HostReader(std::string proc = "/proc", const std::string& groups = "/sys/fs/cgroup");

  /// Why the control groups' limits on CPU time, and waits for storage, cannot be read; "" where they can.
  const std::string& why_no_throttling() const noexcept { return why_no_throttling_; }
  const std::string& why_no_io_wait() const noexcept { return why_no_io_wait_; }

  /// Appends what was used since the last time, which the first time there is not.
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
  /// Of one group and those around it.
  struct Throttling {
    int64_t ns = 0;
    int64_t periods = 0;
  };

  void find_groups(const std::string& groups);
  /// Whether all that there are were looked at, or the rest is for the next time.
  bool find_processes(uint64_t now_ticks);
  Process& add_process(uint32_t id);
  bool read_process(uint32_t id, Process& process, uint64_t now_ticks, std::vector<HostUsage>& into);
  Throttling throttling() const;
  std::optional<int64_t> io_wait_ns() const;

  std::string proc_;
  std::vector<KeptFile> cpu_stats_;
  bool is_in_ns_ = false;  // of the first version of control groups
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
