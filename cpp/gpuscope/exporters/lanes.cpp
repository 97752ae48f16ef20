// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/lanes.h"

namespace gpuscope::exporters {

using store::kNone;

void place_side_by_side(Strand& strand) {
  std::vector<int64_t> free_at_ns;
  for (Slice& slice : strand.slices) {
    uint32_t lane = 0;
    while (lane < free_at_ns.size() && free_at_ns[lane] > slice.start_ns) {
      ++lane;
    }
    if (lane == free_at_ns.size()) {
      free_at_ns.push_back(0);
    }
    free_at_ns[lane] = slice.end_ns;
    slice.lane = lane & kMaxLane;
  }
  strand.lanes = static_cast<uint32_t>(free_at_ns.size());
}

void place_within(Strand& strand) {
  struct Open {
    int64_t end_ns;
    bool holds;
  };
  std::vector<std::vector<Open>> lanes(1);
  for (Slice& slice : strand.slices) {
    uint32_t lane = 0;
    for (;; ++lane) {
      if (lane == lanes.size()) {
        lanes.emplace_back();
      }
      std::vector<Open>& open = lanes[lane];
      while (!open.empty() && open.back().end_ns <= slice.start_ns) {
        open.pop_back();
      }
      if (open.empty() || (open.back().holds && open.back().end_ns >= slice.end_ns)) {
        open.push_back({slice.end_ns, slice.source == Source::Annotation});
        break;
      }
    }
    slice.lane = lane & kMaxLane;
  }
  strand.lanes = static_cast<uint32_t>(lanes.size());
}

RegionLanes::RegionLanes(const store::Store& store) : store_(store), lane_of_region_(store.region.size(), kNone) {}

void RegionLanes::place(Strand& strand) {
  lanes_.assign(1, {});
  for (Slice& slice : strand.slices) {
    if (slice.source == Source::Mark || slice.source == Source::Allocation) {
      continue;  // an instant overlaps nothing
    }
    slice.lane = find_lane(slice) & kMaxLane;
    const bool is_region = slice.source == Source::Region;
    lanes_[slice.lane].push_back({slice.end_ns, is_region ? slice.row : parent_of(slice)});
    if (is_region) {
      lane_of_region_[slice.row] = slice.lane;
    }
  }
  strand.lanes = static_cast<uint32_t>(lanes_.size());
  for (const Slice& slice : strand.slices) {
    if (slice.source == Source::Region) {
      lane_of_region_[slice.row] = kNone;  // other threads have other lanes
    }
  }
}

uint32_t RegionLanes::parent_of(const Slice& slice) const {
  return slice.source == Source::Region ? store_.region.parent[slice.row] : store_.api.region[slice.row];
}

uint32_t RegionLanes::find_lane(const Slice& slice) {
  for (auto& lane : lanes_) {
    while (!lane.empty() && lane.back().end_ns <= slice.start_ns) {
      lane.pop_back();
    }
  }
  const uint32_t parent = parent_of(slice);
  const uint32_t beside_parent = parent < lane_of_region_.size() ? lane_of_region_[parent] : kNone;
  if (beside_parent != kNone && is_below(beside_parent, parent, slice.end_ns)) {
    return beside_parent;
  }
  uint32_t around = kNone;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].empty()) {
      return lane;
    }
    if (around == kNone && lanes_[lane].back().end_ns >= slice.end_ns) {
      around = lane;
    }
  }
  // A call whose region is not known may as well be drawn within what surrounds it.
  if (slice.source == Source::Api && around != kNone) {
    return around;
  }
  lanes_.emplace_back();
  return static_cast<uint32_t>(lanes_.size() - 1);
}

bool RegionLanes::is_below(uint32_t lane, uint32_t parent, int64_t end_ns) const {
  return !lanes_[lane].empty() && lanes_[lane].back().region == parent && lanes_[lane].back().end_ns >= end_ns;
}

}  // namespace gpuscope::exporters
