// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpuscope/analysis/grouping.h"
#include "gpuscope/analysis/instances.h"
#include "gpuscope/analysis/names.h"
#include "gpuscope/analysis/region_groups.h"
#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// The capture of a graph's node that was captured before profiling began.
inline constexpr uint32_t kUnknownCapture = store::kNone - 1;

/// The regions of one call path. Device time is that of GPU work launched inside, whenever it ran.
struct PathStat {
  Durations cpu;               // inclusive
  int64_t self_cpu_ns = 0;     // less regions and driver calls directly inside, on the same thread
  int64_t self_device_ns = 0;  // launched here and in no region inside
  int64_t device_ns = 0;       // inclusive
};

/// Work of one name launched on one call path.
struct WorkStat {
  Kind kind;
  uint32_t name;     // in Summary::names
  uint32_t path;     // kNone: outside every region
  uint32_t capture;  // path on which a graph's node was captured; kNone: not in a graph
  uint64_t bytes;
  Durations durations;
};

/// What a recording comes to, per call path and per name. Plain data.
struct Summary {
  std::vector<std::string> names;    // kernels demangled
  std::vector<PathStat> paths;       // one a row of the path table
  std::vector<uint32_t> path_names;  // likewise: the number in `names`, another one for each kind of region
  std::vector<WorkStat> work;
  Instances instances;           // of each region; empty in aggregate mode, which keeps no single ones
  RegionGroups regions;          // likewise, by name
  std::vector<NameStat> totals;  // work by name; in aggregate mode regions too
  int64_t cpu_ns = 0;            // self CPU times summed
  int64_t device_ns = 0;         // GPU work summed, or the GPU time of outermost regions where only that was measured
  bool has_device = false;       // some GPU time was recorded
};

/// Reads event rows and aggregate rows alike: exact from events, quantiles from histograms in aggregate mode.
Summary summarize(const store::Store& store);

}  // namespace gpuscope::analysis
