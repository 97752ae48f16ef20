// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpuscope/attribution/correlations.h"
#include "gpuscope/attribution/dictionaries.h"
#include "gpuscope/attribution/forward_ops.h"
#include "gpuscope/attribution/switch.h"
#include "gpuscope/attribution/totals.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/store.h"

namespace gpuscope::attribution {

enum class Mode { Full, Ring, Aggregate };

struct Settings {
  Mode mode = Mode::Full;
  bool merge_graphs = false;  // one row a graph launch, also where CUPTI gives one a node
  bool by_time = false;       // launches are joined to regions by thread and time: no callbacks
  uint64_t max_bytes = uint64_t{1} << 30;
  int64_t ring_ns = 10'000'000'000;
  // What gets no rows, though it is counted like all else.
  bool no_kernels = false;
  bool no_copies = false;
  bool no_fills = false;
  bool no_calls = false;
};

/// The stretch of time whose launches are recorded. Written by the session, read by the decode thread.
struct Window {
  std::atomic<int64_t> open_ns{INT64_MAX};
  std::atomic<int64_t> close_ns{INT64_MAX};
  Switch gpu;      // driver calls and the GPU work that they ask for
  Switch regions;  // regions, operators and marks

  bool contains(int64_t at_ns) const noexcept {
    return at_ns >= open_ns.load(std::memory_order_acquire) && at_ns < close_ns.load(std::memory_order_relaxed);
  }
  bool keeps_calls(int64_t at_ns) const noexcept { return contains(at_ns) && !gpu.off_at(at_ns); }
  bool keeps_regions(int64_t at_ns) const noexcept { return contains(at_ns) && !regions.off_at(at_ns); }
};

/// What the audit counts. Zeroed with each window.
struct Counters {
  uint64_t launches = 0;
  uint64_t matched = 0;         // launches whose kernel arrived
  uint64_t copies = 0;          // calls that copy or fill
  uint64_t matched_copies = 0;  // of which a record came: some, as between host buffers, bring none
  uint64_t kernels = 0;
  uint64_t graph_launches = 0;
  uint64_t matched_graphs = 0;  // graph launches of which a record came
  uint64_t graph_nodes = 0;
  uint64_t zero_time = 0;
  uint64_t backward_time = 0;
  uint64_t incomplete = 0;
  uint64_t unattributed = 0;
  uint64_t unmatched_exits = 0;
  uint64_t unread_bytes = 0;
  uint64_t calls = 0;
  uint64_t region_events = 0;
  uint64_t gpu_records = 0;
  uint64_t refused = 0;  // rows over the memory cap
  uint64_t evicted = 0;  // rows that the ring let go
};

/// A region timed by CUDA events: the pair, and the region that it belongs to.
struct GpuSpan {
  uint32_t pair;
  uint32_t region;
  uint32_t path;
};

/// A start/end range that has not ended; path kNone: it has.
struct StartedRange {
  uint32_t path = store::kNone;
  uint32_t row = store::kNone;
  int64_t start_ns = 0;
};

/// What the parts of the decoder share. The decode thread alone, but for `window`.
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
  bool full = false;                   // the cap is reached: nothing more is added
  base::FlatMap<uint32_t> node_paths;  // graph node id -> path of its capture
  base::FlatMap<uint64_t> node_origins;

  ForwardOps forward_ops;
  base::FlatMap<StartedRange> started_ranges;  // by number
  base::FlatMap<int64_t> ended_ranges;         // those whose start was not read yet: when they ended; INT64_MIN: it was

  std::vector<GpuSpan> gpu_spans;    // not read yet
  base::FlatMap<uint32_t> gpu_rows;  // aggregate mode: path -> its one row of region_gpu

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

  bool keeps_rows() const noexcept { return settings.mode != Mode::Aggregate && !full; }
  bool aggregates() const noexcept { return settings.mode == Mode::Aggregate; }
};

/// The region that work belongs to: a row of the region table, or in aggregate mode a path. kNone: outside every
/// region.
using Reference = uint32_t;

}  // namespace gpuscope::attribution
