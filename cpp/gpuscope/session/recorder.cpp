// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/event_log.h"
#include "gpuscope/base/file.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/driver/devices.h"
#include "gpuscope/nvtx/names.h"

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstPollInterval = 200us;
constexpr std::chrono::nanoseconds kLastPollInterval = 5ms;
// CUPTI delivers a buffer when all of its kernels have ended, which may never happen while threads continue launching.
// After this wait, recording stops. Not at once, as a thread may have begun a launch that it has not logged yet.
constexpr auto kBusyWait = 5ms;
// A copy between host buffers has no record. So copies are awaited until no record has arrived for this long. A device
// copies some gigabytes in that time.
constexpr auto kCopyGrace = 250ms;
// The number of records of a graph launch is unknown. Graphs launched once, and graphs with fewer nodes than in an
// earlier launch, are awaited until no record has arrived for this long.
constexpr auto kNewGraphGrace = 20ms;
constexpr auto kShortGraphGrace = 250ms;
constexpr auto kQuietInterval = 5ms;
constexpr int kQuietRounds = 4;
// During the wait for a flush, delivered records are decoded at this interval.
constexpr auto kDecodeInterval = 1ms;

// Two clocks with the same epoch differ by the wall clock's slewing since start. Different epochs differ by far more.
constexpr int64_t kSameEpochNs = 1'000'000;

// A window with fewer launches does not justify the launches that measure the cost.
constexpr uint64_t kWorthMeasuring = 1'000;
// Calls of other threads in some ms at the end of a window. More would delay the measurement.
constexpr uint64_t kManyCalls = 16;
// The number of attempts on a busy GPU: each attempt may leave a kernel and its objects behind its work.
constexpr int kMostFailures = 3;

std::string command_line() {
  std::string text = base::read_file("/proc/self/cmdline");
  for (char& character : text) {
    character = character == '\0' ? ' ' : character;
  }
  return text;
}

// Names given through NVTX take precedence over the system's.
void name_threads(store::Store& store) {
  for (std::size_t row = 0; row < store.thread.size(); ++row) {
    if (const uint32_t name = nvtx::thread_name(store.thread.system_id[row]); name != 0) {
      store.thread.name[row] = store.strings.intern(base::Names::process().text(name));
    }
  }
}

/// A folder of which old segments are deleted is a ring.
std::string mode_name(const Options& options) {
  const bool is_ring = options.spools && options.spool.max_age.count() > 0;
  const attribution::Mode mode = is_ring ? attribution::Mode::Ring : options.settings.mode;
  return std::string(attribution::kModeNames[static_cast<std::size_t>(mode)]);
}

/// Adds facts about the process, the libraries and the clocks.
void add_environment(Facts& facts, const driver::Cuda& cuda, const driver::Cupti& cupti) {
  facts.add("process.id", getpid());
  facts.add("process.argv", command_line());
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  facts.add("process.host", host.data());
  if (int version = 0; cuda.driver_get_version != nullptr && cuda.driver_get_version(&version) == 0) {
    facts.add("cuda.driver_version", std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10));
  }
  if (cupti.version != 0) {
    facts.add("cupti.version", cupti.version);
    facts.add("cupti.path", cupti.library.path());
  }
  const base::Anchor anchor = base::take_anchor();
  facts.add("clock.anchor", std::to_string(anchor.ticks) + " " + std::to_string(anchor.realtime_ns) + " " +
                                std::to_string(anchor.monotonic_ns));
  facts.add("clock.drift_ns", base::Clock::process().to_ns(anchor.ticks) - anchor.realtime_ns);
}

