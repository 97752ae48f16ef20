// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/attribution/audit.h"
#include "gpuscope/attribution/collectives.h"
#include "gpuscope/attribution/correlations.h"
#include "gpuscope/attribution/dictionaries.h"
#include "gpuscope/attribution/totals.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/store.h"

namespace gpuscope::attribution {

/// The times at which something was switched off and on: increasing, alternating, off first. Any thread.
class SwitchTimes {
 public:
  /// Whether it was off at that time. Without a lock until the first switch.
  bool off_at(int64_t at_ns) const noexcept {
    if (!is_switched_.load(std::memory_order_acquire)) [[likely]] {
      return false;
    }
    const std::lock_guard lock(mutex_);
    return (std::upper_bound(times_.begin(), times_.end(), at_ns) - times_.begin()) % 2 == 1;
  }

  /// Switches. A repeated state has no effect. Throws std::bad_alloc without a change.
  void turn(bool on, int64_t at_ns) {
    const std::lock_guard lock(mutex_);
    if ((times_.size() % 2 == 0) != on) {
      times_.push_back(at_ns);
      is_switched_.store(true, std::memory_order_release);
    }
  }

  /// On since the beginning.
  void reset() noexcept {
    const std::lock_guard lock(mutex_);
    times_.clear();
    is_switched_.store(false, std::memory_order_release);
  }

  struct Total {
    uint64_t times = 0;
    int64_t duration_ns = 0;
  };
  /// The number of off periods until that time, and their total length.
  Total off_until(int64_t end_ns) const noexcept {
    const std::lock_guard lock(mutex_);
    Total total;
    for (std::size_t index = 0; index < times_.size() && times_[index] < end_ns; index += 2) {
      const int64_t on_ns = index + 1 < times_.size() ? times_[index + 1] : end_ns;
      total.duration_ns += std::min(on_ns, end_ns) - times_[index];
      ++total.times;
    }
    return total;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<int64_t> times_;
  std::atomic<bool> is_switched_{false};
};

enum class Mode { Full, Ring, Aggregate };
inline constexpr std::array<std::string_view, 3> kModeNames = {"full", "ring", "aggregate"};

struct Settings {
  Mode mode = Mode::Full;
  bool merge_graphs = false;  // one row per graph launch, even if CUPTI reports each node
  bool by_time = false;       // launches are joined to regions by thread and time, without callbacks
  uint64_t max_bytes = uint64_t{1} << 30;
  int64_t ring_ns = 10'000'000'000;
  // These are counted, but get no rows.
  bool no_kernels = false;
  bool no_copies = false;
  bool no_fills = false;
  bool no_calls = false;
};

/// The time span of recorded launches. The session writes it, the decode thread reads it.
struct Window {
  std::atomic<int64_t> open_ns{INT64_MAX};
  std::atomic<int64_t> close_ns{INT64_MAX};
  SwitchTimes gpu;      // driver calls and the GPU work that they launch
  SwitchTimes regions;  // regions, operators and marks

