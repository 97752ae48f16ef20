// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/session.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "gpuscope/base/names.h"

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;

// How long the decode thread naps: records are at most this old when they are decoded, and a thread's event log holds
// a million events, far more than this many milliseconds bring.
constexpr auto kNap = 100ms;
constexpr auto kSettleNap = 200us;
// A copy between host buffers brings no record: once all kernels are in, copies are waited for only this long.
constexpr auto kCopyGrace = 5ms;
// Graphs do not tell how many nodes will report: those launched once, and those of which fewer nodes came than from an
// earlier launch, are waited for until nothing has come for this long.
constexpr auto kNewGraphGrace = 20ms;
constexpr auto kShortGraphGrace = 250ms;
constexpr auto kQuietNap = 5ms;
constexpr int kQuietRounds = 4;
constexpr unsigned kReadyBuffers = 4;

std::atomic<Session*> active_session{nullptr};
std::atomic<bool> cupti_was_started{false};
std::atomic<bool> is_forked_child{false};

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { base::Names::process().hold(); }, [] { base::Names::process().let_go(); },
                   [] {
                     base::Names::process().let_go();
                     base::EventLogs::process().forget_all();
                     // Not even a collector that was stopped survives: CUPTI's own threads stayed behind.
                     if (active_session.exchange(nullptr) != nullptr || cupti_was_started.load()) {
                       is_forked_child.store(true);
                     }
                     base::listening.store(0, std::memory_order_relaxed);
                     device::RegionTimer::current().store(nullptr, std::memory_order_relaxed);
                   });
  });
}

int64_t thread_cpu_ns() {
  timespec value{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &value);
  return value.tv_sec * 1'000'000'000LL + value.tv_nsec;
}

}  // namespace

bool Session::active() noexcept { return active_session.load() != nullptr; }
bool Session::forked() noexcept { return is_forked_child.load(); }

Session::Session(Vendor& vendor, const Options& options) : vendor_(vendor), options_(options), process_(getpid()) {
  Session* expected = nullptr;
  if (!active_session.compare_exchange_strong(expected, this)) {
    throw base::InvalidArgument(
        "a profiler is already running in this process: stop it before starting another, or use one with a schedule");
  }
  try {
    watch_forks();
    base::Clock::process();
    base::EventLogs::current();  // the starting thread's log comes first: others inherit its regions
    exhausted_start_ = vendor_.collector.buffers().exhausted();
    foreign_start_ = vendor_.collector.buffers().foreign();
    choose_tier();
    options_.settings.by_time = vendor_.collector.tier() == activity::Tier::Shared;
    main_thread_ = static_cast<uint64_t>(syscall(SYS_gettid));
    if (collecting_) {
      clock_ = ClockMap::detect(vendor_.collector.cupti());
      notes_ += clock_.note.empty() ? "" : clock_.note + "\n";
    }
    make_decoder();
    decoder_->discard_logs();
    const bool gpu_time = device::RegionTimer::current().load() != nullptr;
    static std::atomic<uint32_t> epochs{0};
    const uint32_t flags = base::kListenRegions | (gpu_time ? base::kListenGpuTime : 0U);
    base::listening.store((++epochs << base::kListenBits) | flags, std::memory_order_release);
    start_thread();
  } catch (...) {
    base::listening.store(0);
    device::RegionTimer::current().store(nullptr);
    vendor_.collector.stop();
    active_session.store(nullptr);
    throw;
  }
}

Session::~Session() {
  if (left_behind()) {
    // The fork may have caught our thread in the middle of changing any of this.
    (void)thread_.release();
    (void)decoder_.release();
    (void)result_.release();
    return;
  }
  try {
    stop();
  } catch (const std::exception&) {  // nobody is left to take what could not be handed over
  }
}

bool Session::left_behind() const noexcept { return getpid() != process_; }

void Session::make_decoder() {
  decoder_ = std::make_unique<attribution::Decoder>(options_.settings, vendor_.collector.cupti(), main_thread_);
  decoder_->gpu_records().set_clock(clock_.to_ns);
}

void Session::start_thread() {
  // The program's signals are its own threads' business: a handler there may be meant to interrupt a call.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Session::choose_tier() {
  tier_ = "cpu";
  if (!options_.cuda || forked()) {
    tier_reason_ = forked() ? "this process was forked from one that was collecting, and CUPTI does not survive a fork"
                            : options_.no_cuda_reason;
    return;
  }
  if (!vendor_.cuda.library) {
    tier_reason_ = "no NVIDIA driver was found (" + vendor_.cuda.library.why() + ")";
    return;
  }
  const activity::Collector::Options wanted{options_.settings.merge_graphs && graph_trace_is_safe(vendor_.cuda),
                                            options_.synchronization, options_.may_share_cupti};
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
  device::RegionTimer::current().store(&vendor_.region_timer, std::memory_order_release);
}