/// Counts what recording cost, and adds the cost of each event.
void add_costs(Facts& facts, const Costs& costs) {
  attribution::Counters& counters = facts.counters;
  const Overhead overhead = overhead_of(counters, costs);
  counters.overhead_ns = overhead.own_ns + overhead.cupti_ns;
  counters.overhead_own_ns = overhead.own_ns;
  counters.overhead_cupti_ns = overhead.cupti_ns;
  counters.calibration_ns = costs.took_ns;
  const EventCosts of_each = event_costs_of(counters, costs);
  facts.add("audit.launch_cost_ns", of_each.launch_ns);
  facts.add("audit.copy_cost_ns", of_each.copy_ns);
  facts.add("audit.call_cost_ns", of_each.call_ns);
  facts.add("audit.region_cost_ns", of_each.region_ns);
  const bool is_measured = costs.is_measured || overhead.cupti_ns == 0;
  facts.add("audit.overhead_source", is_measured ? "measured" : "estimated: " + costs.why_not);
}

/// Writes the facts as info rows.
void write(const Facts& facts, store::Store& store) {
  for (const auto& [key, text] : facts.rows) {
    store.set_info(key, text);
  }
  store.set_info("session.notes", facts.notes);
#define GPUSCOPE_ROW(type, name, description) store.set_info("audit." #name, std::to_string(facts.counters.name));
  GPUSCOPE_AUDIT(GPUSCOPE_ROW)
#undef GPUSCOPE_ROW
}

/// Writes what a segment has as differences: the record of a launch may be in the next segment.
void write_differences(const Facts& facts, store::Store& store) {
  const attribution::Counters& counts = facts.counters;
  const auto difference = [](uint64_t one, uint64_t other) {
    return static_cast<int64_t>(one) - static_cast<int64_t>(other);
  };
  store.set_info("audit.missing", std::to_string(difference(counts.launches, counts.matched) +
                                                 difference(counts.graph_launches, counts.matched_graphs)));
  store.set_info("audit.copies_without_record", std::to_string(difference(counts.copies, counts.matched_copies)));
}

}  // namespace

void write_devices(store::Store& store, const driver::Cuda& cuda) {
  int count = 0;
  // Fails without cuInit. Only the program may call it, as a process cannot use CUDA in forked children afterwards.
  if (cuda.device_get_count == nullptr || cuda.device_get_count(&count) != 0) {
    return;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    driver::CuDevice device = 0;
    std::array<char, 256> name{};
    driver::CuUuid uuid{};
    int processors = 0, major = 0, minor = 0;
    size_t bytes = 0;
    if (cuda.device_get(&device, ordinal) != 0) {
      continue;
    }
    cuda.device_get_name(name.data(), static_cast<int>(name.size()), device);
    cuda.device_get_uuid(&uuid, device);
    cuda.device_get_attribute(&processors, driver::kMultiprocessors, device);
    cuda.device_get_attribute(&major, driver::kCapabilityMajor, device);
    cuda.device_get_attribute(&minor, driver::kCapabilityMinor, device);
    cuda.device_total_mem(&bytes, device);
    store.device.append({static_cast<uint32_t>(ordinal), store.strings.intern(name.data()),
                         store.strings.intern(driver::uuid_text(uuid)), static_cast<uint32_t>(processors),
                         static_cast<uint32_t>(major), static_cast<uint32_t>(minor), bytes});
  }
}

bool has_context(const driver::Cuda& cuda) {
  int count = 0;
  if (cuda.device_get_count == nullptr || cuda.device_get_count(&count) != 0) {
    return false;  // cuInit has not been called
  }
  driver::CuContext current = nullptr;
  if (cuda.context_get_current != nullptr && cuda.context_get_current(&current) == 0 && current != nullptr) {
    return true;
  }
  return !driver::devices_in_use(cuda).empty();
}

ClockMap ClockMap::detect(const driver::Cupti& cupti) {
  const base::Clock& clock = base::Clock::process();
  uint64_t stamp = 0;
  const uint64_t before = base::ticks();
  if (cupti.get_timestamp == nullptr || cupti.get_timestamp(&stamp) != driver::kCuptiSuccess) {
    return {};
  }
  const uint64_t after = base::ticks();
  const int64_t now_ns = clock.to_ns(before + (after - before) / 2);
  if (std::llabs(static_cast<int64_t>(stamp) - now_ns) < kSameEpochNs) {
    return {};
  }
  if (std::llabs(clock.to_ns(stamp) - now_ns) < kSameEpochNs) {  // torch.profiler's clock
    return {[&clock](uint64_t at) { return clock.to_ns(at); },
            "another CUPTI client stamps records with raw counter ticks"};
  }
  const int64_t offset_ns = now_ns - static_cast<int64_t>(stamp);
  return {[offset_ns](uint64_t at) { return static_cast<int64_t>(at) + offset_ns; },
          "another CUPTI client stamps records with a clock of its own, read as ns from a shifted epoch"};
}