  bool contains(int64_t at_ns) const noexcept {
    return at_ns >= open_ns.load(std::memory_order_acquire) && at_ns < close_ns.load(std::memory_order_relaxed);
  }
  bool keeps_calls(int64_t at_ns) const noexcept { return contains(at_ns) && !gpu.off_at(at_ns); }
  bool keeps_regions(int64_t at_ns) const noexcept { return contains(at_ns) && !regions.off_at(at_ns); }
};

/// A region timed by CUDA events: the pair of events, and the region.
struct GpuSpan {
  uint32_t pair;
  uint32_t region;
  uint32_t path;
};

/// A start/end range. Its path is kNone after its end.
struct StartedRange {
  uint32_t path = store::kNone;
  uint32_t row = store::kNone;  // kNone if it began before the window: added at its end or the window's
  int64_t start_ns = 0;
  uint16_t thread = 0;
};

class Replay;

/// The region where a task was created, and its position while it is open on the same thread.
struct TaskPlace {
  uint32_t row = store::kNone;
  uint32_t path = store::kNone;
  std::size_t strand = 0;      // of its thread's Replay
  uint64_t strand_number = 0;  // DecodeState::strands_begun: unique over all threads
  uint64_t region = 0;         // as Replay numbers them
};

/// The places where tasks are created, by origin number. Of the settled ones, the latest kKept.
class Origins {
 public:
  /// Until the origin is settled, tasks are created at that strand's current place.
  void set(uint32_t origin, const Replay* thread, std::size_t strand) { current_[origin] = {thread, strand}; }
  void settle(uint32_t origin, const TaskPlace& place) {
    if (current_.erase(origin) != 0) {
      settled_.resize(kKept);
      settled_[origin % kKept] = {origin, place};
    }
  }
  struct Current {
    const Replay* thread;
    std::size_t strand;
  };
  /// Null if the origin is settled or unknown.
  const Current* find_current(uint32_t origin) const noexcept {
    const auto found = current_.find(origin);
    return found != current_.end() ? &found->second : nullptr;
  }
  /// Null if the origin is not settled, or was settled too long ago.
  const TaskPlace* find_settled(uint32_t origin) const noexcept {
    const Settled* settled = origin != 0 && !settled_.empty() ? &settled_[origin % kKept] : nullptr;
    return settled != nullptr && settled->origin == origin ? &settled->place : nullptr;
  }
  template <class F>
  void change_rows(F&& change) {
    for (Settled& settled : settled_) {
      settled.place.row = change(settled.place.row);
    }
  }
  template <class F>
  void each_path(F&& visit) {
    for (Settled& settled : settled_) {
      visit(settled.place.path);
    }
  }

 private:
  struct Settled {
    uint32_t origin = 0;
    TaskPlace place;
  };
  static constexpr std::size_t kKept = std::size_t{1} << 16;
  std::unordered_map<uint32_t, Current> current_;  // at most one per strand
  std::vector<Settled> settled_;
};

/// An unfinished call of a coroutine or generator with parts in this window.
struct CallInParts {
  uint32_t name = store::kNone;  // a string
  uint32_t path = store::kNone;  // of its first part
  uint32_t first = store::kNone;
  uint32_t last = store::kNone;  // the newest part
  int64_t ended_ns = 0;          // end of the newest part
  bool is_running = false;
  // in aggregate mode: of all parts
  int64_t ran_ns = 0;
  int64_t child_ns = 0;
  int64_t suspended_ns = 0;
};

/// The ring's position at its last eviction. Rows that lag behind the newest by more than the ring's length must not
/// trigger a search of all rows at each buffer.
struct LastEviction {
  std::optional<int64_t> newest_ns;
  std::size_t bytes_left = 0;
};

/// State shared by the parts of the decoder. Only for the decode thread, except `window`.
struct DecodeState {
  explicit DecodeState(const Settings& with) : settings(with) {}

  Settings settings;
  const base::Clock& clock = base::Clock::process();
  Window window;
  Dictionaries dictionaries;
  Correlations correlations;
  Totals totals;
  std::unique_ptr<store::Store> store = std::make_unique<store::Store>();
  Counters counters;
  bool full = false;  // full mode has reached its cap: no rows are added
  LastEviction last_eviction;
  std::size_t unread_names_bytes = 0;  // names of base::Names that are not in the dictionaries yet
  base::FlatMap<uint32_t> node_paths;  // graph node id -> path of its capture
  base::FlatMap<uint64_t> node_origins;

  Collectives collectives;
  ForwardOps forward_ops;
  base::FlatMap<StartedRange> started_ranges;  // by number
  base::FlatMap<int64_t> ended_ranges;         // ranges with unread starts: their end; INT64_MIN: the start was read

  Origins origins;
  uint64_t strands_begun = 0;
  std::function<void(int64_t at_ns)> read_others_until;  // reads the other threads' logs
  /// Ends a region of the task with this key that was entered on another thread than `here`. False if there is none.
  std::function<bool(const Replay& here, uint64_t task, int64_t at_ns, uint32_t name, uint32_t detail)> exit_elsewhere;
  std::unordered_map<uint32_t, CallInParts> calls;  // by number

  std::vector<GpuSpan> gpu_spans;       // not read yet
  base::FlatMap<uint32_t> gpu_rows;     // aggregate mode: path -> its row of region_gpu
  base::FlatMap<uint32_t> sample_rows;  // aggregate mode: stack and thread -> their row of python_sample

