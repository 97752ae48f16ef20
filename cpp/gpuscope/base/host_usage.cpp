// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/host_usage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/file.h"

namespace gpuscope::base {
namespace {

constexpr uint32_t kRoundsOfSearch = 5;        // rounds between searches for processes
constexpr uint32_t kRoundsOfMemory = 5 * 120;  // afterwards a number may belong to another process
constexpr std::size_t kMostProcesses = 256;    // that are read
constexpr std::size_t kMostNew = 256;          // numbers looked up per round
constexpr std::size_t kRoom = 4096;
constexpr int kStartOfProcess = 19;  // words after the state in its `stat`

/// The number after a word, or the `index`-th word of a text. None if missing.
std::optional<int64_t> parse(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> word(std::string_view text, int index) {
  for (; index > 0; --index) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) {
      return std::nullopt;
    }
    text.remove_prefix(space + 1);
  }
  return parse(text);
}

/// The CPU time of all threads of a process: the clock of clock_getcpuclockid. Negative if it has ended.
int64_t cpu_ns_of_process(uint32_t id) noexcept {
  timespec value{};
  const auto clock = static_cast<clockid_t>(~id << 3 | 2);
  return clock_gettime(clock, &value) == 0 ? value.tv_sec * 1'000'000'000LL + value.tv_nsec : -1;
}

/// The start of a process, from the start time in its `stat` (clock ticks since boot). 0 if unknown.
uint64_t began(std::optional<int64_t> units, uint64_t now_ticks) {
  timespec now{};
  const int64_t a_second = sysconf(_SC_CLK_TCK);
  if (!units || a_second <= 0 || clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
    return 0;
  }
  const int64_t ns = *units / a_second * 1'000'000'000 + *units % a_second * 1'000'000'000 / a_second;
  const int64_t age_ns = now.tv_sec * 1'000'000'000LL + now.tv_nsec - ns;
  const Clock& clock = Clock::process();
  return clock.to_ticks(clock.to_ns(now_ticks) - std::max<int64_t>(0, age_ns));
}

int64_t grown(std::optional<int64_t> now, std::optional<int64_t>& before) {
  const int64_t growth = now && before ? std::max<int64_t>(0, *now - *before) : kUnknown;
  before = now;
  return growth;
}

}  // namespace

KeptFile::KeptFile(const std::string& path) noexcept : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
KeptFile::KeptFile(KeptFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
KeptFile& KeptFile::operator=(KeptFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}
KeptFile::~KeptFile() {
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
}

std::string_view KeptFile::read(char* room, std::size_t bytes) const noexcept {
  const ssize_t got = descriptor_ >= 0 ? pread(descriptor_, room, bytes, 0) : -1;
  return {room, got > 0 ? static_cast<std::size_t>(got) : 0};
}

std::optional<int64_t> number_after(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  return at == std::string_view::npos ? std::nullopt : parse(text.substr(at + word.size()));
}

std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& proc,
                                         const std::string& groups) {
  // Version 1 has a line "4:cpu,cpuacct:/path" for each hierarchy, version 2 has "0::/path". In a container the path
  // may be the root, or the host's: then only its last folders exist.
  const std::string wanted = std::string(",").append(controller).append(",");
  const std::string list = read_file((proc + "/self/cgroup").c_str());
  std::vector<ControlGroup> found;
  std::string_view lines = list;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) {
      continue;
    }
    const std::string controllers(line.substr(first + 1, second - first - 1));
    std::string path(line.substr(second + 1));
    const bool is_new = controllers.empty();
    if (!is_new && ("," + controllers + ",").find(wanted) == std::string::npos) {
      continue;
    }
    for (bool is_root = false; !is_root;) {
      is_root = path.empty() || path == "/";
      std::string folder = groups;
      folder.append(is_new ? "" : "/").append(controllers).append(is_root ? "" : path);
      found.push_back({.folder = std::move(folder), .is_new = is_new});
      path.resize(is_root ? 0 : path.rfind('/'));
    }
  }
  return found;
}

std::optional<int64_t> run_queue_wait_ns(const KeptFile& schedstat) noexcept {
  std::array<char, 96> room;
  const std::string_view text = schedstat.read(room.data(), room.size());
  // Three zeros mean that the system does not count. A thread that reads or was read has run.
  return word(text, 2).value_or(0) > 0 ? word(text, 1) : std::nullopt;
}

std::string why_no_thread_waits(const std::string& proc) {
  const std::string path = proc + "/self/task/" + std::to_string(syscall(SYS_gettid)) + "/schedstat";
  const KeptFile file(path);
  if (!file) {
    return path + " cannot be opened";
  }
  return run_queue_wait_ns(file) ? "" : "this kernel does not count how long threads wait for a CPU";
}

HostReader::HostReader(std::string proc, const std::string& groups) : proc_(std::move(proc)) {
  find_groups(groups);
  add_process(static_cast<uint32_t>(getpid()));
}

void HostReader::find_groups(const std::string& groups) {
  for (const ControlGroup& group : control_groups("cpu", proc_, groups)) {
    KeptFile stat(group.folder + "/cpu.stat");
    std::array<char, kRoom> room;
    if (stat.read(room.data(), room.size()).find("nr_throttled") != std::string_view::npos) {
      is_in_ns_ = !group.is_new;
      cpu_stats_.push_back(std::move(stat));
    }
    if (group.is_new && !io_pressure_) {
      io_pressure_ = KeptFile(group.folder + "/io.pressure");
    }
  }
  if (!io_pressure_ || !io_wait_ns()) {
    io_pressure_ = KeptFile(proc_ + "/pressure/io");
  }
  why_no_throttling_ = cpu_stats_.empty() ? "no cpu.stat with nr_throttled under " + groups : "";
  why_no_io_wait_ = io_wait_ns() ? "" : "neither io.pressure nor " + proc_ + "/pressure/io can be read";
}

