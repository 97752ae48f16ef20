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

/// A region, or the kind of work that store::Work numbers.
enum class Kind : uint16_t { Region = 0, Kernel = 1, Memcpy = 2, Memset = 3, Call = 4, Sync = 5, GraphLaunch = 6 };

/// Runs on the GPU, rather than on the thread that asked for it.
constexpr bool is_device(Kind kind) noexcept {
  return kind == Kind::Kernel || kind == Kind::Memcpy || kind == Kind::Memset || kind == Kind::GraphLaunch;
}

/// Hands out numbers for the names that people read; each kernel is demangled once. One thread.
class DisplayNames {
 public:
  explicit DisplayNames(const store::Store& store) : store_(store) {}

  uint32_t intern(std::string_view text);

  uint32_t of_string(uint32_t id);
  /// Regions of one name and different kinds have different numbers. The steps of a schedule share one name, as in
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

/// The name of one row of the event table that `kind` is about; kernels are demangled, driver calls are the runtime's.
std::string event_name(const store::Store& store, Kind kind, std::size_t row);

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
  int64_t suspended_ns = 0;  // beside cpu_ns: of coroutines and generators, from start to end
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
  bool overloads = false;     // which of the operators of their name they are
};

struct RegionGroups {
  std::vector<NameStat> totals;        // in the order in which they first come up
  std::vector<uint32_t> group_of_row;  // of each region its place in `totals`; kNone for one without a valid path
};

/// `path_names` has the number of the name of each path: Summary::path_names.
RegionGroups group_regions(const store::Store& store, const Instances& instances, std::span<const uint32_t> path_names,
                           const RegionKeys& keys = {});

/// The capture of a graph's node that was captured before profiling began.
inline constexpr uint32_t kUnknownCapture = store::kNone - 1;

/// The regions of one call path. Device time is that of GPU work launched inside, whenever it ran.
struct PathStat {
  Durations cpu;               // inclusive
  int64_t suspended_ns = 0;    // beside that: of coroutines and generators, from start to end
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