Flusher::Flusher(activity::Collector& collector, GpuClockReader* clocks, std::chrono::nanoseconds clock_wait)
    : collector_(collector),
      clocks_(clocks),
      clock_wait_(clock_wait),
      thread_(base::start_thread("a recording", [this] { run(); })) {}

Flusher::~Flusher() {
  ends_thread_.store(true, std::memory_order_relaxed);
  begins_.release();
  thread_.join();
}

void Flusher::begin() noexcept {
  if (wait(std::chrono::nanoseconds::zero())) {
    under_way_ = true;
    begins_.release();
  }
}

bool Flusher::wait(std::chrono::nanoseconds limit) noexcept {
  under_way_ = under_way_ && !ended_.try_acquire_for(limit);
  return !under_way_;
}

void Flusher::run() noexcept {
  pthread_setname_np(pthread_self(), "gpuscope-flush");
  while (true) {
    begins_.acquire();
    if (ends_thread_.load(std::memory_order_relaxed)) {
      return;
    }
    const int64_t cpu_ns = base::thread_cpu_ns();
    const auto began = std::chrono::steady_clock::now();
    if (clocks_ != nullptr) {
      clocks_->read(clock_wait_);
    }
    collector_.flush(false);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
    cpu_ns_.fetch_add(base::thread_cpu_ns() - cpu_ns, std::memory_order_relaxed);
    longest_ns_.store(std::max<int64_t>(longest_ns_.load(std::memory_order_relaxed), took.count()));
    ended_.release();
    base::EventLog::wake().release();
  }
}

Recorder::Recorder(Vendor& vendor, const Options& options)
    : vendor_(vendor),
      options_(options),
      main_thread_(static_cast<uint64_t>(syscall(SYS_gettid))),
      exhausted_start_(vendor.collector.buffers().exhausted()),
      foreign_start_(vendor.collector.buffers().foreign()) {}

bool Recorder::read_gpu_clocks() {
  auto reader = std::make_unique<GpuClockReader>(vendor_.cuda);
  clock_reader_ = reader.get();
  sources_.push_back(std::move(reader));
  return clock_reader_->read(options_.clock_wait) && clock_reader_->has_clocks();
}

void Recorder::begin(bool collecting) {
  if (!collecting || !vendor_.collector.is_raw()) {
    clock_reader_ = nullptr;
    sources_.clear();
  }
  collecting_ = has_collected_ = collecting;
  if (collecting_ || !options_.counters.metrics.empty()) {
    clock_ = ClockMap::detect(vendor_.collector.cupti());
  }
  make_decoder();
  attribution::Decoder::discard_logs();
  const activity::CompletedBuffers late(vendor_.collector.buffers());  // of an earlier session
}

void Recorder::start_flusher() {
  if (collecting_) {
    flusher_ = std::make_unique<Flusher>(vendor_.collector, clock_reader_, options_.clock_wait / 10);
  }
}

void Recorder::make_sources() {
  if (!options_.counters.metrics.empty()) {
    sources_.push_back(sample_counters(vendor_.cuda, vendor_.collector.cupti(), options_.counters));
  }
  if (options_.device_interval.count() > 0) {
    sources_.push_back(sample_devices(options_.nvml, vendor_.cuda, options_.device_interval));
  }
  sources_.push_back(clock_anchors());
  sources_.push_back(python_samples());
}

