// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// For each node of a forest, whether no surrounding node is of its group. `parents`: the row of each node's parent, no
/// valid row for roots. Nodes of loops, as in damaged files, count as outermost.
std::vector<bool> find_outermost(std::span<const uint32_t> parents, std::span<const uint32_t> groups);

/// The path table, checked: parents must have lower rows than children, so damaged files cause no loops.
class CallPaths {
 public:
  explicit CallPaths(const store::Store& store) : paths_(store.path), regions_(store.region) {}

  std::size_t size() const noexcept { return paths_.size(); }
  uint32_t name(uint32_t path) const noexcept { return paths_.name[path]; }
  /// A base::RegionKind.
  uint32_t kind(uint32_t path) const noexcept { return paths_.kind[path]; }
  /// kNone for an outermost region.
  uint32_t parent(uint32_t path) const noexcept {
    return paths_.parent[path] < path ? paths_.parent[path] : store::kNone;
  }
  uint32_t valid(uint32_t path) const noexcept { return path < size() ? path : store::kNone; }
  /// The path of a row of the region table.
  uint32_t of_region(uint32_t region) const noexcept {
    return region < regions_.size() ? valid(regions_.path[region]) : store::kNone;
  }
  /// For each path, whether no surrounding path has its name and kind.
  std::vector<bool> outermost() const;

 private:
  const store::Paths& paths_;
  const store::Regions& regions_;
};

/// Totals of each region: one entry per row of the region table, times in ns, memory in bytes.
///
/// Self time: the region is open, and nothing opened inside it is open on its thread (a region, a region of a task
/// created in it, a driver call). GPU work and memory include inner regions, until the region ends: later launches of
/// an inner region that outlasts it do not count. Start/end ranges (kAsync) overlap other work. They have no self time,
/// GPU work or memory.
///
/// An operator that only calls another overload of its name counts once, as in torch.profiler: `counted_as`. A
/// coroutine or generator call with several parts counts as its first part, with the time of all parts in `ran_ns`.
struct Instances {
  std::vector<int64_t> self_cpu_ns;
  std::vector<int64_t> device_ns;
  std::vector<int64_t> self_device_ns;
  bool crosses = false;                 // some region outlasts the region in which it was opened
  std::vector<int64_t> late_device_ns;  // launched inside after the region was left, not in `device_ns`; empty: none
  std::vector<int64_t> cpu_bytes;       // allocated minus freed, host allocator
  std::vector<int64_t> self_cpu_bytes;
  std::vector<int64_t> device_bytes;  // the same for GPU allocators
  std::vector<int64_t> self_device_bytes;
  std::vector<uint8_t> outermost;     // no surrounding region has its name
  std::vector<uint32_t> forward;      // of the innermost backward operator at or around it; kNone for none
  std::vector<uint32_t> stack;        // the call stack, with `forward` the forward operator's
  std::vector<uint32_t> counted_as;   // itself; or the inner region, if it is the only one, of the same name
  std::vector<int64_t> ran_ns;        // run time, for the first part of a call with the other parts; empty: as recorded
  std::vector<int64_t> suspended_ns;  // for the first part of a call, its suspended time; empty: none

  std::span<const int64_t> durations(const store::Regions& regions) const noexcept {
    return ran_ns.empty() ? std::span(regions.duration_ns.data(), regions.size()) : std::span(ran_ns);
  }
  int64_t suspended(std::size_t row) const noexcept { return suspended_ns.empty() ? 0 : suspended_ns[row]; }
};

Instances measure_instances(const store::Store& store);

/// Work launched in a region after a surrounding region was left. It belongs to the inner region and to surrounding
/// regions that are still open, but not to the region that was left.
///
/// Only regions opened while the other was open can outlast it. A later task is inside the region that created it, with
/// all its work. A part of a coroutine call is never left before the call ends. One thread.
class LateWork {
 public:
  /// `crosses`: from Instances. False skips all work.
  LateWork(const store::Store& store, bool crosses);

  /// Whether work of the region may be late.
  bool may_be_in(uint32_t region) const noexcept { return region < outlasts_.size() && outlasts_[region]; }
  /// The launch time of a row of work, for regions that may have late work. Without a known call, the start of the
  /// work.
  template <class Table>
  int64_t launched_ns(const Table& table, std::size_t row) const {
    const auto found = launched_ns_.find(table.correlation[row]);
    return found != launched_ns_.end() ? found->second : table.start_ns[row];
  }
  /// Calls `visit(row)` for each surrounding region of `region` that was left before `at_ns`.
  template <class F>
  void each_left(uint32_t region, int64_t at_ns, F&& visit) const {
    for (uint32_t inner = region, around = parent_of(inner); around != store::kNone; around = parent_of(inner)) {
      if (is_outlasted(around, inner) && end_of(around) <= at_ns) {
        visit(around);
      }
      inner = around;
    }
  }
  /// The path of work launched in `region` at `at_ns`, without regions that had been left. The region's own path if no
  /// work was recorded on such a path.
  uint32_t path_at(uint32_t region, int64_t at_ns);

 private:
  int64_t end_of(uint32_t region) const { return regions_.start_ns[region] + regions_.duration_ns[region]; }
  /// kNone if there is none on the thread. Damaged files may have loops: parents must precede.
  uint32_t parent_of(uint32_t region) const {
    const uint32_t parent = regions_.parent[region];
    return parent < region && regions_.thread[parent] == regions_.thread[region] ? parent : store::kNone;
  }
  bool is_outlasted(uint32_t around, uint32_t inner) const {
    return !is_part_[around] && regions_.start_ns[inner] < end_of(around);
  }
  uint32_t named_as(uint32_t path, uint32_t parent);

  const store::Regions& regions_;
  const store::Paths& path_table_;
  CallPaths paths_;
  std::vector<bool> is_part_;
  std::vector<bool> outlasts_;                         // empty if no region outlasts another
  std::unordered_map<uint32_t, int64_t> launched_ns_;  // by correlation, of calls in such regions
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> renamed_;
};

/// The nesting of Python functions, regions and driver calls by their times. kNone: not nested.
struct FunctionNesting {
  // One entry per row of the function table. Times in ns.
  std::vector<int64_t> self_cpu_ns;   // without inner functions, regions and calls
  std::vector<int64_t> total_cpu_ns;  // 0 inside another function of the same name
  std::vector<uint32_t> caller;       // the function directly around
  std::vector<uint32_t> region;       // or the region inside the caller
  // The same for regions, without inner functions. 0 for regions that overlap concurrent ones.
  std::vector<int64_t> region_self_cpu_ns;
  // The function directly around each region and driver call. None if a region is in between.
  std::vector<uint32_t> region_caller;
  std::vector<uint32_t> call_caller;
};

FunctionNesting nest_functions(const store::Store& store);

}  // namespace gpuscope::analysis
