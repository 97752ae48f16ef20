// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/decoder.h"

#include <algorithm>
#include <map>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpuscope/activity/calls.h"
#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/base/event_logs.h"

namespace gpuscope::attribution {
namespace {

using base::EventLog;
using base::EventLogs;

// The rows of this many events, or of one CUPTI buffer, may exceed the cap.
constexpr uint64_t kEventsBetweenLooks = 4096;
// Names of one base::Names period may take 1 / n of the memory. Two periods are known at a time.
constexpr uint64_t kShareOfNames = 8;
// Names of up to this many bytes outlive their window.
constexpr std::size_t kFewNames = std::size_t{64} * 1024;
// The maximum depth of nested reading, where each log waits for the next. Real chains of tasks have two or three.
constexpr std::size_t kMostBeingRead = 64;

}  // namespace

Decoder::Decoder(const Settings& settings, const driver::Cupti& cupti, uint64_t main_thread)
    : state_(settings), gpu_records_(state_), walker_(cupti), main_thread_(main_thread) {
  state_.read_others_until = [this](int64_t at_ns) { read_others_until(at_ns); };
  state_.exit_elsewhere = [this](const Replay& here, uint64_t task, int64_t at_ns, uint32_t name, uint32_t detail) {
    read_others_until(at_ns);  // where it was entered
    bool found = false;
    each_replay(
        [&](Replay& replay) { found = found || (&replay != &here && replay.exit_of(task, at_ns, name, detail)); });
    return found;
  };
  if (settings.by_time) {
    gpu_records_.set_api([this](const activity::ApiRecord& record) { take_api(record); });
  }
  base::Names::process().set_room(settings.max_bytes / kShareOfNames, &EventLog::wake());
}

Decoder::~Decoder() {
  EventLogs::process().each([](EventLog& log) { log.trim(); });
  try {
    base::Names::process().forget();
  } catch (const std::bad_alloc&) {  // dropped with the names of the next recording
  }
}

void Decoder::discard_logs() {
  base::SampleLog::process().read([](const base::Sample&) {});
  base::HostLog::process().read([](const base::HostUsage&) {});
  EventLogs::process().each([](EventLog& log) {
    log.skip_all();
    log.take_dropped();
    log.take_work();
    log.take_function_work();
    EventLogs::release_if_done(log);
  });
  base::EndsElsewhere::process().take_all();
}

Replay& Decoder::replay_of(EventLog& log) {
  DecodedThread& thread = threads_[&log];
  const uint32_t generation = log.generation.load(std::memory_order_acquire);
  if (thread.replay == nullptr || thread.generation != generation) {
    if (thread.replay != nullptr) {
      retire(std::move(thread.replay));
    }
    const bool is_main = log.system_id == main_thread_;
    const uint16_t id = row_of(log);
    thread.generation = generation;
    thread.replay = std::make_unique<Replay>(state_, id, is_main ? nullptr : main_, is_main || state_.settings.by_time);
    if (state_.settings.by_time) {
      by_system_id_[log.system_id] = thread.replay.get();
      by_system_id_[static_cast<uint32_t>(log.pthread_id)] = thread.replay.get();
    }
    if (is_main) {
      main_ = thread.replay.get();
    }
  }
  return *thread.replay;
}

void Decoder::retire(std::unique_ptr<Replay> replay) {
  if (replay.get() == main_) {
    former_mains_.push_back(std::move(replay));
  } else if (state_.settings.by_time) {
    ended_.push_back(std::move(replay));
  } else {
    replay->end_thread();
  }
  if (ended_.size() > kMaxEnded) {
    const Replay* oldest = ended_.front().get();
    ended_.front()->end_thread();
    std::erase_if(by_system_id_, [oldest](const auto& entry) { return entry.second == oldest; });
    ended_.pop_front();
  }
}

void Decoder::drain_logs() {
  // All logs' ends are taken first, and the main thread's log is read first. So for anything another thread did up to
  // its end, the main thread's regions are known.
  //
  // The same order applies between other threads: pool threads take work from older threads. Ends of older logs are
  // taken later, and their logs read earlier. Work that an older thread takes from a younger one is looked up on demand
  // (read_others_until).
  struct LogInOrder {
    EventLog* log;
    uint32_t order;  // a copy: a thread that takes over the log changes it at any time
    EventLog::Position end;
  };
  std::vector<LogInOrder> logs;
  EventLogs::process().each([&](EventLog& log) {
    logs.push_back({&log, log.order.load(std::memory_order_relaxed), {}});
  });
  std::ranges::sort(logs, std::ranges::greater{}, &LogInOrder::order);
  const int64_t began_ns = state_.clock.now_ns();
  for (LogInOrder& reading : logs) {
    reading.end = reading.log->end();
  }
  std::ranges::reverse(logs);
  std::stable_partition(logs.begin(), logs.end(),
                        [this](const LogInOrder& reading) { return reading.log->system_id == main_thread_; });
  being_read_.clear();
  has_read_ahead_ = false;
  for (auto& [log, order, end] : logs) {
    const bool is_ahead = has_read_ahead_;  // nested reading may have passed its end; then up to began_ns
    if (is_ahead) {
      end = log->end();
    }
    const bool may_call = log->system_id == main_thread_ || state_.settings.by_time;
    const bool is_read = log->has_more(end) || (may_call && log->has_owner());
    if (!is_read && !threads_.contains(log)) {
      EventLogs::release_if_done(*log);
      continue;  // a thread without events in this recording
    }
    Replay& replay = replay_of(*log);
    const bool is_main = &replay == main_;
    if (is_main) {
      // Not past the end of the thread: another thread may have taken over the log.
      const EventLog::Position newest = log->end();
      if (log->generation.load(std::memory_order_acquire) == threads_[log].generation) {
        end = newest;
      }
    }
    being_read_.push_back(log);
    log->read_while(end, [&](const base::Event& event) {
      if (is_ahead && is_after(event, began_ns)) {
        return false;
      }
      take_ends_before(event);
      replay.take(event);
      count_event();
      return true;
    });
    being_read_.pop_back();
    if (const uint64_t dropped = log->take_dropped(); dropped != 0) {
      state_.counters.log_dropped += dropped;
      replay.lose_events();
    }
    state_.counters.work_ns += log->take_work();
    state_.counters.function_work_ns += log->take_function_work();
    if (is_main && state_.window.open_ns.load(std::memory_order_relaxed) <= state_.clock.now_ns()) {
      replay.open_window();
    }
    EventLogs::release_if_done(*log);
  }
}

/// Applies the ends of this thread's regions that other threads logged before the event.
void Decoder::take_ends_before(const base::Event& event) {
  base::EndsElsewhere& ends = base::EndsElsewhere::process();
  for (uint64_t ticks = ends.first(); ticks != 0; ticks = ends.first()) {
    const int64_t at_ns = state_.clock.to_ns(ticks);
    if (!is_after(event, at_ns)) {
      return;
    }
    ends.take_first();
    read_others_until(at_ns);
  }
}

void Decoder::read_others_until(int64_t at_ns) {
  if (being_read_.size() == kMostBeingRead) {
    return;
  }
  has_read_ahead_ = true;
  EventLogs::process().each([&](EventLog& log) {
    const EventLog::Position end = log.end();
    if (!log.has_more(end) || std::ranges::find(being_read_, &log) != being_read_.end()) {
      return;
    }
    Replay& replay = replay_of(log);
    being_read_.push_back(&log);
    log.read_while(end, [&](const base::Event& event) {
      if (is_after(event, at_ns)) {
        return false;
      }
      replay.take(event);
      ++events_;  // without a look at the bounds, as callers hold row numbers
      return true;
    });
    being_read_.pop_back();
  });
}

/// The row of a thread with a log. Reuses the row of a sampled thread.
uint16_t Decoder::row_of(const EventLog& log) {
  for (auto& [number, thread] : sampled_) {
    if (thread.system_id == log.system_id && !thread.is_logged) {
      thread.is_logged = true;
      state_.dictionaries.name_thread(thread.row, log.thread_name.data());
      return thread.row;
    }
  }
  return state_.dictionaries.thread(log.system_id, log.thread_name.data());
}

uint16_t Decoder::row_of(uint64_t number, uint32_t system_id) {
  const auto known = sampled_.find(number);
  if (known != sampled_.end() && known->second.system_id == system_id) {
    return known->second.row;
  }
  // Up to CPython 3.11, a new thread may show its creator's system number. It has no row until it has its own number.
  const auto creator = std::ranges::find_if(
      sampled_, [&](const auto& other) { return other.first != number && other.second.system_id == system_id; });
  if (creator != sampled_.end()) {
    return creator->second.row;
  }
  SampledThread thread{0, system_id, false};
  for (const auto& [log, logged] : threads_) {
    const bool is_it = logged.replay != nullptr && log->system_id == system_id &&
                       log->generation.load(std::memory_order_acquire) == logged.generation;
    if (is_it) {
      thread.is_logged = true;
      thread.row = logged.replay->thread();
    }
  }
  if (!thread.is_logged) {
    thread.row = state_.dictionaries.thread(system_id, "");
  }
  sampled_.insert_or_assign(number, thread);
  return thread.row;
}

void Decoder::take_sample(const base::Sample& sample) {
  const int64_t began_ns = state_.clock.to_ns(sample.begin_ticks);
  const int64_t ended_ns = state_.clock.to_ns(sample.end_ticks);
  const int64_t start_ns = std::max(began_ns, state_.window.open_ns.load(std::memory_order_relaxed));
  const int64_t end_ns = std::min(ended_ns, state_.window.close_ns.load(std::memory_order_relaxed));
  if (sample.count != 0 && start_ns < end_ns && !state_.window.regions.off_at(start_ns)) {
    const int64_t duration_ns = end_ns - start_ns;
    const double kept = static_cast<double>(duration_ns) / static_cast<double>(ended_ns - began_ns);
    const auto cpu_ns = static_cast<int64_t>(kept * static_cast<double>(sample.cpu_ns));
    const uint16_t thread = row_of(sample.thread, sample.thread_id);
    state_.counters.samples += sample.count;
    state_.add_sample({start_ns, duration_ns, std::clamp<int64_t>(cpu_ns, 0, duration_ns),
                       state_.dictionaries.stack(sample.stack), sample.count, thread});
  }
  if (sample.ends_thread) {
    sampled_.erase(sample.thread);
  }
}

void Decoder::take_usage(const base::HostUsage& usage) {
  const int64_t began_ns = state_.clock.to_ns(usage.begin_ticks);
  const int64_t ended_ns = state_.clock.to_ns(usage.end_ticks);
  const int64_t start_ns = std::max(began_ns, state_.window.open_ns.load(std::memory_order_relaxed));
  const int64_t duration_ns = std::min(ended_ns, state_.window.close_ns.load(std::memory_order_relaxed)) - start_ns;
  if (duration_ns <= 0 || state_.window.regions.off_at(start_ns) || state_.aggregates()) {
    return;
  }
  if (!state_.keeps_rows()) {
    ++state_.counters.refused;
    return;
  }
  const double kept = static_cast<double>(duration_ns) / static_cast<double>(ended_ns - began_ns);
  const auto part = [kept](int64_t value) {
    return value == base::kUnknown ? value : static_cast<int64_t>(kept * static_cast<double>(value));
  };
  store::Store& store = *state_.store;
  switch (usage.of) {
    case base::HostUsage::Of::Thread:
      store.thread_wait.append(
          {start_ns, duration_ns, part(usage.cpu_ns), part(usage.wait_ns), row_of(usage.thread, usage.system_id)});
      break;
    case base::HostUsage::Of::Process:
      store.process_usage.append(
          {start_ns, duration_ns, part(usage.cpu_ns), part(usage.wait_ns), part(usage.read_bytes), usage.system_id});
      break;
    case base::HostUsage::Of::ControlGroup:
      store.control_group_usage.append(
          {start_ns, duration_ns, part(usage.throttled_ns), usage.throttled_periods, part(usage.io_wait_ns)});
      break;
  }
}

void Decoder::read_samples() {
  // First, as a thread's last sample removes its number.
  base::HostLog::process().read([this](const base::HostUsage& usage) { take_usage(usage); });
  base::SampleLog& log = base::SampleLog::process();
  log.read([this](const base::Sample& sample) {
    take_sample(sample);
    count_event();
  });
  state_.counters.samples_dropped += log.take_dropped();
}

void Decoder::take_api(const activity::ApiRecord& record) {
  const activity::DriverCall* call =
      activity::find_call(record.callback + (record.kind == activity::kRuntime ? activity::kRuntimeCalls : 0));
  // A runtime call and the driver call inside it share a correlation id. The first one counts.
  if (call == nullptr || state_.correlations.find(record.correlation) != Correlations::kUnknown) {
    return;
  }
  const auto found = by_system_id_.find(record.thread);
  Replay* replay = found != by_system_id_.end() ? found->second : nullptr;
  if (replay == nullptr) {  // a thread that never opened a region has no log
    const uint16_t id = state_.dictionaries.thread(record.thread, "");
    auto made = std::make_unique<Replay>(state_, id, main_, true);
    replay = made.get();
    by_system_id_[record.thread] = replay;
    retire(std::move(made));
  }
  replay->take_call(*call, gpu_records_.ns(record.start), gpu_records_.ns(record.end), record.correlation,
                    record.result);
}

template <class F>
void Decoder::each_replay(F&& visit) {
  for (auto& [log, thread] : threads_) {
    if (thread.replay != nullptr) {  // null if memory ran out
      visit(*thread.replay);
    }
  }
  for (const auto& replay : ended_) {
    visit(*replay);
  }
  for (const auto& replay : former_mains_) {
    visit(*replay);
  }
}

std::string_view Decoder::innermost_region() const {
  Replay::Innermost found = main_ != nullptr ? main_->innermost_region() : Replay::Innermost{};
  const bool is_main = found.is_open;
  for (const auto& [log, thread] : threads_) {
    const Replay::Innermost region = thread.replay != nullptr ? thread.replay->innermost_region() : Replay::Innermost{};
    if (!is_main && region.is_open && (!found.is_open || region.start_ns > found.start_ns)) {
      found = region;
    }
  }
  return found.is_open ? state_.dictionaries.text(found.name) : std::string_view();
}

bool Decoder::has_open_launches() {
  bool found = false;
  each_replay([&found](const Replay& replay) { found = found || replay.has_open_launches(); });
  return found;
}

void Decoder::discard(activity::BufferPool& pool) noexcept {
  base::SampleLog::process().read([this](const base::Sample& sample) { state_.counters.log_dropped += sample.count; });
  base::HostLog::process().read([](const base::HostUsage&) {});
  EventLogs::process().each([this](EventLog& log) {
    log.read(log.end(), [this](const base::Event&) { ++state_.counters.log_dropped; });
    state_.counters.log_dropped += log.take_dropped();
    EventLogs::release_if_done(log);
  });
  for (activity::CompletedBuffers buffers(pool); buffers.first() != nullptr; buffers.release_first()) {
    state_.counters.unread_bytes += buffers.first()->valid;
  }
}

void Decoder::decode(activity::BufferPool& pool) {
  activity::CompletedBuffers buffers(pool);
  state_.unread_names_bytes = base::Names::process().bytes();
  drain_logs();
  read_samples();
  logs_are_read_ = true;
  for (; buffers.first() != nullptr; buffers.release_first()) {
    state_.counters.unread_bytes +=
        walker_.walk(buffers.first()->data, buffers.first()->valid,
                     [this](uint32_t kind, const uint8_t* record) { gpu_records_.take(kind, record); });
    look_at_bounds();
  }
  if (state_.settings.by_time) {
    gpu_records_.retry(false);
  }
  look_at_bounds();
  if (base::Names::process().fill(0.5)) {
    begin_period_of_names();
  }
}

/// Once after the logs were read: their names are then of this period, and are read before the period after next.
void Decoder::begin_period_of_names() {
  if (std::exchange(logs_are_read_, false)) {
    base::Names::process().begin_period();
  }
}

void Decoder::take_counters(uint32_t device, std::span<const SampledCounter> counters, const CounterSamples& samples) {
  std::vector<uint16_t> rows;  // valid until the dictionaries are renewed
  for (std::size_t index = 0; index < samples.starts.size(); ++index) {
    const int64_t start_ns = gpu_records_.ns(samples.starts[index]);
    const int64_t end_ns = gpu_records_.ns(samples.ends[index]);
    if (!state_.window.contains(start_ns) || end_ns <= start_ns) {
      continue;
    }
    ++state_.counters.counter_samples;
    if (!state_.keeps_rows()) {
      ++state_.counters.refused;
      continue;
    }
    for (std::size_t counter = rows.size(); counter < counters.size(); ++counter) {
      const SampledCounter& name = counters[counter];
      rows.push_back(state_.dictionaries.counter(name.metric, name.unit, name.description));
    }
    store::Store& store = *state_.store;
    const uint32_t sample = store.counter_sample.append({start_ns, end_ns - start_ns, device});
    for (std::size_t counter = 0; counter < rows.size(); ++counter) {
      store.counter_value.append({sample, rows[counter], samples.values[index * rows.size() + counter]});
    }
    if (count_event()) {
      rows.clear();
    }
  }
  look_at_bounds();
}

namespace {

/// Distinguish kinds of rows: rows with the same columns set come at a fixed interval.
bool is_energy(const store::DeviceCounters& table, std::size_t row) { return table.energy_mj[row] >= 0; }
bool is_energy(const store::DeviceSamples&, std::size_t) { return false; }
bool is_fast(const store::DeviceCounters& table, std::size_t row) { return table.sw_power_cap_ns[row] >= 0; }
bool is_fast(const store::DeviceSamples& table, std::size_t row) { return table.power_limit_default_mw[row] < 0; }

/// Removes every second row of each kind per device. Keeps the first, so that counters keep their beginning.
template <class Table>
uint64_t thin_out(Table& table) {
  std::map<std::tuple<uint32_t, bool, bool>, uint64_t> seen;
  std::vector<uint32_t> kept;
  for (uint32_t row = 0; row < table.size(); ++row) {
    if (seen[{table.device[row], is_energy(table, row), is_fast(table, row)}]++ % 2 == 0) {
      kept.push_back(row);
    }
  }
  const std::size_t dropped = table.size() - kept.size();
  table.each_column([&](const store::ColumnInfo&, auto& column) {
    for (std::size_t row = 0; row < kept.size(); ++row) {
      column[row] = column[kept[row]];
    }
  });
  table.truncate(kept.size());
  return dropped;
}

}  // namespace

template <class Table>
void Decoder::take_device_rows(Table& table, std::span<const typename Table::Row> rows) {
  constexpr std::size_t kMostOfTotals = 1 << 13;  // about 600 kB: 14 minutes of one device until rows are thinned
  for (const auto& row : rows) {
    if (row.start_ns < state_.window.open_ns.load(std::memory_order_relaxed)) {
      continue;
    }
    ++state_.counters.device_samples;
    if (!state_.aggregates() && !state_.keeps_rows()) {
      ++state_.counters.refused;
      continue;
    }
    if (state_.aggregates() && table.size() >= kMostOfTotals) {
      state_.counters.device_samples_thinned += thin_out(table);
    }
    table.append(row);
  }
}

// The last reading, after the end of the window, covers the window's last moments.
void Decoder::take_device_samples(std::span<const store::DeviceSamples::Row> samples,
                                  std::span<const store::DeviceCounters::Row> counters) {
  take_device_rows(state_.store->device_sample, samples);
  take_device_rows(state_.store->device_counter, counters);
  look_at_bounds();
}

/// Whether the bounds were checked: rows and dictionary entries may then be renumbered.
bool Decoder::count_event() {
  if (++events_ - looked_at_ < kEventsBetweenLooks) {
    return false;
  }
  looked_at_ = events_;
  look_at_bounds();
  return true;
}

void Decoder::look_at_bounds() {
  if (const std::optional<Eviction> eviction = keep_in_bounds(state_)) {
    apply(*eviction);
    // Drops entries without references. Rarely, as it scans all rows.
    if (state_.dictionaries.bytes() > renewed_bytes_ + state_.settings.max_bytes / 16 ||
        state_.dictionaries.is_short_of_ids()) {
      renew_dictionaries();
    }
  }
}

void Decoder::apply(const Eviction& eviction) {
  each_replay([&](Replay& replay) { replay.apply(eviction); });
  gpu_records_.apply(eviction);
}

std::vector<uint32_t> Decoder::complete_rows(int64_t at_ns) {
  std::vector<uint32_t> open_calls;
  each_replay([&](Replay& replay) { replay.measure_open(at_ns, open_calls); });
  std::ranges::sort(open_calls);
  store::Regions& regions = state_.store->region;
  state_.started_ranges.each([&](uint64_t, const StartedRange& range) {
    if (range.row != store::kNone) {
      regions.duration_ns[range.row] = std::max<int64_t>(0, at_ns - regions.start_ns[range.row]);
    }
  });
  gpu_records_.place_waits();
  state_.collectives.write(*state_.store);
  return open_calls;
}

void Decoder::begin_segment(int64_t at_ns, std::span<const uint32_t> open_calls) {
  apply(evict_ended(state_, at_ns, open_calls));
  renew_dictionaries();
  state_.counters = {};
  state_.last_eviction = {};
}

template <class F>
void Decoder::each_reference(F&& visit) {
  state_.each_reference(visit);
  each_replay([&](Replay& replay) { replay.each_reference(visit); });
  for (auto& [number, thread] : sampled_) {
    visit(store::Target::Threads, thread.row);
  }
}

Dictionaries Decoder::renew_dictionaries() {
  Renewal renewal(state_.dictionaries);
  each_reference([&](store::Target target, const auto& row) { renewal.keep(target, row); });
  Dictionaries fresh = renewal.take();
  each_reference([&](store::Target target, auto& row) {
    row = static_cast<std::remove_reference_t<decltype(row)>>(renewal.find(target, row));
  });
  renewed_bytes_ = fresh.bytes();
  return std::exchange(state_.dictionaries, std::move(fresh));
}

std::unique_ptr<store::Store> Decoder::finish(int64_t close_ns) {
  if (state_.settings.by_time) {
    gpu_records_.retry(true);
  }
  each_replay([&](Replay& replay) { replay.close_window(close_ns); });
  // Later records belong to launches of this window, and to no other window.
  state_.correlations.end_window();
  for (GpuSpan& span : state_.gpu_spans) {
    span.region = span.path = store::kNone;
  }
  state_.close_calls(close_ns);
  state_.close_ranges(close_ns);
  gpu_records_.place_waits();
  state_.totals.move_into(*state_.store);
  if (!state_.aggregates()) {
    state_.collectives.write(*state_.store);
  }
  sampled_.clear();
  std::unique_ptr<store::Store> finished = std::exchange(state_.store, std::make_unique<store::Store>());
  renew_dictionaries().move_into(*finished);
  if (base::Names::process().bytes() > kFewNames) {
    begin_period_of_names();
  }
  state_.window.open_ns.store(INT64_MAX, std::memory_order_relaxed);
  state_.window.close_ns.store(INT64_MAX, std::memory_order_relaxed);
  state_.counters = {};
  state_.dictionaries.refuse_more(false);
  state_.gpu_rows.clear();
  state_.sample_rows.clear();
  state_.forward_ops.clear();
  state_.origins.change_rows([](uint32_t) { return store::kNone; });
  state_.full = false;
  state_.last_eviction = {};
  gpu_records_.start_window();
  return finished;
}

}  // namespace gpuscope::attribution
