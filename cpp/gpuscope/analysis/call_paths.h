// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

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

}  // namespace gpuscope::analysis
