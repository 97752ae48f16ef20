// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

/// What each region came to: one entry a row of the region table, times in ns, memory in bytes.
///
/// Self leaves out what regions and driver calls inside have. Start/end ranges (kAsync) overlap whatever runs beside
/// them: they have no self time, no GPU work and no memory.
///
/// An operator that only calls another overload of its name is counted once, as torch.profiler does: `counted_as`. So
/// is a call of a coroutine or generator that ran in several parts: as its first, which has the time of all in
/// `ran_ns`.
struct Instances {
  std::vector<int64_t> self_cpu_ns;
  std::vector<int64_t> device_ns;
  std::vector<int64_t> self_device_ns;
  std::vector<int64_t> cpu_bytes;  // taken from the host's allocator less what was given back
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
