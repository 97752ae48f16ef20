// SPDX-License-Identifier: Apache-2.0
// Samples of Python: the stack of each thread, at intervals.
//
// A thread of this package reads them (other_threads.h). The program's threads do no work for it, and it takes neither
// their locks nor the GIL. It reads the CPU time of each thread, and reads the stack only of threads that ran since the
// last sample. The others have not moved.

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/event_log.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/host_usage.h"
#include "gpuscope/base/sample_log.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/other_threads.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

#ifdef GPUSCOPE_KNOWS_FRAMES

using namespace std::chrono_literals;
using base::Sample;

// Samples of a thread that does not move form one row, of at most this length. Windows and the ring cut rows by their
// beginning, so rows must be short.
constexpr auto kLongestRow = 250ms;
// Sampling may take 1 / n of a core. With many threads, or where wakeups are slow (some virtual machines), the interval
// grows.
constexpr int kShareOfTime = 50;
// Random offset of a sample, as 1 / n of the interval. Otherwise samples would alias with periodic programs.
constexpr uint64_t kUneven = 4;
// The interval of the readings of processes and control groups.
constexpr auto kHostInterval = 100ms;
// The wait for a CPU is read, with a system call, when a thread runs again after this long off the CPU. Shorter waits
// are negligible.
constexpr auto kLeastOff = 2ms;
constexpr auto kLeastWait = 100us;
// A thread that ran for all but 1 / n of the time since the last sample did not wait.
constexpr int64_t kRanThrough = 50;
constexpr std::size_t kMostWaiting = 256;  // threads with a known wait: each keeps a file open

/// The readings of the host, and why one is missing: "" if it is available.
using HostSources = std::vector<std::pair<std::string, std::string>>;

int64_t cpu_ns_of(clockid_t clock) noexcept {
  timespec value{};
  return clock_gettime(clock, &value) == 0 ? value.tv_sec * 1'000'000'000LL + value.tv_nsec : -1;
}

/// The CPU clock of a thread, by its system number (the kernel's CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED).
/// pthread_getcpuclockid needs a thread that is still alive.
clockid_t cpu_clock_of(uint32_t thread_id) noexcept { return static_cast<clockid_t>(~thread_id << 3 | 6); }

/// Takes the samples. All except the constructor: one thread.
class Sampling {
 public:
  Sampling(std::chrono::nanoseconds interval, ThreadList threads)
      : interval_(interval), thread_list_(std::move(threads)) {}

  /// On the sampling thread. False if memory cannot be read.
  bool open() {
    if (!reader_.open()) {
      return false;
    }
    knows_cpu_time_ = cpu_ns_of(cpu_clock_of(static_cast<uint32_t>(syscall(SYS_gettid)))) >= 0;
    stacks_ = std::make_unique<StackReader>(reader_);
    const base::Clock& clock = base::Clock::process();
    ticks_of_longest_ = ticks_of(clock, kLongestRow);
    ticks_of_host_interval_ = ticks_of(clock, kHostInterval);
    std::string why_no_waits = base::why_no_thread_waits();
    if (why_no_waits.empty() && !knows_cpu_time_) {
      why_no_waits = "this system does not say how long other threads were on a CPU";
    }
    knows_waits_ = why_no_waits.empty();
    host_ = std::make_unique<base::HostReader>();
    sources_ = {{"thread_waits", why_no_waits},
                {"process_usages", ""},
                {"control_group_usages.throttled_ns", host_->why_no_throttling()},
                {"control_group_usages.io_wait_ns", host_->why_no_io_wait()}};
    return true;
  }
  const HostSources& sources() const noexcept { return sources_; }