  void add_total(uint32_t path, int64_t duration_ns, int64_t child_ns, int64_t suspended_ns = 0) {
    if (totals.add_region(path, duration_ns, child_ns, suspended_ns)) {
      counters.unnamed += dictionaries.is_unnamed(dictionaries.path_name(path));
    }
  }
  void add_gpu_time(const GpuSpan& span, int64_t duration_ns) {
    if (aggregates()) {
      store->region_gpu.duration_ns[gpu_rows.find_or_make(span.path, [&] {
        return store->region_gpu.append({store::kNone, span.path, 0});
      })] += duration_ns;
    } else if (keeps_rows()) {
      store->region_gpu.append({span.region, span.path, duration_ns});
    } else {
      ++counters.refused;
    }
  }

  /// Adds a row of python_sample, or adds to the existing one.
  void add_sample(const store::PythonSamples::Row& row) {
    if (!aggregates()) {
      keeps_rows() ? static_cast<void>(store->python_sample.append(row)) : static_cast<void>(++counters.refused);
      return;
    }
    const uint64_t key = uint64_t{row.stack} << 16 | row.thread;
    store::PythonSamples& samples = store->python_sample;
    if (const uint32_t* known = sample_rows.find(key); known != nullptr) {
      samples.duration_ns[*known] += row.duration_ns;
      samples.cpu_ns[*known] += row.cpu_ns;
      samples.count[*known] += row.count;
    } else if (!totals.refuses()) {
      sample_rows.set(key, samples.append(row));
    } else {
      ++counters.refused;
    }
  }

  /// Records that the call was suspended for this long after its newest part.
  void note_suspension(const CallInParts& call, int64_t duration_ns) const {
    const auto* begin = store->resumption.region.begin();
    const auto* found = std::lower_bound(begin, store->resumption.region.end(), call.last);
    if (found != store->resumption.region.end() && *found == call.last) {
      store->resumption.suspended_ns[static_cast<std::size_t>(found - begin)] = duration_ns;
    }
  }
  /// At the end of the window: adds up the unfinished calls, or records how long they have been suspended.
  void close_calls(int64_t close_ns) {
    for (auto& [number, call] : calls) {
      const int64_t suspended_ns = call.is_running ? 0 : std::max<int64_t>(0, close_ns - call.ended_ns);
      if (aggregates() && call.path != store::kNone) {
        add_total(call.path, call.ran_ns, call.child_ns, call.suspended_ns + suspended_ns);
      } else if (call.last != store::kNone) {
        note_suspension(call, suspended_ns);
      }
    }
    calls.clear();
  }

  /// Records the time of a start/end range within the window. Ranges that began before the window get their row here.
  /// `stays_open`: only the window ends.
  void close_range(const StartedRange& range, int64_t end_ns, bool stays_open) {
    const int64_t open_ns = window.open_ns.load(std::memory_order_relaxed);
    end_ns = std::min(end_ns, window.close_ns.load(std::memory_order_relaxed));
    const bool is_clipped = range.start_ns < open_ns;
    if (is_clipped && end_ns <= open_ns) {
      return;
    }
    if (aggregates()) {
      if (is_clipped || window.keeps_regions(range.start_ns)) {
        const int64_t duration_ns = std::max<int64_t>(0, end_ns - std::max(range.start_ns, open_ns));
        add_total(range.path, duration_ns, duration_ns);  // overlaps others: no self time
      }
      return;
    }
    store::Regions& regions = store->region;
    uint32_t row = range.row;
    if (is_clipped && keeps_rows()) {
      constexpr uint16_t kFlags = store::kOpen | store::kAsync | store::kClipped;
      row = regions.append({open_ns, 0, store::kNone, range.path, range.thread, kFlags});
      counters.unnamed += dictionaries.is_unnamed(dictionaries.path_name(range.path));
    } else if (is_clipped) {
      counters.refused += full;
    }
    if (row != store::kNone) {
      regions.duration_ns[row] = std::max<int64_t>(0, end_ns - regions.start_ns[row]);
      regions.flags[row] &= static_cast<uint16_t>(stays_open ? ~0 : ~store::kOpen);
    }
  }
  /// Closes the ranges that are open at the end of the window.
  void close_ranges(int64_t close_ns) {
    started_ranges.each([&](uint64_t, StartedRange& range) {
      if (range.path != store::kNone) {
        close_range(range, close_ns, true);
      }
      range.row = store::kNone;
    });
  }

