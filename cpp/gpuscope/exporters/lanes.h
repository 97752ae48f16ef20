// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/exporters/timeline.h"

namespace gpuscope::exporters {

/// Gives each slice the first lane that is free when it begins, so that slices of a lane never overlap.
void place_side_by_side(Strand& strand);

/// The same, but that GPU annotations may hold slices that lie within them.
void place_within(Strand& strand);

/// Puts regions and calls into lanes where each lies within its parent: tasks that take turns on one thread overlap
/// without nesting, and go to lanes of their own.
class RegionLanes {
 public:
  explicit RegionLanes(const store::Store& store);
  void place(Strand& strand);

 private:
  struct Open {
    int64_t end_ns;
    uint32_t region;
  };
  uint32_t parent_of(const Slice& slice) const;
  uint32_t find_lane(const Slice& slice);
  bool is_below(uint32_t lane, uint32_t parent, int64_t end_ns) const;

  const store::Store& store_;
  std::vector<uint32_t> lane_of_region_;  // kNone until placed on this strand
  std::vector<std::vector<Open>> lanes_;  // what is open in each, outermost first
};

}  // namespace gpuscope::exporters