HostReader::Throttling HostReader::throttling() const {
  Throttling found;
  std::array<char, kRoom> room;
  for (const KeptFile& file : cpu_stats_) {
    const std::string_view text = file.read(room.data(), room.size());
    found.periods += number_after(text, "nr_throttled ").value_or(0);
    found.ns += is_in_ns_ ? number_after(text, "throttled_time ").value_or(0)
                          : number_after(text, "throttled_usec ").value_or(0) * 1000;
  }
  return found;
}

std::optional<int64_t> HostReader::io_wait_ns() const {
  std::array<char, 256> room;
  const std::string_view text = io_pressure_.read(room.data(), room.size());
  const std::optional<int64_t> total_us = text.starts_with("some") ? number_after(text, "total=") : std::nullopt;
  return total_us ? std::optional(*total_us * 1000) : std::nullopt;
}

HostReader::Process& HostReader::add_process(uint32_t id) {
  const std::string folder = proc_ + "/" + std::to_string(id);
  Process process;
  process.schedstat = KeptFile(folder + "/schedstat");
  process.io = KeptFile(folder + "/io");
  return processes_.emplace(id, std::move(process)).first->second;
}

bool HostReader::find_processes(uint64_t now_ticks) {
  DIR* folder = opendir(proc_.c_str());
  if (folder == nullptr) {
    return true;
  }
  std::vector<uint32_t> unknown;
  while (const dirent* entry = readdir(folder)) {
    const std::optional<int64_t> number = entry->d_name[0] <= '9' ? parse(entry->d_name) : std::nullopt;
    const auto id = static_cast<uint32_t>(number.value_or(0));
    if (id != 0 && !processes_.contains(id) && !strangers_.contains(id)) {
      unknown.push_back(id);
    }
  }
  closedir(folder);
  // Numbers increase. Lower numbers than ours are mostly system processes: a large machine has thousands.
  std::ranges::stable_partition(unknown, [own = static_cast<uint32_t>(getpid())](uint32_t id) { return id > own; });
  std::size_t looked_up = 0;
  for (const uint32_t id : unknown) {
    if (processes_.size() >= kMostProcesses) {
      break;
    }
    if (++looked_up > kMostNew) {
      return false;
    }
    // "12 (any name) S 11 ...": the parent is the word after the state.
    const std::string stat = read_file((proc_ + "/" + std::to_string(id) + "/stat").c_str());
    const std::size_t name_end = stat.rfind(") ");
    const std::string_view rest = name_end == std::string::npos ? "" : std::string_view(stat).substr(name_end + 2);
    const auto parent = static_cast<uint32_t>(word(rest, 1).value_or(0));
    if (!processes_.contains(parent)) {
      strangers_.insert(id);
      continue;
    }
    Process& process = add_process(id);
    const uint64_t began_ticks = began(word(rest, kStartOfProcess), now_ticks);
    if (first_ticks_ != 0 && began_ticks > first_ticks_) {  // it began after the first round: all its use counts
      process.ticks = began_ticks;
      process.wait_ns = process.read_bytes = 0;
    }
  }
  return true;
}

bool HostReader::read_process(uint32_t id, Process& process, uint64_t now_ticks, std::vector<HostUsage>& into) {
  const int64_t cpu_ns = cpu_ns_of_process(id);
  if (cpu_ns < 0) {
    return false;
  }
  std::array<char, 512> room;
  HostUsage usage;
  usage.of = HostUsage::Of::Process;
  usage.system_id = id;
  usage.begin_ticks = std::exchange(process.ticks, now_ticks);
  usage.end_ticks = now_ticks;
  usage.cpu_ns = std::max<int64_t>(0, cpu_ns - std::exchange(process.cpu_ns, cpu_ns));
  usage.wait_ns = grown(run_queue_wait_ns(process.schedstat), process.wait_ns);
  usage.read_bytes =
      grown(number_after(process.io.read(room.data(), room.size()), "\nread_bytes: "), process.read_bytes);
  if (usage.begin_ticks != 0) {
    into.push_back(usage);
  }
  return true;
}

void HostReader::read(uint64_t now_ticks, std::vector<HostUsage>& into) {
  if (rounds_ % kRoundsOfMemory == 0) {
    strangers_.clear();
  }
  if (rounds_++ % kRoundsOfSearch == 0 || !knows_all_) {
    knows_all_ = find_processes(now_ticks);
  }
  first_ticks_ = first_ticks_ != 0 ? first_ticks_ : now_ticks;
  for (auto at = processes_.begin(); at != processes_.end();) {
    at = read_process(at->first, at->second, now_ticks, into) ? std::next(at) : processes_.erase(at);
  }
  const Throttling before = std::exchange(throttling_, throttling());
  HostUsage usage;
  usage.of = HostUsage::Of::ControlGroup;
  usage.begin_ticks = std::exchange(ticks_, now_ticks);
  usage.end_ticks = now_ticks;
  if (!cpu_stats_.empty()) {
    usage.throttled_ns = std::max<int64_t>(0, throttling_.ns - before.ns);
    usage.throttled_periods = std::max<int64_t>(0, throttling_.periods - before.periods);
  }
  usage.io_wait_ns = grown(io_wait_ns(), io_wait_ns_);
  const bool says_anything = usage.throttled_ns != kUnknown || usage.io_wait_ns != kUnknown;
  if (usage.begin_ticks != 0 && says_anything) {
    into.push_back(usage);
  }
}

}  // namespace gpuscope::base