  /// Calls `visit(store::Target, id)` for each reference to a dictionary, from this state and from event rows.
  template <class F>
  void each_reference(F&& visit);

  bool keeps_rows() const noexcept { return settings.mode != Mode::Aggregate && !full; }
  bool aggregates() const noexcept { return settings.mode == Mode::Aggregate; }
};

template <class F>
void DecodeState::each_reference(F&& visit) {
  using store::Target;
  const auto visit_path = [&](uint32_t& path) { visit(Target::Paths, path); };
  node_paths.each([&](uint64_t, uint32_t& path) { visit_path(path); });
  started_ranges.each([&](uint64_t, StartedRange& range) {
    if (range.path != store::kNone) {
      visit_path(range.path);
      visit(Target::Threads, range.thread);
    }
  });
  origins.each_path(visit_path);
  for (auto& [number, call] : calls) {
    visit(Target::Strings, call.name);
    visit_path(call.path);
  }
  for (GpuSpan& span : gpu_spans) {
    visit_path(span.path);
  }
  store->each_table([&]<class Table>(Table& table) {
    if constexpr (Table::kInfo.role == store::Role::Event) {
      table.each_column([&](const store::ColumnInfo& info, auto& column) {
        if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(column[0])>>) {
          const Target target = info.meaning.target;
          for (std::size_t row = 0; target != Target::Nothing && row < column.size(); ++row) {
            visit(store::target_of(table, info, row), column[row]);
          }
        }
      });
    }
  });
}

/// The region of some work: a row of the region table, or a path in aggregate mode. kNone: outside every region.
using Reference = uint32_t;

/// The evicted rows of one table, and the new numbers of the others.
struct EvictedRows {
  uint32_t end = 0;            // rows before this one are evicted, except
  std::vector<uint32_t> kept;  // these, in order, which are now first

  /// The new number of a row. store::kNone for an evicted row.
  uint32_t renumber(uint32_t row) const noexcept {
    if (row == store::kNone || row >= end) {
      return row == store::kNone ? row : row - (end - static_cast<uint32_t>(kept.size()));
    }
    const auto found = std::lower_bound(kept.begin(), kept.end(), row);
    return found != kept.end() && *found == row ? static_cast<uint32_t>(found - kept.begin()) : store::kNone;
  }
  uint32_t count() const noexcept { return end - static_cast<uint32_t>(kept.size()); }
};

/// The evicted rows of every table.
class Eviction {
 public:
  EvictedRows& operator[](store::Target table) noexcept { return tables_[static_cast<std::size_t>(table)]; }
  const EvictedRows& operator[](store::Target table) const noexcept { return tables_[static_cast<std::size_t>(table)]; }
  uint32_t region(uint32_t row) const noexcept { return (*this)[store::Target::Regions].renumber(row); }
  uint32_t api(uint32_t row) const noexcept { return (*this)[store::Target::Apis].renumber(row); }
  uint32_t graph_launch(uint32_t row) const noexcept { return (*this)[store::Target::GraphLaunches].renumber(row); }

 private:
  std::array<EvictedRows, store::kTargets> tables_;
};

/// The memory of the event rows, in bytes.
std::size_t event_bytes(const store::Store& store);

/// Keeps the rows within their memory cap. Full and aggregate mode refuse further rows. Ring mode evicts the oldest:
/// then all row numbers outside the store must be renumbered with the returned Eviction. To be called every few
/// thousand rows.
std::optional<Eviction> keep_in_bounds(DecodeState& state);

/// Evicts all event rows except open regions and functions, which begin at `at_ns` from now on, and these driver calls,
/// in increasing order. The same applies to row numbers outside the store.
Eviction evict_ended(DecodeState& state, int64_t at_ns, std::span<const uint32_t> open_calls);

}  // namespace gpuscope::attribution
