// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/activity/buffers.h"
#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/attribution/gpu_records.h"
#include "gpuscope/attribution/replay.h"
#include "gpuscope/base/event_log.h"
#include "gpuscope/base/host_usage.h"
#include "gpuscope/base/sample_log.h"
#include "gpuscope/counters/pm_sampling.h"
#include "gpuscope/nvml/device_sampling.h"

namespace gpuscope::attribution {

/// Turns the threads' event logs and CUPTI's buffers into the rows of a store. One thread at a time, but for
/// `window()`.
class Decoder {
 public:
  /// `main_thread`: the system id of the thread whose regions others inherit.
  Decoder(const Settings& settings, const driver::Cupti& cupti, uint64_t main_thread);
  /// What base::Names had for this recording goes.
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Window& window() noexcept { return state_.window; }
  DecodeState& state() noexcept { return state_; }
  GpuRecords& gpu_records() noexcept { return gpu_records_; }

  /// Forgets what the logs hold from before this state.
  static void discard_logs();
  /// Reads every thread's events, then the given buffers: a kernel's launch was logged before the kernel ran, so that
  /// it is known by then. Buffers go back to the pool.
  void decode(activity::BufferPool& pool);
  /// Samples of a GPU's hardware counters, of which the window's are kept.
  void take_counters(uint32_t device, std::span<const counters::Sampled> sampled, const counters::Samples& samples);
  /// What NVML told of GPUs, of which the window's is kept; in aggregate mode some of it, from the beginning to the
  /// end.
  void take_device_samples(const nvml::DeviceSampling::Rows& rows);
  /// Ends the window at `close_ns` and hands its rows over; the next window starts from nothing.
  std::unique_ptr<store::Store> finish(int64_t close_ns);

  /// Some launch of the window, of a kernel or graph, has no record yet.
  bool awaits_kernels() const noexcept {
    return state_.correlations.awaited(Correlations::Awaits::Kernel) != 0 ||
           state_.correlations.awaited(Correlations::Awaits::Graph) != 0;
  }
  /// Some copy has no record yet; not every copy gets one.
  bool awaits_copies() const noexcept { return state_.correlations.awaited(Correlations::Awaits::Copy) != 0; }
  /// Some launch or copy of the window is under way: its record may not have been begun.
  bool has_open_launches();
  /// Drops what the logs and the pool hold, and counts it as dropped and unread.
  void discard(activity::BufferPool& pool) noexcept;
  /// The innermost region that is open on the main thread, or else the one that another thread opened last; "" for
  /// none. Until events are read again.
  std::string_view innermost_region() const;
  /// Events that found no room in their thread's log.
  uint64_t log_dropped() const noexcept { return log_dropped_; }

 private:
  template <class Table>
  void take_device_rows(Table& table, std::span<const typename Table::Row> rows);
  struct Thread {
    uint32_t generation = 0;
    std::unique_ptr<Replay> replay;
  };
  // A program may start threads for ever: so many ended ones are kept, for records that arrive late.
  static constexpr std::size_t kMaxEnded = 1024;

  /// A thread that was sampled, by its number.
  struct SampledThread {
    uint16_t row;
    uint32_t system_id;
    bool is_logged;  // it has a Replay too
  };

  void drain_logs();
  void read_samples();
  void take_sample(const base::Sample& sample);
  void take_usage(const base::HostUsage& usage);
  uint16_t row_of(uint64_t number, uint32_t system_id);
  uint16_t row_of(const base::EventLog& log);
  /// While logs are read: a thread created a task that another one runs, whose log is read first.
  void take_ends_before(const base::Event& event);
  void read_others_until(int64_t at_ns);
  bool is_after(const base::Event& event, int64_t at_ns) const noexcept {
    return base::has_time(static_cast<base::Op>(event.op)) && state_.clock.to_ns(event.word) > at_ns;
  }
  void begin_period_of_names();
  bool count_event();
  void look_at_bounds();
  /// Makes the dictionaries anew, of what is still referred to; returns the old ones.
  Dictionaries renew_dictionaries();
  template <class F>
  void each_reference(F&& visit);
  template <class F>
  void each_replay(F&& visit);
  Replay& replay_of(base::EventLog& log);
  void retire(std::unique_ptr<Replay> replay);
  void take_api(const activity::ApiRecord& record);

  DecodeState state_;
  GpuRecords gpu_records_;
  activity::Walker walker_;
  uint64_t main_thread_;
  Replay* main_ = nullptr;
  std::unordered_map<base::EventLog*, Thread> threads_;
  std::unordered_map<uint64_t, SampledThread> sampled_;  // those that have not ended
  std::vector<const base::EventLog*> being_read_;        // the outermost first
  bool has_read_ahead_ = false;                          // of logs whose turn is to come
  std::vector<std::unique_ptr<Replay>> former_mains_;    // other threads may still inherit from them
  // Where launches are joined by thread and time: ended threads, and those that have no log.
  std::deque<std::unique_ptr<Replay>> ended_;
  std::unordered_map<uint64_t, Replay*> by_system_id_;
  bool logs_are_read_ = false;     // since base::Names' period began
  std::size_t renewed_bytes_ = 0;  // of the dictionaries, when they were made
  uint64_t log_dropped_ = 0;
  uint64_t events_ = 0;     // read from logs
  uint64_t looked_at_ = 0;  // how many these were at the last look at the bounds
};

}  // namespace gpuscope::attribution
