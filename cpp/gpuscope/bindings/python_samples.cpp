// SPDX-License-Identifier: Apache-2.0
// Samples of Python: every so often, where each thread is.
//
// A thread of ours reads them (other_threads.h): the program's threads do nothing for it, hold no lock of it and keep
// the GIL. It asks the system how long each was on a CPU since the last time, and reads those alone that ran: the
// others are where they were.

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

// While a thread stays where it is, its samples are one row, of at most this length: rows are clipped at the ends of a
// window, and the ring drops them, by their beginning.
constexpr auto kLongestRow = 250ms;
// Of the time, what sampling may take of one core, as 1 / n: with many threads, or where it is dear to wake up as in
// some virtual machines, it is done less often.
constexpr int kShareOfTime = 50;
// Samples are taken at uneven times, so that a program which does the same at even ones is seen as it is: off by up to
// this part of the interval.
constexpr uint64_t kUneven = 4;
// Processes and control groups are looked at so often.
constexpr auto kHostInterval = 100ms;
// How long a thread waited for a CPU is asked, which is a system call, once it runs again after so long off it; less is
// no wait to speak of.
constexpr auto kLeastOff = 2ms;
constexpr auto kLeastWait = 100us;
// A thread that ran for all but this part of the time since the last look, as 1 / n, did not wait.
constexpr int64_t kRanThrough = 50;
constexpr std::size_t kMostWaiting = 256;  // threads whose waits are asked: each keeps a file open

/// What is read of the host, and why not: "" where it is.
using HostSources = std::vector<std::pair<std::string, std::string>>;

int64_t cpu_ns_of(clockid_t clock) noexcept {
  timespec value{};
  return clock_gettime(clock, &value) == 0 ? value.tv_sec * 1'000'000'000LL + value.tv_nsec : -1;
}

/// The clock of the time that a thread was on a CPU, by the system's number of it (CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED
/// of the kernel): pthread_getcpuclockid needs a thread that is sure to live.
clockid_t cpu_clock_of(uint32_t thread_id) noexcept { return static_cast<clockid_t>(~thread_id << 3 | 6); }

/// Takes the samples. All but the constructor: one thread.
class Sampling {
 public:
  Sampling(std::chrono::nanoseconds interval, ThreadList threads)
      : interval_(interval), thread_list_(std::move(threads)) {}

  /// On the thread that is to sample; false where memory cannot be read.
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

  /// Looks at every thread once.
  void look() {
    const uint64_t began = base::ticks();
    const bool is_whole = thread_list_.walk(reader_, found_);
    ++round_;
    for (const KnownThread& thread : found_) {
      Thread& known = threads_[thread.number];
      // Up to Python 3.11 a thread has the system's number of its creator until it runs.
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
    // Of this thread's own time, as its waking up may take more than a look. The first ones, which read names, say
    // little.
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
    } catch (const std::exception&) {  // no memory: the last tenth of a second is missing
    }
    for (auto& [number, thread] : threads_) {
      look_at_wait(thread, base::ticks());
      append(thread, true);
    }
  }

  /// On the thread that sampled, whose files are its own (base::MemoryReader): elsewhere their numbers are others'.
  void close() noexcept {
    threads_.clear();
    host_.reset();
  }

 private:
  struct Thread {
    clockid_t clock = 0;
    int64_t cpu_ns = 0;
    uint64_t looked_ticks = 0;
    uint64_t round = 0;  // in which it was there last
    FramePieces pieces;
    Sample row{};  // not appended yet; no count: none
    // Since when it was not on a CPU all the time, how long it was off, and how long it had waited then.
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

  void look_at(const KnownThread& thread, Thread& known, bool is_new) {
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
        return;  // the time counts to where it is found next
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

  void begin_wait(Thread& thread, uint64_t now) {
    const bool has_room = knows_waits_ && threads_.size() <= kMostWaiting;
    thread.schedstat = has_room
                           ? base::KeptFile("/proc/self/task/" + std::to_string(thread.row.thread_id) + "/schedstat")
                           : base::KeptFile();
    thread.waited_ns = base::run_queue_wait_ns(thread.schedstat).value_or(0);
    thread.off_since_ticks = now;
    thread.off_ns = thread.on_ns = 0;
  }

  /// A thread's wait for a CPU is counted by the system when it ends: it is asked once the thread runs again.
  void follow_wait(Thread& thread, uint64_t before, uint64_t now, int64_t ran_ns) {
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

  void look_at_wait(Thread& thread, uint64_t now) {
    const std::optional<int64_t> waited_ns = base::run_queue_wait_ns(thread.schedstat);
    if (!waited_ns.has_value()) {
      return;  // it has ended, or is not asked
    }
    base::HostUsage usage;
    usage.begin_ticks = std::exchange(thread.off_since_ticks, now);
    usage.end_ticks = now;
    // Less than a look tells may have been before.
    usage.wait_ns = std::min(*waited_ns - std::exchange(thread.waited_ns, *waited_ns), std::exchange(thread.off_ns, 0));
    // The system's clocks of threads and ours are not read at one moment.
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

  void append(Thread& thread, bool ends) {
    Sample row = thread.row;
    thread.row.count = 0;
    row.count = row.stack != 0 ? row.count : 0;  // it was in no Python
    row.ends_thread = ends;
    if ((row.count != 0 || ends) && base::SampleLog::process().append(row)) {
      base::EventLogs::process().wake().release();
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
  std::unordered_map<uint64_t, Thread> threads_;  // by number
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
  bool knows_cpu_time_ = true;  // of other threads: not every sandbox says it
  int64_t cpu_ns_ = 0;          // that this thread has had
  double took_ns_ = 0;          // of that, a round, lately
  uint64_t random_ = 0;
};

bool is_finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// The sampling thread of the process. start, stop: with the GIL, which the thread never asks for, so that it may be
/// waited for.
class Sampler {
 public:
  static Sampler& process() { return base::of_process<Sampler>(); }  // leaked: the thread may run to the last moment

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

  /// What was seen is in the log then.
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

  /// Until the next look; true when there is none.
  bool wait() {
    // Not a semaphore, whose timed wait takes more of a CPU than a look does.
    next_ = std::max(next_ + sampling_->pause(), std::chrono::steady_clock::now());
    std::unique_lock lock(mutex_);
    return wake_.wait_until(lock, next_, [this] { return ends_; });
  }

  void look() noexcept {
    try {
      sampling_->look();
    } catch (const std::exception&) {  // no memory: this round is missing
    }
  }

  std::unique_ptr<Sampling> sampling_;
  HostSources sources_;  // of the last start
  std::thread thread_;
  std::binary_semaphore opened_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::chrono::steady_clock::time_point next_;  // when the next look is due
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
