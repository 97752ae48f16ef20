// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/analysis/grouping.h"
#include "gpuscope/analysis/instances.h"
#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// A region, or a kind of work in store::Work.
enum class Kind : uint16_t { Region = 0, Kernel = 1, Memcpy = 2, Memset = 3, Call = 4, Sync = 5, GraphLaunch = 6 };

/// Whether it runs on the GPU instead of the calling thread.
constexpr bool is_device(Kind kind) noexcept {
  return kind == Kind::Kernel || kind == Kind::Memcpy || kind == Kind::Memset || kind == Kind::GraphLaunch;
}

/// Assigns numbers to displayed names. Demangles each kernel once. One thread.
class DisplayNames {
 public:
  explicit DisplayNames(const store::Store& store) : store_(store) {}

  uint32_t intern(std::string_view text);

  uint32_t of_string(uint32_t id);
  /// Regions of one name and different kinds have different numbers. Steps of a schedule share one name, as in
  /// torch.profiler: "ProfilerStep*".
  uint32_t of_region(uint32_t id, uint32_t kind);
  uint32_t of_kernel(uint32_t id);
  uint32_t of_call(uint32_t id);
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  const store::Store& store_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::unordered_map<std::string, uint32_t> regions_;
  std::unordered_map<uint32_t, uint32_t> kernels_;
};

/// The name of a row of the event table for `kind`. Kernels are demangled. Driver calls have the runtime's name.
std::string event_name(const store::Store& store, Kind kind, std::size_t row);

/// The total of one kind and name, and for regions also region kind. Inclusive times count only the outermost region of
/// the name on a call path, so recursion counts no moment twice. `durations` covers all instances.
struct NameStat {
  Kind kind;
  uint32_t name;                      // in Summary::names
  uint32_t region_kind = 0;           // of a region: base::RegionKind
  uint32_t first_row = store::kNone;  // the first region; kNone if single regions are not kept
  uint64_t bytes = 0;
  Durations durations{};
  int64_t cpu_ns = 0;
  int64_t self_cpu_ns = 0;
  int64_t suspended_ns = 0;  // not in cpu_ns: suspended time of coroutines and generators
  int64_t device_ns = 0;
  int64_t self_device_ns = 0;
  int64_t cpu_bytes = 0;  // of regions, allocated minus freed, host allocator; inclusive
  int64_t self_cpu_bytes = 0;
  int64_t device_bytes = 0;
  int64_t self_device_bytes = 0;
  bool is_top_level = false;  // some instance is in no region
};

/// The grouping keys of regions, besides the name.
struct RegionKeys {
  bool shapes = false;        // of their inputs
  uint32_t stack_frames = 0;  // number of innermost frames of the call stack
  bool overloads = false;     // which overload of the operator
};

struct RegionGroups {
  std::vector<NameStat> totals;        // in order of first appearance
  std::vector<uint32_t> group_of_row;  // index in `totals` of each region; kNone without a valid path
};

/// `path_names`: see Summary::path_names.
RegionGroups group_regions(const store::Store& store, const Instances& instances, std::span<const uint32_t> path_names,
                           const RegionKeys& keys = {});

/// The capture of a graph node that was captured before profiling began.
inline constexpr uint32_t kUnknownCapture = store::kNone - 1;

/// The regions of one call path. Device time is that of GPU work launched inside, at whatever time it ran.
struct PathStat {
  Durations cpu;               // inclusive
  int64_t suspended_ns = 0;    // not in cpu: suspended time of coroutines and generators
  int64_t self_cpu_ns = 0;     // without regions and driver calls directly inside, same thread
  int64_t self_device_ns = 0;  // launched here, not in inner regions
  int64_t device_ns = 0;       // inclusive
};

/// Work of one name launched on one call path.
struct WorkStat {
  Kind kind;
  uint32_t name;     // in Summary::names
  uint32_t path;     // kNone: outside every region
  uint32_t capture;  // path on which a graph node was captured; kNone: not in a graph
  uint64_t bytes;
  Durations durations;
};

/// The totals of a recording, per call path and per name. Plain data.
struct Summary {
  std::vector<std::string> names;    // kernels demangled
  std::vector<PathStat> paths;       // one per row of the path table
  std::vector<uint32_t> path_names;  // likewise, the index in `names`; differs per region kind
  std::vector<WorkStat> work;
  Instances instances;           // of each region; empty in aggregate mode
  RegionGroups regions;          // likewise, by name
  std::vector<NameStat> totals;  // work by name; in aggregate mode regions too
  int64_t cpu_ns = 0;            // self CPU times summed
  int64_t device_ns = 0;         // sum of GPU work, or GPU time of outermost regions if only that was measured
  bool has_device = false;       // some GPU time was recorded
};

/// Reads event rows and aggregate rows. Event rows give exact values, aggregate rows give quantiles from histograms.
Summary summarize(const store::Store& store);

}  // namespace gpuscope::analysis