void Recorder::open(const std::string& folder) {
  std::unique_ptr<Spool> opened;
  if (!folder.empty()) {
    SpoolOptions options = options_.spool;
    options.folder = folder;
    opened = std::make_unique<Spool>(options);
  }
  for (const auto& source : sources_) {
    source->start();
  }
  const int64_t now_ns = base::Clock::process().now_ns();
  if (window().open_ns.load() == INT64_MAX) {  // the decode thread reads neither now
    begins_ns_ = now_ns;
    counted_ns_ = 0;
    lost_rows_ = 0;
    spool_ = std::move(opened);
  }
  window().open_ns.store(now_ns, std::memory_order_release);
  for (const auto& source : sources_) {
    source->begin();
  }
}

void Recorder::enter_thread() {
  if (!std::exchange(vendor_.knows_event_cost, true)) {
    vendor_.costs.event_ns = measure_event();
  }
  base::prepare_to_throw();
  decode_cpu_start_ns_ = base::thread_cpu_ns();
}

void Recorder::make_decoder() {
  decoder_ = std::make_unique<attribution::Decoder>(options_.settings, vendor_.collector.cupti(), main_thread_);
  decoder_->gpu_records().set_clock(clock_.to_ns);
  decoder_->gpu_records().set_names_libraries(vendor_.collector.names_libraries());
  take_sources();
}

void Recorder::take_sources() {
  for (const auto& source : sources_) {
    source->take(*decoder_);
  }
}

std::unique_ptr<store::Store> Recorder::end_window(Facts facts, std::chrono::nanoseconds wait_limit, bool last) {
  std::unique_ptr<store::Store> store;
  try {
    for (const auto& source : sources_) {
      source->end(last);
    }
    wait_for_gpu_work(wait_limit, last);
    for (const auto& source : sources_) {
      source->finish();
    }
    take_sources();
    const bool is_idle = collecting_ && !failed_ && !awaits_gpu_work() && !decoder_->has_open_launches();
    gather(facts, window().close_ns.load());
    const std::unique_ptr<Spool> spool = std::move(spool_);
    store = decoder_->finish(window().close_ns.load());
    if (last && is_idle && facts.counters.launches >= kWorthMeasuring) {
      measure_launches(facts.counters.later_calls >= kManyCalls);
    }
    add_costs(facts, vendor_.costs);
    write(facts, *store);
    write_devices(*store, vendor_.cuda);
    name_threads(*store);
    if (spool != nullptr) {
      write_differences(facts, *store);
      if (!spool->finish(*store, *store)) {
        store->set_info("session.spool_error", spool->why().empty() ? "the disk is too slow" : spool->why());
      }
    }
  } catch (...) {
    spool_.reset();
    failed_ = true;
    decoder_->window().open_ns.store(INT64_MAX);
    decoder_->window().close_ns.store(INT64_MAX);
    if (store == nullptr) {
      try {  // the next window is to be recorded
        make_decoder();
        failed_ = false;
      } catch (const std::exception&) {
      }
      throw;
    }  // otherwise the rows have no audit
  }
  if (failed_) {  // events are missing, so the threads' open regions are unknown
    make_decoder();
    failed_ = false;
  }
  return store;
}

// Never waits for the disk.
void Recorder::write_segment(int64_t at_ns) {
  constexpr int64_t kCountsNs = 1'000'000'000;
  store::Store& tables = decoder_->state().dictionaries.tables();
  if (at_ns - counted_ns_ >= kCountsNs) {
    counted_ns_ = at_ns;
    Facts facts;
    facts.add("session.mode", mode_name(options_));
    facts.add("session.start_ns", begins_ns_);
    facts.add("session.stop_ns", at_ns);
    facts.counters = decoder_->state().counters;
    add_lost_rows(facts);
    count_missing(facts);
    write(facts, tables);
    write_differences(facts, tables);
    decoder_->state().collectives.write(*decoder_->state().store);
  }
  tables.set_info("session.stop_ns", std::to_string(at_ns));  // the end of regions that stay open
  switch (spool_->write(*decoder_->state().store, tables, at_ns)) {
    case Spool::State::Writing:
      break;
    case Spool::State::SegmentIsFull:
      end_segment(at_ns);
      break;
    case Spool::State::MemoryIsFull:
      lose_segment(at_ns);
      break;
  }
}

