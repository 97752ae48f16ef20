// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/session.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/timing/context.h"

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;

// The decode thread's sleep: the maximum age of records when decoded. A thread's event log holds a million events, far
// more than a thread writes in this time.
constexpr auto kPollInterval = 100ms;
constexpr int kWakesOfAPoll = 4096;
std::atomic<Session*> active_session{nullptr};
std::atomic<bool> cupti_was_started{false};
std::atomic<bool> is_forked_child{false};

/// CUPTI 13.0 crashes if graph tracing is enabled after a graph was instantiated without it. It is safe only while the
/// process has no context. Only a process's first session can be sure of that.
bool graph_trace_is_safe(const driver::Cuda& cuda) {
  static bool asked = false;
  return !std::exchange(asked, true) && cuda.device_get_count != nullptr && !has_context(cuda);
}

}  // namespace

void Session::watch_forks() {
  base::survive_forks();
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      base::EventLogs::process().forget_all();
      // Not even a stopped collector survives: CUPTI's threads exist only in the parent.
      if (active_session.exchange(nullptr) != nullptr || cupti_was_started.load()) {
        is_forked_child.store(true);
      }
      base::listening.store(0, std::memory_order_relaxed);
      timing::RegionTimer::current().store(nullptr, std::memory_order_relaxed);
    });
  });
}

bool Session::active() noexcept { return active_session.load() != nullptr; }
bool Session::forked() noexcept { return is_forked_child.load(); }

Session::Session(Vendor& vendor, Options options)
    : vendor_(vendor), options_(std::move(options)), recorder_(vendor, options_), process_(getpid()) {
  Session* expected = nullptr;
  if (!active_session.compare_exchange_strong(expected, this)) {
    throw base::InvalidArgument(
        "a profiler is already running in this process: stop it before starting another, or use one with a schedule");
  }
  const timing::RelaxedCapture relaxed(vendor_.cuda);
  try {
    watch_forks();
    base::Clock::process();
    base::EventLogs::current();  // the starting thread's log comes first: others inherit its regions
    choose_tier();
    // In a forked child, the tier is still that of the collecting parent.
    options_.settings.by_time = collecting_ && vendor_.collector.tier() == activity::Tier::Shared;
    recorder_.begin(collecting_);
    const bool gpu_time = timing::RegionTimer::current().load() != nullptr;
    static std::atomic<uint32_t> epochs{0};
    const uint32_t flags =
        base::kListenRegions | (gpu_time ? base::kListenGpuTime : 0U) | (options_.stacks ? base::kListenStacks : 0U);
    base::listening.store((++epochs << base::kListenBits) | flags, std::memory_order_release);
    start_thread();
  } catch (...) {
    base::listening.store(0);
    timing::RegionTimer::current().store(nullptr);
    vendor_.collector.stop();
    recorder_.close();
    active_session.store(nullptr);
    throw;
  }
}

Session::~Session() {
  try {
    stop();
  } catch (const std::exception&) {  // a window that could not be handed over is lost
  }
}

bool Session::in_forked_child() const noexcept { return getpid() != process_; }

void Session::start_thread() {
  recorder_.start_flusher();
  recorder_.make_sources();
  thread_ = base::start_thread("a recording", [this] { run(); });
  entered_.acquire();
}

// CUPTI's own timestamps get slower with the time since CUPTI was started. That matters in recordings that may last for
// hours, and in programs that have run for long. Records of waits keep the host's time.
//
// Memory and overhead records would include the clock reader's own. Hardware counters use CUPTI's clock.
bool Session::gets_raw_timestamps() {
  const bool may_last = options_.settings.mode != attribution::Mode::Full || options_.repeats || options_.spools;
  const bool is_old = vendor_.collector.age() >= options_.old_cupti;
  const bool has_others = options_.overheads || options_.memory || !options_.counters.metrics.empty() ||
                          vendor_.collector.watches_allocations();
  return (may_last || is_old) && !has_others && vendor_.collector.knows_raw_timestamps() && has_context(vendor_.cuda) &&
         recorder_.read_gpu_clocks();
}

void Session::choose_tier() {
  tier_ = "cpu";
  const bool is_child = forked() || vendor_.collector.in_forked_child();
  if (!options_.cuda || is_child) {
    tier_reason_ = is_child ? "this process was forked from one that was collecting, and CUPTI does not survive a fork"
                            : options_.no_cuda_reason;
    return;
  }
  if (!vendor_.cuda.library) {
    tier_reason_ = "no NVIDIA driver was found (" + vendor_.cuda.library.why() + ")";
    return;
  }
  const bool keeps_rows = options_.settings.mode != attribution::Mode::Aggregate;
  const activity::Collector::Options wanted{
      .graph_trace = options_.settings.merge_graphs && graph_trace_is_safe(vendor_.cuda),
      .synchronization = options_.synchronization,
      .overheads = options_.overheads && keeps_rows,
      .memory = options_.memory && keeps_rows,
      .may_share = options_.may_share_cupti,
      .raw_timestamps = gets_raw_timestamps()};
  cupti_was_started.store(true);
  const activity::Tier got = vendor_.collector.start(wanted);
  collecting_ = got != activity::Tier::None;
  if (collecting_) {
    const bool sole = got == activity::Tier::Sole;
    tier_ = sole ? "cupti" : "cupti-shared";
    tier_reason_ = sole ? "" : vendor_.collector.why() + ", so launches are joined to regions by thread and time";
    return;
  }
  tier_ = "events";
  tier_reason_ = vendor_.collector.why() + ", so regions are timed with CUDA events on the default stream";
  vendor_.region_timer.take_all_back();
  timing::RegionTimer::current().store(&vendor_.region_timer, std::memory_order_release);
}

