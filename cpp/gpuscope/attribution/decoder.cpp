// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/decoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpuscope/activity/calls.h"
#include "gpuscope/attribution/bounds.h"

namespace gpuscope::attribution {

using base::EventLog;
using base::EventLogs;

Decoder::Decoder(const Settings& settings, const driver::Cupti& cupti, uint64_t main_thread)
    : recording_(settings), gpu_records_(recording_), walker_(cupti), main_thread_(main_thread) {
  if (settings.by_time) {
    gpu_records_.set_api([this](const activity::ApiRecord& record) { take_api(record); });
  }
}

void Decoder::discard_logs() {
  EventLogs::process().each([](EventLog& log) {
    log.skip_all();
    log.take_dropped();
    EventLogs::release_if_done(log);
  });
}

Replay& Decoder::replay_of(EventLog& log) {
  Thread& thread = threads_[&log];
  const uint32_t generation = log.generation.load(std::memory_order_acquire);
  if (thread.replay == nullptr || thread.generation != generation) {
    if (thread.replay != nullptr) {
      ended_.push_back(std::move(thread.replay));
    }
    const bool is_main = log.system_id == main_thread_;
    const uint16_t id = recording_.dictionaries.thread(log.system_id, log.thread_name.data());
    thread.generation = generation;
    thread.replay =
        std::make_unique<Replay>(recording_, id, is_main ? nullptr : main_, is_main || recording_.settings.by_time);
    by_system_id_[log.system_id] = thread.replay.get();
    by_system_id_[static_cast<uint32_t>(log.pthread_id)] = thread.replay.get();
    if (is_main) {
      main_ = thread.replay.get();
    }
  }
  return *thread.replay;
}

void Decoder::drain_logs() {
  const bool open = recording_.window.contains(recording_.clock.now_ns());
  // Where the others are is looked at first and read last: whatever they did, the main thread's regions of that moment
  // are known by then.
  std::vector<std::pair<EventLog*, EventLog::Position>> logs;
  EventLogs::process().each([&](EventLog& log) { logs.emplace_back(&log, log.end()); });
  std::stable_sort(logs.begin(), logs.end(), [this](const auto& left, const auto& right) {
    return (left.first->system_id == main_thread_) > (right.first->system_id == main_thread_);
  });
  for (auto& [log, end] : logs) {
    Replay& replay = replay_of(*log);
    const bool is_main = log->system_id == main_thread_;
    log->read(is_main ? log->end() : end, [&](const base::Event& event) { replay.take(event); });
    log_dropped_ += log->take_dropped();
    if (is_main && open) {
      replay.open_window();
    }
    EventLogs::release_if_done(*log);
  }
}

void Decoder::take_api(const activity::ApiRecord& record) {
  const activity::DriverCall* call = activity::find_driver_call(record.callback);
  if (call == nullptr) {
    return;
  }
  const auto found = by_system_id_.find(record.thread);
  Replay* replay = found != by_system_id_.end() ? found->second : nullptr;
  if (replay == nullptr) {  // a thread that never opened a region: it has no log
    const uint16_t id = recording_.dictionaries.thread(record.thread, "");
    ended_.push_back(std::make_unique<Replay>(recording_, id, main_, true));
    replay = ended_.back().get();
    by_system_id_[record.thread] = replay;
  }
  replay->take_call(*call, gpu_records_.ns(record.start), gpu_records_.ns(record.end), record.correlation,
                    record.result);
}

void Decoder::decode(activity::BufferPool& pool) {
  activity::BufferPool::Buffer* buffers = pool.take_completed();
  drain_logs();
  while (buffers != nullptr) {
    activity::BufferPool::Buffer* next = buffers->next;
    recording_.counters.unread_bytes +=
        walker_.walk(buffers->data, buffers->valid,
                     [this](uint32_t kind, const uint8_t* record) { gpu_records_.take(kind, record); });
    pool.release(buffers);
    buffers = next;
  }
  if (recording_.settings.by_time) {
    gpu_records_.retry(false);
  }
  if (keep_in_bounds(recording_)) {
    for (auto& [log, thread] : threads_) {
      thread.replay->renew_rows();
    }
  }
}

std::unique_ptr<store::Store> Decoder::finish(int64_t close_ns) {
  if (recording_.settings.by_time) {
    gpu_records_.retry(true);
  }
  for (auto& [log, thread] : threads_) {
    thread.replay->close_window(close_ns);
  }
  for (auto& replay : ended_) {
    replay->close_window(close_ns);
  }
  settle_references(recording_);
  recording_.totals.move_into(*recording_.store);
  recording_.dictionaries.copy_into(*recording_.store);
  std::unique_ptr<store::Store> finished = std::exchange(recording_.store, std::make_unique<store::Store>());
  recording_.window.open_ns.store(INT64_MAX, std::memory_order_relaxed);
  recording_.window.close_ns.store(INT64_MAX, std::memory_order_relaxed);
  recording_.evicted = {};
  recording_.counters = {};
  recording_.full = false;
  log_dropped_ = 0;
  gpu_records_.start_window();
  return finished;
}

}  // namespace gpuscope::attribution