  /// Samples every thread once.
  void look() {
    const uint64_t began = base::ticks();
    const bool is_whole = thread_list_.walk(reader_, found_);
    ++round_;
    for (const KnownThread& thread : found_) {
      SampledThread& known = threads_[thread.number];
      // Up to Python 3.11, a new thread has its creator's system number until it runs.
      const bool is_new = known.row.thread_id != thread.system_id;
      if (is_new) {
        append(known, false);
        known.clock = cpu_clock_of(thread.system_id);
        known.looked_ticks = last_round_ticks_ != 0 ? last_round_ticks_ : began;
        known.row.thread = thread.number;
        known.row.thread_id = thread.system_id;
        begin_wait(known, began);
      }
      known.round = round_;
      look_at(thread, known, is_new);
    }
    if (is_whole) {
      forget_ended();
    }
    last_round_ticks_ = began;
    if (began - host_ticks_ >= ticks_of_host_interval_) {
      look_at_host(began);
    }
    // CPU time of this thread, as its wakeup may take longer than a sample. The first samples read names, so a cost
    // above `most_ns` is cut.
    const int64_t cpu_ns = cpu_ns_of(CLOCK_THREAD_CPUTIME_ID);
    const auto took_ns = static_cast<double>(cpu_ns - std::exchange(cpu_ns_, cpu_ns));
    const double most_ns = 4 * took_ns_ + static_cast<double>(interval_.count()) / 100;
    took_ns_ += (std::min(took_ns, most_ns) - took_ns_) / 16;
  }

  /// Until the next look.
  std::chrono::nanoseconds pause() {
    random_ = base::mix(random_ + 1);
    const std::chrono::nanoseconds usual =
        std::max(interval_, std::chrono::nanoseconds(static_cast<int64_t>(took_ns_ * kShareOfTime)));
    const auto part = static_cast<uint64_t>(usual.count()) / kUneven;
    return usual +
           std::chrono::nanoseconds(static_cast<int64_t>(random_ % (2 * part + 1)) - static_cast<int64_t>(part));
  }

  void end() noexcept {
    try {
      look_at_host(base::ticks());
    } catch (const std::exception&) {  // out of memory: the latest rows are missing
    }
    for (auto& [number, thread] : threads_) {
      look_at_wait(thread, base::ticks());
      append(thread, true);
    }
  }

  /// On the sampling thread, which owns the files (base::MemoryReader). On other threads their numbers mean other
  /// files.
  void close() noexcept {
    threads_.clear();
    host_.reset();
  }

 private:
  struct SampledThread {
    clockid_t clock = 0;
    int64_t cpu_ns = 0;
    uint64_t looked_ticks = 0;
    uint64_t round = 0;  // the last round in which it existed
    FramePieces pieces;
    Sample row{};  // not appended yet. Count 0: none
    // Start of the time with waits, time off the CPU since, and the total wait at that start.
    base::KeptFile schedstat;
    uint64_t off_since_ticks = 0;
    int64_t off_ns = 0;
    int64_t on_ns = 0;
    int64_t waited_ns = 0;
  };

  static uint64_t ticks_of(const base::Clock& clock, std::chrono::nanoseconds time) {
    const int64_t now_ns = clock.now_ns();
    return clock.to_ticks(now_ns + time.count()) - clock.to_ticks(now_ns);
  }

  void look_at(const KnownThread& thread, SampledThread& known, bool is_new) {
    const int64_t cpu_ns = knows_cpu_time_ ? cpu_ns_of(known.clock) : 0;
    if (cpu_ns < 0) {
      return;  // it has just ended
    }
    const int64_t ran_ns = is_new ? 0 : std::max<int64_t>(0, cpu_ns - known.cpu_ns);
    Sample& row = known.row;
    uint32_t stack = row.stack;
    if (ran_ns != 0 || is_new || row.count == 0 || !knows_cpu_time_) {
      const std::optional<uint32_t> read = stacks_->stack_of(thread, known.pieces, base::ticks());
      if (!read.has_value()) {
        return;  // its time counts up to the next place
      }
      stack = *read;
    }
    known.cpu_ns = cpu_ns;
    const uint64_t now = base::ticks();
    const uint64_t before = std::exchange(known.looked_ticks, now);
    follow_wait(known, before, now, ran_ns);
    if (row.count != 0 && (row.stack != stack || now - row.begin_ticks > ticks_of_longest_)) {
      append(known, false);
    }
    if (row.count == 0) {
      row.begin_ticks = before;
      row.cpu_ns = 0;
      row.stack = stack;
    }
    row.end_ticks = now;
    row.cpu_ns += ran_ns;
    ++row.count;
  }

