// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/recorder.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;

constexpr auto kSettleNap = 200us;
// A copy between host buffers brings no record: copies are waited for until nothing has come for this long, in which a
// device takes in some gigabytes.
constexpr auto kCopyGrace = 250ms;
// Graphs do not tell how many nodes will report: those launched once, and those of which fewer nodes came than from an
// earlier launch, are waited for until nothing has come for this long.
constexpr auto kNewGraphGrace = 20ms;
constexpr auto kShortGraphGrace = 250ms;
constexpr auto kQuietNap = 5ms;
constexpr int kQuietRounds = 4;
constexpr unsigned kReadyBuffers = 6;

int64_t thread_cpu_ns() {
  timespec value{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &value);
  return value.tv_sec * 1'000'000'000LL + value.tv_nsec;
}

}  // namespace

Recorder::Recorder(Vendor& vendor, const Options& options)
    : vendor_(vendor),
      options_(options),
      main_thread_(static_cast<uint64_t>(syscall(SYS_gettid))),
      exhausted_start_(vendor.collector.buffers().exhausted()),
      foreign_start_(vendor.collector.buffers().foreign()) {}

void Recorder::begin(bool collecting) {
  collecting_ = has_collected_ = collecting;
  if (collecting_) {
    clock_ = ClockMap::detect(vendor_.collector.cupti());
  }
  make_decoder();
  decoder_->discard_logs();
}

void Recorder::enter_thread() { decode_cpu_start_ns_ = thread_cpu_ns(); }

void Recorder::make_decoder() {
  decoder_ = std::make_unique<attribution::Decoder>(options_.settings, vendor_.collector.cupti(), main_thread_);
  decoder_->gpu_records().set_clock(clock_.to_ns);
  decoder_->gpu_records().set_names_libraries(vendor_.collector.names_libraries());
}

std::unique_ptr<store::Store> Recorder::end_window(const Facts& about) {
  std::unique_ptr<store::Store> store;
  try {
    settle();
    const Facts facts = gather_facts(about);
    store = decoder_->finish(about.close_ns);
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

void Recorder::pass(bool flush) {
  const auto before = std::chrono::steady_clock::now();
  activity::Collector& collector = vendor_.collector;
  if (collecting_) {
    collector.buffers().provide(kReadyBuffers);  // first of all: launches wait for none
    if (flush) {
      const int64_t cpu_ns = thread_cpu_ns();
      collector.flush(false);
      flush_cpu_ns_ += thread_cpu_ns() - cpu_ns;
    }
  }
  // What this thread throws would end the program.
  try {
    if (failed_) {
      decoder_->discard(collector.buffers());
    } else {
      if (const uint64_t unloads = collector.unloads(); unloads != unloads_) {
        unloads_ = unloads;
        decoder_->state().dictionaries.forget_pointers();
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

void Recorder::let_go_of_gpu() {
  settle();
  vendor_.collector.flush(true);
  pass(false);
  vendor_.collector.stop();
  collecting_ = false;
}

void Recorder::settle() {
  if (options_.settings.by_time) {
    return settle_without_callbacks();
  }
  const attribution::GpuRecords& gpu_records = decoder_->gpu_records();
  const std::chrono::nanoseconds limit(options_.settle_limit_ns);
  const auto start = std::chrono::steady_clock::now();
  auto newest = start;  // when something came last
  uint64_t records = gpu_records.records();
  while (true) {
    pass(true);
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(records, gpu_records.records()) != gpu_records.records()) {
      newest = now;
    }
    const bool kernels = collecting_ && decoder_->awaits_kernels();
    const bool spans = !decoder_->state().gpu_spans.empty();
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
  pass(false);
  decoder_->gpu_records().set_forced(false);
}

void Recorder::settle_without_callbacks() {
  // Nobody counts the launches here: all is in when CUPTI has nothing more to give for a while.
  int quiet = 0;
  const std::chrono::nanoseconds limit(options_.settle_limit_ns);
  const auto start = std::chrono::steady_clock::now();
  while (quiet < kQuietRounds && std::chrono::steady_clock::now() - start < limit) {
    const uint64_t records = decoder_->gpu_records().records();
    pass(true);
    quiet = decoder_->gpu_records().records() == records ? quiet + 1 : 0;
    std::this_thread::sleep_for(kQuietNap);
  }
  vendor_.collector.flush(true);
  for (int round = 0; round < kQuietRounds && vendor_.collector.buffers().lent() != 0; ++round) {
    std::this_thread::sleep_for(kQuietNap);
  }
  pass(false);
}

void Recorder::read_gpu_spans() {
  attribution::DecodeState& state = decoder_->state();
  std::vector<attribution::GpuSpan> running;
  for (const attribution::GpuSpan& span : state.gpu_spans) {
    const timing::RegionTimer::Reading reading = vendor_.region_timer.read(span.pair);
    if (reading.state == timing::RegionTimer::State::Running) {
      running.push_back(span);
    } else if (reading.state == timing::RegionTimer::State::Done && span.path != store::kNone) {
      state.add_gpu_time(span, reading.duration_ns);
    }
  }
  state.gpu_spans.swap(running);
}

Facts Recorder::gather_facts(Facts facts) {
  const attribution::Settings& settings = options_.settings;
  facts.mode = settings.mode;
  facts.merged_graphs = settings.merge_graphs;
  facts.notes += clock_.note.empty() ? "" : clock_.note + "\n";
  const std::string& memory_why = vendor_.collector.memory_why();
  if (has_collected_ && !memory_why.empty()) {
    facts.notes += "memory taken from the driver is not recorded, or not all of it: " + memory_why + "\n";
  }
  facts.notes += (failed_ ? "memory ran out while records were decoded: what came after is missing\n" : "");
  facts.counters = decoder_->state().counters;
  facts.log_dropped = decoder_->log_dropped();
  facts.gpu_off = decoder_->window().gpu.off_until(facts.close_ns);
  facts.regions_off = decoder_->window().regions.off_until(facts.close_ns);
  facts.decode_lag_max_ns = decode_lag_max_ns_;
  facts.flush_cpu_ns = std::exchange(flush_cpu_ns_, 0);
  facts.decode_cpu_ns = thread_cpu_ns() - decode_cpu_start_ns_ - facts.flush_cpu_ns;
  if (std::exchange(has_collected_, collecting_)) {
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
