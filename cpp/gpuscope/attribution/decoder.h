// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
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
#include "gpuscope/store/schema.h"

namespace gpuscope::attribution {

/// A hardware counter whose samples are taken.
struct SampledCounter {
  std::string metric, unit, description;
};

/// Samples of counters, oldest first. Times as in CUPTI's records; values of each sample in the order of the counters.
struct CounterSamples {
  std::span<const uint64_t> starts, ends;
  std::span<const float> values;
};

/// Converts the threads' event logs and CUPTI's buffers into rows of a store. One thread at a time, except for
/// `window()`.
class Decoder {
 public:
  /// `main_thread`: the system id of the thread whose regions others inherit.
  Decoder(const Settings& settings, const driver::Cupti& cupti, uint64_t main_thread);
  /// Drops base::Names' names of this recording.
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Window& window() noexcept { return state_.window; }
  DecodeState& state() noexcept { return state_; }
  GpuRecords& gpu_records() noexcept { return gpu_records_; }

  /// Discards the logs' events from before this state.
  static void discard_logs();
  /// Reads every thread's events, then the given buffers. A kernel's launch is logged before the kernel runs, so it is
  /// known when its record is read. Buffers return to the pool.
  void decode(activity::BufferPool& pool);
  /// Adds the window's samples of a GPU's hardware counters.
  void take_counters(uint32_t device, std::span<const SampledCounter> counters, const CounterSamples& samples);
  /// Adds the window's NVML rows. Aggregate mode keeps a thinned selection from beginning to end.
  void take_device_samples(std::span<const store::DeviceSamples::Row> samples,
                           std::span<const store::DeviceCounters::Row> counters);
  /// Adds a reading of the system's clocks to the window.
  void take_anchor(const store::Anchors::Row& row) {
    if (state_.keeps_rows() && state_.window.contains(row.start_ns)) {
      state_.store->anchor.append(row);
    }
  }
  /// Brings all rows up to date at the end of a segment: open ones last until `at_ns`. Returns the rows of open calls.
  std::vector<uint32_t> complete_rows(int64_t at_ns);
  /// Begins a segment at `at_ns`: drops all rows except open ones and these calls, and sets the counters to 0.
  void begin_segment(int64_t at_ns, std::span<const uint32_t> open_calls);
  /// Ends the window at `close_ns` and returns its rows. The next window starts empty.
  std::unique_ptr<store::Store> finish(int64_t close_ns);

  /// Whether some kernel or graph launch of the window has no record yet.
  bool awaits_kernels() const noexcept {
    return state_.correlations.awaited(Correlations::Awaits::Kernel) != 0 ||
           state_.correlations.awaited(Correlations::Awaits::Graph) != 0;
  }
  /// Whether some copy has no record yet. Not every copy gets one.
  bool awaits_copies() const noexcept { return state_.correlations.awaited(Correlations::Awaits::Copy) != 0; }
  /// Whether some launch or copy of the window is in progress: its record may not have begun.
  bool has_open_launches();
  /// Drops the content of the logs and the pool. Counts it as dropped and unread.
  void discard(activity::BufferPool& pool) noexcept;
  /// The innermost region open on the main thread, otherwise the one that another thread opened last. "" for none.
  /// Valid until events are read again.
  std::string_view innermost_region() const;

 private:
  template <class Table>
  void take_device_rows(Table& table, std::span<const typename Table::Row> rows);
  struct DecodedThread {
    uint32_t generation = 0;
    std::unique_ptr<Replay> replay;
  };
  // Programs may start threads without end. So many ended threads are kept, for late records.
  static constexpr std::size_t kMaxEnded = 1024;

  /// A sampled thread, by its number.
  struct SampledThread {
    uint16_t row;
    uint32_t system_id;
    bool is_logged;  // it also has a Replay
  };

  void drain_logs();
  void read_samples();
  void take_sample(const base::Sample& sample);
  void take_usage(const base::HostUsage& usage);
  uint16_t row_of(uint64_t number, uint32_t system_id);
  uint16_t row_of(const base::EventLog& log);
  /// For tasks created on one thread and run on another whose log is read first.
  void take_ends_before(const base::Event& event);
  void read_others_until(int64_t at_ns);
  bool is_after(const base::Event& event, int64_t at_ns) const noexcept {
    return base::has_time(static_cast<base::Op>(event.op)) && state_.clock.to_ns(event.word) > at_ns;
  }
  void begin_period_of_names();
  bool count_event();
  void look_at_bounds();
  void apply(const Eviction& eviction);
  /// Rebuilds the dictionaries with the entries still in use. Returns the old ones.
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
  std::unordered_map<base::EventLog*, DecodedThread> threads_;
  std::unordered_map<uint64_t, SampledThread> sampled_;  // those that have not ended
  std::vector<const base::EventLog*> being_read_;        // the outermost first
  bool has_read_ahead_ = false;                          // of logs that are read later
  std::vector<std::unique_ptr<Replay>> former_mains_;    // other threads may still inherit from them
  // If launches are joined by thread and time: ended threads, and threads without a log.
  std::deque<std::unique_ptr<Replay>> ended_;
  std::unordered_map<uint64_t, Replay*> by_system_id_;
  bool logs_are_read_ = false;     // since base::Names' period began
  std::size_t renewed_bytes_ = 0;  // size of the dictionaries after the last renewal
  uint64_t events_ = 0;            // read from logs
  uint64_t looked_at_ = 0;         // events_ at the last check of the bounds
};

}  // namespace gpuscope::attribution