  void begin_wait(SampledThread& thread, uint64_t now) {
    const bool has_room = knows_waits_ && threads_.size() <= kMostWaiting;
    thread.schedstat = has_room
                           ? base::KeptFile("/proc/self/task/" + std::to_string(thread.row.thread_id) + "/schedstat")
                           : base::KeptFile();
    thread.waited_ns = base::run_queue_wait_ns(thread.schedstat).value_or(0);
    thread.off_since_ticks = now;
    thread.off_ns = thread.on_ns = 0;
  }

  /// The system counts a wait when it ends. So it is read when the thread runs again.
  void follow_wait(SampledThread& thread, uint64_t before, uint64_t now, int64_t ran_ns) {
    if (!thread.schedstat) {
      return;
    }
    const int64_t time_ns = clock_.to_ns(now) - clock_.to_ns(before);
    const int64_t off_ns = std::max<int64_t>(0, time_ns - ran_ns);
    if (thread.off_ns == 0 && off_ns * kRanThrough <= time_ns) {
      thread.off_since_ticks = now;
      thread.on_ns = 0;
      return;
    }
    thread.off_ns += off_ns;
    thread.on_ns += ran_ns;
    if (ran_ns != 0 && thread.off_ns >= std::chrono::nanoseconds(kLeastOff).count()) {
      look_at_wait(thread, now);
    }
  }

  void look_at_wait(SampledThread& thread, uint64_t now) {
    const std::optional<int64_t> waited_ns = base::run_queue_wait_ns(thread.schedstat);
    if (!waited_ns.has_value()) {
      return;  // it has ended, or its waits are not read
    }
    base::HostUsage usage;
    usage.begin_ticks = std::exchange(thread.off_since_ticks, now);
    usage.end_ticks = now;
    // Part of the wait may have been before the last sample.
    usage.wait_ns = std::min(*waited_ns - std::exchange(thread.waited_ns, *waited_ns), std::exchange(thread.off_ns, 0));
    // The system's thread clocks and our clock are not read at the same moment.
    const int64_t duration_ns = clock_.to_ns(usage.end_ticks) - clock_.to_ns(usage.begin_ticks);
    usage.cpu_ns = std::min(std::exchange(thread.on_ns, 0), std::max<int64_t>(0, duration_ns - usage.wait_ns));
    usage.thread = thread.row.thread;
    usage.system_id = thread.row.thread_id;
    if (usage.wait_ns >= std::chrono::nanoseconds(kLeastWait).count()) {
      base::HostLog::process().append(usage);
    }
  }

  void look_at_host(uint64_t now) {
    host_ticks_ = now;
    usages_.clear();
    host_->read(now, usages_);
    for (const base::HostUsage& usage : usages_) {
      base::HostLog::process().append(usage);
    }
  }

  void append(SampledThread& thread, bool ends) {
    Sample row = thread.row;
    thread.row.count = 0;
    row.count = row.stack != 0 ? row.count : 0;  // it ran no Python
    row.ends_thread = ends;
    if ((row.count != 0 || ends) && base::SampleLog::process().append(row)) {
      base::EventLog::wake().release();
    }
  }

  void forget_ended() {
    if (threads_.size() == found_.size()) {
      return;
    }
    for (auto at = threads_.begin(); at != threads_.end();) {
      const bool is_there = at->second.round == round_;
      if (!is_there) {
        append(at->second, true);
      }
      at = is_there ? std::next(at) : threads_.erase(at);
    }
  }

  std::chrono::nanoseconds interval_;
  ThreadList thread_list_;
  base::MemoryReader reader_;
  std::unique_ptr<StackReader> stacks_;
  std::vector<KnownThread> found_;
  std::unordered_map<uint64_t, SampledThread> threads_;  // by number
  uint64_t round_ = 0;
  uint64_t last_round_ticks_ = 0;
  uint64_t ticks_of_longest_ = 0;
  const base::Clock& clock_ = base::Clock::process();
  std::unique_ptr<base::HostReader> host_;
  HostSources sources_;
  std::vector<base::HostUsage> usages_;
  uint64_t ticks_of_host_interval_ = 0;
  uint64_t host_ticks_ = 0;
  bool knows_waits_ = false;
  bool knows_cpu_time_ = true;  // of other threads: some sandboxes hide it
  int64_t cpu_ns_ = 0;          // of this thread so far
  double took_ns_ = 0;          // CPU time per round, moving average
  uint64_t random_ = 0;
};