void Session::open() {
  if (left_behind()) {
    return;  // whoever held the lock stayed behind, too
  }
  const std::lock_guard calls(calls_);
  if (!stopped_) {
    decoder_->window().open_ns.store(base::Clock::process().now_ns(), std::memory_order_release);
  }
}

std::unique_ptr<store::Store> Session::cut() {
  if (left_behind()) {
    return nullptr;
  }
  const std::lock_guard calls(calls_);
  return stopped_ ? nullptr : request(Request::Cut);
}

std::unique_ptr<store::Store> Session::stop() {
  if (left_behind()) {
    return nullptr;
  }
  const std::lock_guard calls(calls_);
  if (stopped_) {
    return nullptr;
  }
  std::unique_ptr<store::Store> last;
  std::exception_ptr error;
  try {
    last = request(Request::Stop);
  } catch (...) {
    error = std::current_exception();
  }
  thread_->join();
  stopped_ = true;
  base::listening.store(0, std::memory_order_relaxed);
  device::RegionTimer::current().store(nullptr, std::memory_order_relaxed);
  if (collecting_) {
    // Buffers come home, so that the next session finds them; what they hold is of no window.
    vendor_.collector.flush(true);
    vendor_.collector.stop();
    activity::BufferPool& pool = vendor_.collector.buffers();
    for (activity::BufferPool::Buffer* buffer = pool.take_completed(); buffer != nullptr;) {
      activity::BufferPool::Buffer* next = buffer->next;
      pool.release(buffer);
      buffer = next;
    }
  }
  active_session.store(nullptr);
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  return last;
}

std::unique_ptr<store::Store> Session::request(Request what) {
  attribution::Window& window = decoder_->window();
  const int64_t now_ns = base::Clock::process().now_ns();
  const bool is_open = window.open_ns.load() <= now_ns;
  if (is_open) {
    window.close_ns.store(now_ns, std::memory_order_release);
  } else if (what == Request::Cut) {
    return nullptr;
  }
  std::unique_lock lock(mutex_);
  request_ = what;
  base::EventLogs::process().wake().release();
  done_.wait(lock, [this] { return request_ == Request::None; });
  if (error_ != nullptr) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  return std::move(result_);
}

