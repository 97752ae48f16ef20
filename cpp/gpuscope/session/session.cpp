// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/session.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "gpuscope/base/names.h"
#include "gpuscope/session/clock_map.h"

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;

// How long the decode thread naps: records are at most this old when they are decoded, and a thread's event log holds
// a million events, far more than this many milliseconds bring.
constexpr auto kNap = 100ms;
constexpr auto kSettleNap = 200us;
constexpr auto kSettleLimit = 2s;
// A copy between host buffers brings no record: once all kernels are in, copies are waited for only this long.
constexpr auto kCopyGrace = 5ms;
constexpr auto kQuietNap = 5ms;
constexpr int kQuietRounds = 4;
constexpr unsigned kReadyBuffers = 4;

std::atomic<Session*> active_session{nullptr};
std::atomic<bool> is_forked_child{false};

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { base::Names::process().hold(); }, [] { base::Names::process().let_go(); },
                   [] {
                     base::Names::process().let_go();
                     if (active_session.exchange(nullptr) != nullptr) {
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

Session::Session(Vendor& vendor, const Options& options) : vendor_(vendor), options_(options) {
  Session* expected = nullptr;
  if (!active_session.compare_exchange_strong(expected, this)) {
    throw base::InvalidArgument(
        "a profiler is already running in this process: stop it before starting another, or use one with a schedule");
  }
  try {
    watch_forks();
    base::Clock::process();
    base::EventLogs::current();  // the starting thread's log comes first: others inherit its regions
    choose_tier();
    options_.settings.by_time = vendor_.collector.tier() == activity::Tier::Shared;
    decoder_ = std::make_unique<attribution::Decoder>(options_.settings, vendor_.collector.cupti(),
                                                      static_cast<uint64_t>(syscall(SYS_gettid)));
    decoder_->discard_logs();
    if (collecting_) {
      ClockMap clock = ClockMap::detect(vendor_.collector.cupti());
      decoder_->gpu_records().set_clock(std::move(clock.to_ns));
      notes_ += clock.note.empty() ? "" : clock.note + "\n";
    }
    const bool gpu_time = device::RegionTimer::current().load() != nullptr;
    static std::atomic<uint32_t> epochs{0};
    const uint32_t flags = base::kListenRegions | (gpu_time ? base::kListenGpuTime : 0U);
    base::listening.store((++epochs << base::kListenBits) | flags, std::memory_order_release);
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    base::listening.store(0);
    vendor_.collector.stop();
    active_session.store(nullptr);
    throw;
  }
}

Session::~Session() {
  if (forked()) {
    thread_.detach();  // it stayed behind in the parent
    return;
  }
  stop();
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
  device::RegionTimer::current().store(&vendor_.region_timer, std::memory_order_release);
}

void Session::open() {
  const std::lock_guard calls(calls_);
  if (!stopped_) {
    decoder_->window().open_ns.store(base::Clock::process().now_ns(), std::memory_order_release);
  }
}

std::unique_ptr<store::Store> Session::cut() {
  const std::lock_guard calls(calls_);
  return stopped_ ? nullptr : request(Request::Cut);
}

std::unique_ptr<store::Store> Session::stop() {
  const std::lock_guard calls(calls_);
  if (stopped_ || forked()) {
    return nullptr;
  }
  std::unique_ptr<store::Store> last = request(Request::Stop);
  thread_.join();
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
  return std::move(result_);
}

void Session::run() {
  pthread_setname_np(pthread_self(), "gpuscope");
  decode_cpu_start_ns_ = thread_cpu_ns();
  exhausted_start_ = vendor_.collector.buffers().exhausted();
  foreign_start_ = vendor_.collector.buffers().foreign();
  while (true) {
    base::EventLogs::process().wake().try_acquire_for(kNap);
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
    const int64_t open_ns = decoder_->window().open_ns.load();
    const int64_t close_ns = decoder_->window().close_ns.load();
    if (close_ns != INT64_MAX) {
      settle();
      const Facts facts = gather_facts(open_ns, close_ns);
      store = decoder_->finish(close_ns);
      write_facts(*store, facts, vendor_.cuda, vendor_.collector.cupti());
    }
    {
      const std::lock_guard lock(mutex_);
      result_ = std::move(store);
      request_ = Request::None;
    }
    done_.notify_all();
    if (wanted == Request::Stop) {
      return;
    }
  }
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
    if (const uint64_t unloads = collector.unloads(); unloads != unloads_) {
      unloads_ = unloads;
      decoder_->recording().dictionaries.forget_pointers();
    }
  }
  decoder_->decode(collector.buffers());
  read_gpu_spans();
  const int64_t took_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - before).count();
  decode_lag_max_ns_ = std::max(decode_lag_max_ns_, took_ns);
}

void Session::settle() {
  if (options_.settings.by_time) {
    return settle_without_callbacks();
  }
  const auto start = std::chrono::steady_clock::now();
  auto kernels_in = start + kSettleLimit;
  while (true) {
    decode_once(true);
    const auto now = std::chrono::steady_clock::now();
    const bool kernels = collecting_ && (decoder_->awaits_kernels() || !decoder_->gpu_records().graphs_settled());
    const bool spans = !decoder_->recording().gpu_spans.empty();
    if (!kernels && !spans) {
      kernels_in = std::min(kernels_in, now);
      if (!collecting_ || !decoder_->awaits_copies() || now - kernels_in >= kCopyGrace) {
        return;
      }
    }
    if (now - start >= kSettleLimit) {
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
  const auto start = std::chrono::steady_clock::now();
  while (quiet < kQuietRounds && std::chrono::steady_clock::now() - start < kSettleLimit) {
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
      recording.store->region_gpu.append({span.region, span.path, reading.duration_ns});
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
  facts.notes = notes_;
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
