// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpuscope/analysis/grouping.h"
#include "gpuscope/analysis/instances.h"
#include "gpuscope/analysis/names.h"
#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// Everything of one kind and name; regions also of one region kind. An inclusive time counts only the outermost region
/// of the name on a call path, so that recursion counts no moment twice; `durations` are those of all instances.
struct NameStat {
  Kind kind;
  uint32_t name;                      // in Summary::names
  uint32_t region_kind = 0;           // of a region: base::RegionKind
  uint32_t first_row = store::kNone;  // of regions, the first; kNone where single ones are not kept
  uint64_t bytes = 0;
  Durations durations{};
  int64_t cpu_ns = 0;
  int64_t self_cpu_ns = 0;
  int64_t device_ns = 0;
  int64_t self_device_ns = 0;
  int64_t cpu_bytes = 0;  // of regions, taken from the host's allocator less what was given back; inclusive
  int64_t self_cpu_bytes = 0;
  int64_t device_bytes = 0;
  int64_t self_device_bytes = 0;
  bool is_top_level = false;  // some instance lay in no region
};

/// What regions are grouped by beside their names.
struct RegionKeys {
  bool shapes = false;        // of their inputs
  uint32_t stack_frames = 0;  // so many of the innermost frames of their call stacks
};

struct RegionGroups {
  std::vector<NameStat> totals;        // in the order in which they first come up
  std::vector<uint32_t> group_of_row;  // of each region its place in `totals`; kNone for one without a valid path
};

/// `path_names` has the number of the name of each path: Summary::path_names.
RegionGroups group_regions(const store::Store& store, const Instances& instances, std::span<const uint32_t> path_names,
                           const RegionKeys& keys = {});

}  // namespace gpuscope::analysis