void Session::run() {
  pthread_setname_np(pthread_self(), "gpuscope");
  decode_cpu_start_ns_ = thread_cpu_ns();
  while (true) {
    auto& wake = base::EventLogs::process().wake();
    if (wake.try_acquire_for(kNap)) {
      while (wake.try_acquire()) {  // a writer without room calls at every event; one look is enough
      }
    }
    Request wanted = Request::None;
    {
      const std::lock_guard lock(mutex_);
      wanted = request_;
    }
    if (wanted == Request::None) {
      decode_once(true);
      continue;
    }
    std::unique_ptr<store::Store> store;
    std::exception_ptr error;
    const int64_t open_ns = decoder_->window().open_ns.load();
    const int64_t close_ns = decoder_->window().close_ns.load();
    try {
      store = close_ns != INT64_MAX ? end_window(open_ns, close_ns) : nullptr;
    } catch (...) {
      error = std::current_exception();
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

std::unique_ptr<store::Store> Session::end_window(int64_t open_ns, int64_t close_ns) {
  std::unique_ptr<store::Store> store;
  try {
    settle();
    const Facts facts = gather_facts(open_ns, close_ns);
    store = decoder_->finish(close_ns);
    write_facts(*store, facts, vendor_.cuda, vendor_.collector.cupti());
  } catch (...) {
    failed_ = true;
    decoder_->window().open_ns.store(INT64_MAX);
    decoder_->window().close_ns.store(INT64_MAX);
    if (store == nullptr) {
      throw;
    }  // else its rows are worth more than what it would have said about itself
  }
  if (failed_) {  // events are missing from what the threads' regions are told from
    make_decoder();
    failed_ = false;
  }
  return store;
}

void Session::decode_once(bool flush) {
  const auto before = std::chrono::steady_clock::now();
  activity::Collector& collector = vendor_.collector;
  if (collecting_) {
    if (flush) {
      const int64_t cpu_ns = thread_cpu_ns();
      collector.flush(false);
      flush_cpu_ns_ += thread_cpu_ns() - cpu_ns;
    }
    collector.buffers().provide(kReadyBuffers);
  }
  // What this thread throws would end the program.
  try {
    if (failed_) {
      decoder_->discard(collector.buffers());
    } else {
      if (const uint64_t unloads = collector.unloads(); unloads != unloads_) {
        unloads_ = unloads;
        decoder_->recording().dictionaries.forget_pointers();
      }
      decoder_->decode(collector.buffers());
      read_gpu_spans();
    }
  } catch (const std::exception&) {
    failed_ = true;
  }
  const int64_t took_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - before).count();
  decode_lag_max_ns_ = std::max(decode_lag_max_ns_, took_ns);
}

void Session::settle() {
  if (options_.settings.by_time) {
    return settle_without_callbacks();
  }
  const attribution::GpuRecords& gpu_records = decoder_->gpu_records();
  const std::chrono::nanoseconds limit(options_.settle_limit_ns);
  const auto start = std::chrono::steady_clock::now();
  auto newest = start;  // when something came last
  uint64_t records = gpu_records.records();
  while (true) {
    decode_once(true);
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(records, gpu_records.records()) != gpu_records.records()) {
      newest = now;
    }
    const bool kernels = collecting_ && decoder_->awaits_kernels();
    const bool spans = !decoder_->recording().gpu_spans.empty();
    if (failed_) {
      return;
    }
    if (!kernels && !spans) {
      const auto grace = !collecting_                     ? 0ms
                         : gpu_records.has_short_graphs() ? kShortGraphGrace
                         : gpu_records.has_new_graphs()   ? kNewGraphGrace
                         : decoder_->awaits_copies()      ? kCopyGrace
                                                          : 0ms;
      if (now - newest >= grace) {
        return;
      }
    }
    if (now - start >= limit) {
      break;
    }
    std::this_thread::sleep_for(kSettleNap);
  }
  // What still runs is handed over unfinished, and counted so.
  vendor_.collector.flush(true);
  decoder_->gpu_records().set_forced(true);
  decode_once(false);
  decoder_->gpu_records().set_forced(false);
}

void Session::settle_without_callbacks() {
  // Nobody counts the launches here: all is in when CUPTI has nothing more to give for a while.
  int quiet = 0;
  const std::chrono::nanoseconds limit(options_.settle_limit_ns);
  const auto start = std::chrono::steady_clock::now();
  while (quiet < kQuietRounds && std::chrono::steady_clock::now() - start < limit) {
    const uint64_t records = decoder_->gpu_records().records();
    decode_once(true);
    quiet = decoder_->gpu_records().records() == records ? quiet + 1 : 0;
    std::this_thread::sleep_for(kQuietNap);
  }
  vendor_.collector.flush(true);
  for (int round = 0; round < kQuietRounds && vendor_.collector.buffers().lent() != 0; ++round) {
    std::this_thread::sleep_for(kQuietNap);
  }
  decode_once(false);
}

void Session::read_gpu_spans() {
  attribution::Recording& recording = decoder_->recording();
  std::vector<attribution::GpuSpan> running;
  for (const attribution::GpuSpan& span : recording.gpu_spans) {
    const device::RegionTimer::Reading reading = vendor_.region_timer.read(span.pair);
    if (reading.state == device::RegionTimer::State::Running) {
      running.push_back(span);
    } else if (reading.state == device::RegionTimer::State::Done && span.path != store::kNone) {
      recording.add_gpu_time(span, reading.duration_ns);
    }
  }
  recording.gpu_spans.swap(running);
}

Facts Session::gather_facts(int64_t open_ns, int64_t close_ns) {
  Facts facts;
  const attribution::Settings& settings = options_.settings;
  facts.mode = settings.mode;
  facts.merged_graphs = settings.merge_graphs;
  facts.tier = tier_;
  facts.tier_reason = tier_reason_;
  facts.notes = notes_ + (failed_ ? "memory ran out while records were decoded: what came after is missing\n" : "");
  facts.open_ns = open_ns;
  facts.close_ns = close_ns;
  facts.counters = decoder_->recording().counters;
  facts.log_dropped = decoder_->log_dropped();
  facts.decode_lag_max_ns = decode_lag_max_ns_;
  facts.flush_cpu_ns = std::exchange(flush_cpu_ns_, 0);
  facts.decode_cpu_ns = thread_cpu_ns() - decode_cpu_start_ns_ - facts.flush_cpu_ns;
  if (collecting_) {
    const uint64_t dropped = vendor_.collector.dropped();
    facts.dropped = dropped - dropped_start_;
    facts.pool_exhausted = vendor_.collector.buffers().exhausted() - exhausted_start_;
    facts.foreign_buffers = vendor_.collector.buffers().foreign() - foreign_start_;
    dropped_start_ = dropped;
    exhausted_start_ = vendor_.collector.buffers().exhausted();
    foreign_start_ = vendor_.collector.buffers().foreign();
    facts.cupti_broke = vendor_.collector.broken();
  }
  decode_cpu_start_ns_ = thread_cpu_ns();
  decode_lag_max_ns_ = 0;
  return facts;
}

}  // namespace gpuscope::session