void Recorder::end_segment(int64_t at_ns) {
  attribution::DecodeState& state = decoder_->state();
  const std::vector<uint32_t> open_calls = decoder_->complete_rows(at_ns);
  store::Store& tables = state.dictionaries.tables();
  Facts facts;
  gather(facts, at_ns);
  add_costs(facts, vendor_.costs);
  write(facts, tables);
  write_differences(facts, tables);
  tables.device.truncate(0);
  write_devices(tables, vendor_.cuda);
  name_threads(tables);
  if (spool_->end_segment(*state.store, tables)) {
    decoder_->begin_segment(at_ns, open_calls);
    begins_ns_ = at_ns;
    counted_ns_ = 0;
  }
}

void Recorder::lose_segment(int64_t at_ns) {
  attribution::DecodeState& state = decoder_->state();
  uint64_t rows = 0;
  state.store->each_table(
      [&]<class Table>(const Table& table) { rows += Table::kInfo.role == store::Role::Event ? table.size() : 0; });
  spool_->lose();
  decoder_->begin_segment(at_ns, decoder_->complete_rows(at_ns));
  lost_rows_ += rows;
  const uint32_t why = state.dictionaries.string(spool_->why().empty() ? "the disk is too slow" : spool_->why());
  state.store->loss.append({begins_ns_, at_ns - begins_ns_, rows, why});
  begins_ns_ = at_ns;
  counted_ns_ = 0;
}

void Recorder::poll(bool flush) {
  const auto before = std::chrono::steady_clock::now();
  const int64_t began_ns = base::Clock::process().now_ns();
  activity::Collector& collector = vendor_.collector;
  if (flusher_ != nullptr && flush) {
    flusher_->begin();
  }
  // An exception out of this thread would end the program.
  try {
    if (failed_) {
      decoder_->discard(collector.buffers());
    } else {
      if (const uint64_t unloads = collector.unloads(); unloads != unloads_) {
        unloads_ = unloads;
        decoder_->state().dictionaries.forget_pointers();
      }
      take_sources();
      decoder_->decode(collector.buffers());
      read_gpu_spans();
      if (flush && window().open_ns.load() < began_ns && window().close_ns.load() == INT64_MAX && spool_ != nullptr) {
        write_segment(began_ns);
      }
      if (flush) {
        ShownRegion::process().show(decoder_->innermost_region());
      }
    }
  } catch (const std::exception&) {
    failed_ = true;
  }
  const int64_t took_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - before).count();
  decode_lag_max_ns_ = std::max(decode_lag_max_ns_, took_ns);
}

// Decodes meanwhile: CUPTI may need empty buffers to finish the flush.
void Recorder::flush_and_decode() {
  if (flusher_ != nullptr) {
    while (!flusher_->wait(kDecodeInterval)) {  // an earlier flush may have missed the newest records
      poll(false);
    }
    flusher_->begin();
    while (!flusher_->wait(kDecodeInterval)) {
      poll(false);
    }
  }
  poll(false);
}

void Recorder::release_cupti() {
  wait_for_gpu_work(kGpuWaitLimit, true);
  for (const auto& source : sources_) {
    source->release_cupti();
  }
  if (flusher_ != nullptr) {
    spent_before_ = flusher_->take_spent();
    flusher_.reset();
  }
  vendor_.collector.stop();
  poll(false);
  collecting_ = false;
}