void Session::open(const std::string& folder) {
  if (in_forked_child()) {
    return;  // the thread that held the lock does not exist here
  }
  const std::lock_guard calls(calls_);
  if (!stopped_) {
    attribution::Window& window = recorder_.window();
    if (window.open_ns.load() == INT64_MAX) {  // the switches are not read now
      window.gpu.reset();
      window.regions.reset();
      if (released_) {
        tier_ = "cpu";
        tier_reason_ = "another profiler was started in an earlier window and needs CUPTI for itself";
      }
    }
    recorder_.open(folder);
  }
}

bool Session::release_cupti() {
  if (in_forked_child()) {
    return false;
  }
  const std::lock_guard calls(calls_);
  if (stopped_ || !collecting_) {
    return false;
  }
  attribution::Window& window = recorder_.window();
  const int64_t now_ns = base::Clock::process().now_ns();
  if (window.contains(now_ns)) {
    window.gpu.turn(false, now_ns);
  }
  hand_over(Request::ReleaseCupti);
  collecting_ = false;
  released_ = true;
  return true;
}

void Session::switch_gpu(bool on) { turn(&attribution::Window::gpu, on); }
void Session::switch_regions(bool on) { turn(&attribution::Window::regions, on); }

void Session::turn(attribution::SwitchTimes attribution::Window::*which, bool on) {
  if (in_forked_child()) {
    return;
  }
  const std::lock_guard calls(calls_);
  if (stopped_) {
    return;
  }
  attribution::Window& window = recorder_.window();
  const int64_t now_ns = base::Clock::process().now_ns();
  if (window.contains(now_ns)) {
    (window.*which).turn(on, now_ns);
  }
}

std::unique_ptr<store::Store> Session::cut(std::chrono::nanoseconds wait_limit) {
  if (in_forked_child()) {
    return nullptr;
  }
  const std::lock_guard calls(calls_);
  return stopped_ ? nullptr : request(Request::Cut, wait_limit);
}

std::unique_ptr<store::Store> Session::stop(std::chrono::nanoseconds wait_limit) {
  if (in_forked_child()) {
    return nullptr;
  }
  const std::lock_guard calls(calls_);
  if (stopped_) {
    return nullptr;
  }
  const timing::RelaxedCapture relaxed(vendor_.cuda);
  std::unique_ptr<store::Store> last;
  std::exception_ptr error;
  try {
    last = request(Request::Stop, wait_limit);
  } catch (...) {
    error = std::current_exception();
  }
  thread_.join();
  stopped_ = true;
  base::listening.store(0, std::memory_order_relaxed);
  timing::RegionTimer::current().store(nullptr, std::memory_order_relaxed);
  if (collecting_) {
    vendor_.collector.stop();
    const activity::CompletedBuffers unread(vendor_.collector.buffers());  // their records belong to no window
  }
  recorder_.close();  // while there is no other session that shares names and logs
  active_session.store(nullptr);
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  return last;
}

std::unique_ptr<store::Store> Session::request(Request what, std::chrono::nanoseconds wait_limit) {
  attribution::Window& window = recorder_.window();
  const int64_t now_ns = base::Clock::process().now_ns();
  const bool is_open = window.open_ns.load() <= now_ns;
  if (is_open) {
    window.close_ns.store(now_ns, std::memory_order_release);
  } else if (what == Request::Cut) {
    return nullptr;
  }
  return hand_over(what, wait_limit);
}

std::unique_ptr<store::Store> Session::hand_over(Request what, std::chrono::nanoseconds wait_limit) {
  std::unique_lock lock(mutex_);
  request_ = what;
  wait_limit_ = wait_limit;
  base::EventLog::wake().release();
  done_.wait(lock, [this] { return request_ == Request::None; });
  if (error_ != nullptr) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  return std::move(result_);
}

void Session::run() {
  pthread_setname_np(pthread_self(), "gpuscope");
  recorder_.enter_thread();
  entered_.release();
  std::chrono::steady_clock::time_point flushed;
  while (true) {
    auto& wake = base::EventLog::wake();
    if (wake.try_acquire_for(kPollInterval)) {
      // A writer without room wakes us at every event. One poll serves many wakeups, but must not be late.
      for (int wakes = 1; wakes < kWakesOfAPoll && wake.try_acquire(); ++wakes) {
      }
    }
    const timing::RelaxedCapture relaxed(vendor_.cuda);  // only now, as the driver may not be initialised at first
    Request wanted = Request::None;
    std::chrono::nanoseconds wait_limit{};
    {
      const std::lock_guard lock(mutex_);
      wanted = request_;
      wait_limit = wait_limit_;
    }
    if (wanted == Request::None) {
      const auto now = std::chrono::steady_clock::now();
      const bool flush = now - flushed >= kPollInterval;
      recorder_.poll(flush);
      flushed = flush ? now : flushed;
      continue;
    }
    std::unique_ptr<store::Store> store;
    std::exception_ptr error;
    try {
      if (wanted == Request::ReleaseCupti) {
        recorder_.release_cupti();
      }
      if (wanted != Request::ReleaseCupti && recorder_.window().close_ns.load() != INT64_MAX) {
        Facts facts;
        facts.rows.emplace_back("session.tier", tier_);
        facts.rows.emplace_back("session.tier_reason", tier_reason_);
        store = recorder_.end_window(std::move(facts), wait_limit, wanted == Request::Stop);
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (wanted == Request::Stop) {
      recorder_.leave_thread();
    }
    {
      const std::lock_guard lock(mutex_);
      result_ = std::move(store);
      error_ = error;
      request_ = Request::None;
    }
    done_.notify_all();
    if (wanted == Request::Stop) {
      return;
    }
  }
}

}  // namespace gpuscope::session
