// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/host_state.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <utility>

#include "gpuscope/base/file.h"

namespace gpuscope::base {
namespace {

constexpr std::size_t kTextBytes = 8192;          // the needed words are at the beginning
constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // version 1 of control groups writes 2^63 less a page for no limit

/// The beginning of a file. Empty if it cannot be read.
class FileText {
 public:
  explicit FileText(const std::string& path) : text_(KeptFile(path).read(room_.data(), room_.size())) {}
  FileText(const FileText&) = delete;
  FileText& operator=(const FileText&) = delete;
  std::string_view operator*() const noexcept { return text_; }

 private:
  std::array<char, kTextBytes> room_;
  std::string_view text_;
};

std::vector<int64_t> numbers_of(std::string_view text) {
  std::vector<int64_t> numbers;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{}) {
      return numbers;
    }
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
}

template <class T>
void set(HostState& state, const char* name, std::optional<T>& figure, std::optional<T> value, const std::string& why) {
  figure = value;
  if (!value) {
    state.why[name] = why;
  }
}

std::optional<uint64_t> positive(std::optional<int64_t> number, uint64_t unit = 1) {
  return number && *number >= 0 ? std::optional(static_cast<uint64_t>(*number) * unit) : std::nullopt;
}

/// The total of a line "some avg10=0.00 avg60=0.00 avg300=0.00 total=123", in seconds.
std::optional<double> pressure_s(std::string_view text, std::string_view kind) {
  const std::size_t line = text.find(kind);
  const auto total_us = line == std::string_view::npos ? std::nullopt : number_after(text.substr(line), "total=");
  return total_us ? std::optional(1e-6 * static_cast<double>(*total_us)) : std::nullopt;
}

std::optional<double> cpu_limit_of(const ControlGroup& group) {
  int64_t quota = -1;
  int64_t period = 0;
  if (group.is_new) {
    const FileText text(group.folder + "/cpu.max");  // "max 100000" or "150000 100000"
    const std::vector<int64_t> numbers = numbers_of(*text);
    if (numbers.size() == 2) {
      quota = numbers[0];
      period = numbers[1];
    }
  } else {
    const std::vector<int64_t> quotas = numbers_of(*FileText(group.folder + "/cpu.cfs_quota_us"));
    const std::vector<int64_t> periods = numbers_of(*FileText(group.folder + "/cpu.cfs_period_us"));
    quota = quotas.empty() ? -1 : quotas[0];
    period = periods.empty() ? 0 : periods[0];
  }
  const bool is_limited = quota > 0 && period > 0;
  return is_limited ? std::optional(static_cast<double>(quota) / static_cast<double>(period)) : std::nullopt;
}

}  // namespace

HostStateReader::HostStateReader(std::string proc, const std::string& groups)
    : proc_(std::move(proc)),
      cpu_groups_(control_groups("cpu", proc_, groups)),
      memory_groups_(control_groups("memory", proc_, groups)) {}

HostState HostStateReader::read() {
  HostState state;
  read_machine(state);
  read_process(state);
  read_cpu_limit(state);
  read_memory_limit(state);
  read_pressure(state);
  return state;
}

void HostStateReader::read_machine(HostState& state) const {
  state.machine_cpus = static_cast<uint64_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  // "cpu  user nice system idle iowait irq softirq steal ...", in ticks: proc(5).
  const FileText stat(proc_ + "/stat");
  const std::vector<int64_t> ticks =
      (*stat).starts_with("cpu ") ? numbers_of((*stat).substr(4)) : std::vector<int64_t>();
  std::optional<double> busy_s;
  if (ticks.size() >= 8) {
    const int64_t busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
    busy_s = static_cast<double>(busy) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  set(state, "machine_cpu_s", state.machine_cpu_s, busy_s, proc_ + "/stat cannot be read");
  constexpr uint64_t kKib = 1024;
  const FileText memory(proc_ + "/meminfo");
  const auto total = positive(number_after(*memory, "MemTotal:"), kKib);
  const auto available = positive(number_after(*memory, "MemAvailable:"), kKib);
  const bool is_known = total && available && *available <= *total;
  const std::string why = proc_ + "/meminfo does not tell";
  set(state, "machine_memory_total_bytes", state.machine_memory_total_bytes, total, why);
  set(state, "machine_memory_used_bytes", state.machine_memory_used_bytes,
      is_known ? std::optional(*total - *available) : std::nullopt, why);
}

void HostStateReader::read_process(HostState& state) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.process_major_faults = static_cast<uint64_t>(usage.ru_majflt);
  state.process_preemptions = static_cast<uint64_t>(usage.ru_nivcsw);
  const FileText io(proc_ + "/self/io");
  const std::string why = proc_ + "/self/io cannot be read";
  set(state, "process_read_bytes", state.process_read_bytes, positive(number_after(*io, "\nread_bytes: ")), why);
  set(state, "process_written_bytes", state.process_written_bytes, positive(number_after(*io, "\nwrite_bytes: ")), why);
  set(state, "process_wait_s", state.process_wait_s, thread_waits_s(), why_no_thread_waits(proc_));
}