// Once per process, after the last window, so that these launches are in no recording. CUPTI is stopped, as it will be
// anyway. Not while other threads call the driver, as they hold its lock: with eight of them, 10 ms became 0.6 to 8 s
// (H100).
void Recorder::measure_launches(bool others_call) noexcept {
  activity::Collector& collector = vendor_.collector;
  Costs& costs = vendor_.costs;
  if (costs.is_measured || costs.failures == kMostFailures || collector.tier() != activity::Tier::Sole) {
    return;
  }
  if (collector.watches_allocations()) {  // they would include ours
    costs.why_not = "allocations of the driver were watched";
    return;
  }
  if (others_call) {
    costs.why_not = "other threads went on calling the driver";
    return;
  }
  const auto began = std::chrono::steady_clock::now();
  try {
    LaunchProbe probe(vendor_.cuda, costs.limit);
    const LaunchProbe::Times recorded = probe.measure();
    flusher_.reset();
    collector.stop();
    collecting_ = false;
    const LaunchProbe::Times alone = probe.measure();
    const double own_ns = 2 * costs.event_ns;
    costs.launch_ns = std::max(0.0, recorded.launch_ns - alone.launch_ns - own_ns);
    costs.copy_ns = std::max(0.0, recorded.copy_ns - alone.copy_ns - own_ns);
    costs.call_ns = std::max(0.0, recorded.call_ns - alone.call_ns - own_ns);
    costs.is_measured = true;
    costs.why_not.clear();
  } catch (const std::exception& error) {
    costs.why_not = error.what();
    ++costs.failures;
  }
  costs.took_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
}

bool Recorder::awaits_gpu_work() const {
  return (collecting_ && decoder_->awaits_kernels()) || !decoder_->state().gpu_spans.empty();
}

/// How long records may still come after the window's newest one, if no launch is known to lack one.
std::chrono::nanoseconds Recorder::grace() const {
  const attribution::GpuRecords& gpu_records = decoder_->gpu_records();
  return !collecting_                     ? 0ms
         : gpu_records.has_short_graphs() ? kShortGraphGrace
         : gpu_records.has_new_graphs()   ? kNewGraphGrace
         : decoder_->awaits_copies()      ? kCopyGrace
                                          : 0ms;
}

// Counts only the window's own launches and records: other threads may continue for ever.
void Recorder::wait_for_gpu_work(std::chrono::nanoseconds limit, bool last) {
  if (options_.settings.by_time) {
    return wait_for_gpu_records(limit);
  }
  const attribution::Counters& counters = decoder_->state().counters;
  const auto start = std::chrono::steady_clock::now();
  auto newest = start;  // when the last record arrived
  std::chrono::nanoseconds interval = kFirstPollInterval;
  for (uint64_t records = counters.gpu_records; !failed_;) {
    flush_and_decode();
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(records, counters.gpu_records) != counters.gpu_records) {
      newest = now;
    }
    if (failed_ || (!awaits_gpu_work() && now - newest >= grace())) {
      return;
    }
    if (now - start >= limit) {
      return fetch_unfinished();
    }
    if (collecting_ && last && now - start >= kBusyWait && !decoder_->has_open_launches()) {
      vendor_.collector.disable_kinds();
    }
    std::this_thread::sleep_for(std::min(interval, limit - (now - start)));
    interval = std::min(2 * interval, kLastPollInterval);
  }
}

void Recorder::wait_for_gpu_records(std::chrono::nanoseconds limit) {
  // Launches are not counted here. The window is complete when CUPTI delivers none of its records for a while.
  int quiet = 0;
  const attribution::Counters& counters = decoder_->state().counters;
  const auto start = std::chrono::steady_clock::now();
  while (quiet < kQuietRounds && std::chrono::steady_clock::now() - start < limit) {
    const uint64_t before = counters.gpu_records + counters.callbacks;
    flush_and_decode();
    quiet = counters.gpu_records + counters.callbacks == before ? quiet + 1 : 0;
    std::this_thread::sleep_for(kQuietInterval);
  }
  fetch_unfinished();
}

// Work that still runs is delivered unfinished, and counted as such.
void Recorder::fetch_unfinished() {
  vendor_.collector.flush(true);
  // CUPTI may deliver on its own thread, a moment later.
  for (int round = 0; round < kQuietRounds && vendor_.collector.buffers().lent() != 0; ++round) {
    std::this_thread::sleep_for(kQuietInterval);
  }
  decoder_->gpu_records().set_forced(true);
  poll(false);
  decoder_->gpu_records().set_forced(false);
}

