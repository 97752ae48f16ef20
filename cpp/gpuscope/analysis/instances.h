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

/// For each node of a forest whether no node that it lies in is of its group. `parents` has the row of the node around
/// each, of roots no row; nodes of loops, as damaged files have them, are taken for outermost.
std::vector<bool> find_outermost(std::span<const uint32_t> parents, std::span<const uint32_t> groups);

/// The path table, checked: a parent always has a lower row than its child, so loops in damaged files cannot be.
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
  /// For each path, whether none of those it lies in has its name and kind.
  std::vector<bool> outermost() const;

 private:
  const store::Paths& paths_;
  const store::Regions& regions_;
};

/// Totals of each region: one entry for each row of the region table, times in ns, memory in bytes.
///
/// Self time: the region is open, and nothing opened inside it on its thread is (a region, a region of a task created
/// in it, a driver call). A region inside may outlast it. GPU work and memory include those of regions inside, until
/// the region ends: later launches of a region that outlasts it do not count. Start/end ranges (kAsync) overlap other
/// work: they have no self time, no GPU work and no memory.
///
/// An operator that only calls another overload of its name is counted once, as in torch.profiler: `counted_as`. A call
/// of a coroutine or generator that ran in several parts is counted as its first part, with the time of all in
/// `ran_ns`.
struct Instances {
  std::vector<int64_t> self_cpu_ns;
  std::vector<int64_t> device_ns;
  std::vector<int64_t> self_device_ns;
  bool crosses = false;                 // some region outlasts the one that it was opened in
  std::vector<int64_t> late_device_ns;  // launched inside after it was left, not in `device_ns`; empty: nothing was
  std::vector<int64_t> cpu_bytes;       // taken from the host's allocator less what was given back
  std::vector<int64_t> self_cpu_bytes;
  std::vector<int64_t> device_bytes;  // likewise from the GPUs'
  std::vector<int64_t> self_device_bytes;
  std::vector<uint8_t> outermost;    // no region that it lies in has its name
  std::vector<uint32_t> forward;     // of the innermost backward operator that it is or lies in; kNone for none
  std::vector<uint32_t> stack;       // the call stack; of what has a `forward`, the call stack of that
  std::vector<uint32_t> counted_as;  // itself; of a region that is all that one of its name has inside, that one
  std::vector<int64_t> ran_ns;       // how long it ran, of the first part of a call with the others; empty: as recorded
  std::vector<int64_t> suspended_ns;  // of the first part of a call, how long that was suspended; empty: none was

  std::span<const int64_t> durations(const store::Regions& regions) const noexcept {
    return ran_ns.empty() ? std::span(regions.duration_ns.data(), regions.size()) : std::span(ran_ns);
  }
  int64_t suspended(std::size_t row) const noexcept { return suspended_ns.empty() ? 0 : suspended_ns[row]; }
};

Instances measure_instances(const store::Store& store);

/// Work that was launched in a region after one around it had been left: it is the region's own, and counts for what is
/// still open around that, but not for the one that was left.
///
/// Only what opened while the other was open outlasts it. A task that begins later lies in the region that created it,
/// with all of its work, and a part of a call of a coroutine is never left before the call ends. One thread.
class LateWork {
 public:
  /// `crosses`: of Instances, so that a recording without such regions costs nothing.
  LateWork(const store::Store& store, bool crosses);

  /// Whether work of the region may be late.
  bool may_be_in(uint32_t region) const noexcept { return region < outlasts_.size() && outlasts_[region]; }
  /// When a row of work, of a region that may have late work, was launched; where no call is known, when it began.
  template <class Table>
  int64_t launched_ns(const Table& table, std::size_t row) const {
    const auto found = launched_ns_.find(table.correlation[row]);
    return found != launched_ns_.end() ? found->second : table.start_ns[row];
  }
  /// Calls `visit(row)` for each region around `region` that had been left by then.
  template <class F>
  void each_left(uint32_t region, int64_t at_ns, F&& visit) const {
    for (uint32_t inner = region, around = parent_of(inner); around != store::kNone; around = parent_of(inner)) {
      if (is_outlasted(around, inner) && end_of(around) <= at_ns) {
        visit(around);
      }
      inner = around;
    }
  }
  /// The path of work that was launched in `region` then, without the regions that had been left; that of the region
  /// where no work was recorded on such a path.
  uint32_t path_at(uint32_t region, int64_t at_ns);

 private:
  int64_t end_of(uint32_t region) const { return regions_.start_ns[region] + regions_.duration_ns[region]; }
  /// kNone for none on the thread. Damaged files may have loops, whose parents do not stand before.
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
  std::vector<bool> outlasts_;                         // empty where no region does
  std::unordered_map<uint32_t, int64_t> launched_ns_;  // by correlation, of calls in those
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> renamed_;
};

/// How functions of Python, regions and driver calls lie in each other by their times; kNone for "in none of these".
struct FunctionNesting {
  // One entry a row of the table of functions; times in ns.
  std::vector<int64_t> self_cpu_ns;   // without functions, regions and calls inside
  std::vector<int64_t> total_cpu_ns;  // 0 of those that lie in another of their name
  std::vector<uint32_t> caller;       // the function directly around
  std::vector<uint32_t> region;       // or the region, which then lies in the caller
  // Of each region likewise, without functions inside too; 0 of those that overlap what runs beside them.
  std::vector<int64_t> region_self_cpu_ns;
  // The function directly around each region and each driver call; none where a region is.
  std::vector<uint32_t> region_caller;
  std::vector<uint32_t> call_caller;
};

FunctionNesting nest_functions(const store::Store& store);

}  // namespace gpuscope::analysis