std::optional<double> HostStateReader::thread_waits_s() {
  const std::string folder = proc_ + "/self/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> listed(opendir(folder.c_str()), closedir);
  std::unordered_map<uint32_t, int64_t> waits_ns;
  for (const dirent* entry = nullptr; listed && (entry = readdir(listed.get())) != nullptr;) {
    const std::vector<int64_t> number = numbers_of(entry->d_name);
    const auto wait_ns =
        number.empty() ? std::nullopt : run_queue_wait_ns(KeptFile(folder + "/" + entry->d_name + "/schedstat"));
    if (wait_ns) {
      const auto thread = static_cast<uint32_t>(number[0]);
      const auto before = waits_ns_.find(thread);
      const int64_t before_ns = before == waits_ns_.end() ? 0 : before->second;
      waited_ns_ += *wait_ns - (before_ns <= *wait_ns ? before_ns : 0);  // otherwise another thread has the number
      waits_ns[thread] = *wait_ns;
    }
  }
  waits_ns_ = std::move(waits_ns);
  return waits_ns_.empty() ? std::nullopt : std::optional(1e-9 * static_cast<double>(waited_ns_));
}

void HostStateReader::read_cpu_limit(HostState& state) const {
  std::optional<double> least;
  int64_t throttled_ns = 0;
  int64_t periods = 0;
  bool is_counted = false;
  for (const ControlGroup& group : cpu_groups_) {
    const std::optional<double> limit = cpu_limit_of(group);
    if (limit && (!least || *limit < *least)) {
      least = limit;
    }
    const FileText stat(group.folder + "/cpu.stat");
    if (const auto count = number_after(*stat, "nr_throttled ")) {
      is_counted = true;
      periods += *count;
      throttled_ns += group.is_new ? number_after(*stat, "throttled_usec ").value_or(0) * 1000
                                   : number_after(*stat, "throttled_time ").value_or(0);
    }
  }
  set(state, "cpu_limit_cpus", state.cpu_limit_cpus, least, "no control group limits CPU time");
  const std::string why = "no control group counts throttling";
  set(state, "cpu_throttled_s", state.cpu_throttled_s,
      is_counted ? std::optional(1e-9 * static_cast<double>(throttled_ns)) : std::nullopt, why);
  set(state, "cpu_throttled_periods", state.cpu_throttled_periods, is_counted ? positive(periods) : std::nullopt, why);
}

void HostStateReader::read_memory_limit(HostState& state) const {
  std::optional<uint64_t> least;
  std::optional<uint64_t> charged;
  for (const ControlGroup& group : memory_groups_) {
    const FileText most(group.folder + (group.is_new ? "/memory.max" : "/memory.limit_in_bytes"));
    const std::vector<int64_t> limit = numbers_of(*most);  // none of "max"
    const bool is_least = !limit.empty() && limit[0] >= 0 && static_cast<uint64_t>(limit[0]) < least.value_or(kNoLimit);
    if (is_least) {
      least = static_cast<uint64_t>(limit[0]);
    }
    const FileText used(group.folder + (group.is_new ? "/memory.current" : "/memory.usage_in_bytes"));
    const std::vector<int64_t> bytes = numbers_of(*used);
    if (is_least || !charged) {  // memory counted against the limit, or of the innermost group if there is no limit
      charged = bytes.empty() ? std::nullopt : positive(bytes[0]);
    }
  }
  set(state, "memory_limit_bytes", state.memory_limit_bytes, least, "no control group limits memory");
  set(state, "memory_charged_bytes", state.memory_charged_bytes, charged, "no control group counts memory");
}

void HostStateReader::read_pressure(HostState& state) const {
  const auto read = [this](const char* what) {
    for (const ControlGroup& group : cpu_groups_) {
      std::string text(*FileText(group.folder + "/" + what + ".pressure"));
      if (group.is_new && text.starts_with("some")) {
        return text;
      }
    }
    return std::string(*FileText(proc_ + "/pressure/" + what));
  };
  const std::string why = "this kernel does not count pressure (PSI)";
  const std::string cpu = read("cpu");
  const std::string memory = read("memory");
  const std::string io = read("io");
  set(state, "cpu_pressure_s", state.cpu_pressure_s, pressure_s(cpu, "some"), why);
  set(state, "memory_pressure_s", state.memory_pressure_s, pressure_s(memory, "some"), why);
  set(state, "memory_stalled_s", state.memory_stalled_s, pressure_s(memory, "full"), why);
  set(state, "io_pressure_s", state.io_pressure_s, pressure_s(io, "some"), why);
  set(state, "io_stalled_s", state.io_stalled_s, pressure_s(io, "full"), why);
}

}  // namespace gpuscope::base