void Recorder::read_gpu_spans() {
  attribution::DecodeState& state = decoder_->state();
  std::vector<attribution::GpuSpan> running;
  for (const attribution::GpuSpan& span : state.gpu_spans) {
    const timing::RegionTimer::Elapsed reading = vendor_.region_timer.read(span.pair);
    if (reading.state == timing::RegionTimer::State::Running) {
      running.push_back(span);
    } else if (reading.state == timing::RegionTimer::State::Done && span.path != store::kNone) {
      state.add_gpu_time(span, reading.duration_ns);
    }
  }
  state.gpu_spans.swap(running);
}

/// Rows of the window so far that the disk did not take.
void Recorder::add_lost_rows(Facts& facts) {
  lost_rows_ += spool_->take_lost_rows();
  facts.add("session.lost_rows", lost_rows_);
}

/// Launches without a record so far.
void Recorder::count_missing(Facts& facts) const {
  attribution::Counters& counters = facts.counters;
  const auto without = [](uint64_t launched, uint64_t came) { return launched > came ? launched - came : 0; };
  counters.missing =
      without(counters.launches, counters.matched) + without(counters.graph_launches, counters.matched_graphs);
  // Copies between host buffers have none. The record of a copy that far outlasts its window comes too late.
  counters.copies_without_record = without(counters.copies, counters.matched_copies);
}

void Recorder::gather(Facts& facts, int64_t close_ns) {
  const attribution::Window& window = decoder_->window();
  facts.counters = decoder_->state().counters;
  facts.clock_kernels = decoder_->gpu_records().clock_kernels();
  facts.add("session.mode", mode_name(options_));
  facts.add("session.graphs", options_.settings.merge_graphs ? "launch" : "node");
  facts.add("session.start_ns", begins_ns_);
  facts.add("session.stop_ns", close_ns);
  add_environment(facts, vendor_.cuda, vendor_.collector.cupti());
  facts.notes += clock_.note.empty() ? "" : clock_.note + "\n";
  const std::string& memory_why = vendor_.collector.memory_why();
  if (has_collected_ && !memory_why.empty()) {
    facts.notes += "memory taken from the driver is not recorded, or not all of it: " + memory_why + "\n";
  }
  for (const auto& source : sources_) {
    source->facts(facts);
  }
  facts.notes += failed_ ? "memory ran out while records were decoded: what came after is missing\n" : "";

  attribution::Counters& counters = facts.counters;
  count_missing(facts);
  const attribution::SwitchTimes::Total gpu_off = window.gpu.off_until(close_ns);
  const attribution::SwitchTimes::Total regions_off = window.regions.off_until(close_ns);
  counters.gpu_off = gpu_off.times;
  counters.gpu_off_ns = gpu_off.duration_ns;
  counters.regions_off = regions_off.times;
  counters.regions_off_ns = regions_off.duration_ns;
  counters.decode_lag_max_ns = std::exchange(decode_lag_max_ns_, 0);
  const Flusher::Spent before = std::exchange(spent_before_, {});
  const Flusher::Spent spent = flusher_ != nullptr ? flusher_->take_spent() : before;
  counters.flush_cpu_ns = spent.cpu_ns;  // CUPTI's own work, on our thread
  counters.flush_max_ns = spent.longest_ns;
  if (std::exchange(has_collected_, collecting_)) {
    activity::Collector& collector = vendor_.collector;
    const auto since = [](uint64_t& start, uint64_t now) { return now - std::exchange(start, now); };
    counters.dropped = since(dropped_start_, collector.dropped());
    counters.pool_exhausted = since(exhausted_start_, collector.buffers().exhausted());
    counters.foreign_buffers = since(foreign_start_, collector.buffers().foreign());
    facts.notes += collector.broken() ? "CUPTI ended itself after a fatal error\n" : "";
  }
  if (spool_ != nullptr) {
    add_lost_rows(facts);
  }
  facts.add("audit.gpu_records", counters.gpu_records);
  facts.add("audit.region_events", counters.region_events);
  facts.add("audit.function_events", counters.function_events);
  const int64_t cpu_ns = base::thread_cpu_ns();
  counters.decode_cpu_ns = cpu_ns - std::exchange(decode_cpu_start_ns_, cpu_ns);
}

}  // namespace gpuscope::session