bool is_finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// The process's sampling thread. start and stop need the GIL. The thread never takes it, so they can wait for it.
class Sampler {
 public:
  static Sampler& process() { return base::of_process<Sampler>(); }  // leaked: the thread may run until process exit

  bool start(std::chrono::nanoseconds interval) {
    stop();
    base::survive_forks();
    base::Clock::process();
    own_folder();
    base::SampleLog::process().begin();
    base::HostLog::process().begin();
    ThreadList threads;
    threads.find();
    sampling_ = std::make_unique<Sampling>(interval, std::move(threads));
    started_ = ends_ = false;
    thread_ = base::start_thread("samples of Python", [this] { run(); });
    opened_.acquire();
    if (!started_) {
      stop();
      return false;
    }
    sources_ = sampling_->sources();
    return true;
  }
  const HostSources& sources() const noexcept { return sources_; }

  /// All samples are in the log afterwards.
  void stop() {
    if (!thread_.joinable()) {
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_one();
    thread_.join();
    sampling_.reset();
  }

 private:
  void run() {
    sample();
    sampling_->close();
  }

  void sample() {
    pthread_setname_np(pthread_self(), "gpuscope");
    try {
      base::prepare_to_throw();
      started_ = sampling_->open();
    } catch (const std::exception&) {
      started_ = false;
    }
    if (started_) {
      next_ = std::chrono::steady_clock::now();
      look();
    }
    const bool goes_on = started_;
    opened_.release();
    if (!goes_on) {
      return;
    }
    while (!wait()) {
      if (is_finalizing()) {
        return;
      }
      look();
    }
    look();
    sampling_->end();
    base::SampleLog::process().add_cpu_time(cpu_ns_of(CLOCK_THREAD_CPUTIME_ID));
  }

  /// Waits for the next sample. True if there is none.
  bool wait() {
    // Not a semaphore: its timed wait takes more CPU time than a sample.
    next_ = std::max(next_ + sampling_->pause(), std::chrono::steady_clock::now());
    std::unique_lock lock(mutex_);
    return wake_.wait_until(lock, next_, [this] { return ends_; });
  }

  void look() noexcept {
    try {
      sampling_->look();
    } catch (const std::exception&) {  // out of memory: this round is missing
    }
  }

  std::unique_ptr<Sampling> sampling_;
  HostSources sources_;  // of the last start
  std::thread thread_;
  std::binary_semaphore opened_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::chrono::steady_clock::time_point next_;  // of the next sample
  bool started_ = false;
};

bool start_sampling(int64_t interval_ns) { return Sampler::process().start(std::chrono::nanoseconds(interval_ns)); }
void stop_sampling() { Sampler::process().stop(); }
HostSources host_sources() { return Sampler::process().sources(); }

#else

bool start_sampling(int64_t) { return false; }
void stop_sampling() {}
std::vector<std::pair<std::string, std::string>> host_sources() { return {}; }

#endif

struct PythonSampler {};

}  // namespace

void bind_python_samples(py::module_& module) {
  py::class_<PythonSampler>(module, "PythonSampler", "Samples of where each thread is in Python.")
      .def_static("start", &start_sampling, py::arg("interval_ns"),
                  "Begins to take them for the open window; False where frames or memory cannot be read.")
      .def_static(
          "host_sources",
          [] {
            py::dict found;
            for (const auto& [source, why] : host_sources()) {
              found[py::str(source)] = why;
            }
            return found;
          },
          "Tables and columns of what held up the host, each with why it is not recorded since the last start; \"\": "
          "it "
          "is.")
      .def_static("stop", &stop_sampling, "Ends that: those that were taken are found by the session.");
}

}  // namespace gpuscope::bindings
