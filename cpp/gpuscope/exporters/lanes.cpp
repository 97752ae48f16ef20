// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/lanes.h"

#include <algorithm>

namespace gpuscope::exporters {

void Lanes::clear() { *this = Lanes(); }

void Lanes::advance(int64_t now_ns) {
  while (nodes_[1].ends_ns <= now_ns) {
    std::size_t node = 1;
    while (node < leaves_) {
      node *= 2;
      node += nodes_[node].ends_ns <= now_ns ? 0 : 1;
    }
    const auto lane = static_cast<uint32_t>(node - leaves_);
    while (!open_[lane].empty() && open_[lane].back().end_ns <= now_ns) {
      open_[lane].pop_back();
    }
    update(lane);
  }
}

void Lanes::open(uint32_t lane, Open what) {
  if (lane == open_.size()) {
    open_.emplace_back();
    make_room();
  }
  open_[lane].push_back(what);
  update(lane);
}

uint32_t Lanes::find_first(int64_t end_ns) const {
  std::size_t node = 1;
  while (node < leaves_) {
    node *= 2;
    node += nodes_[node].room_until_ns < end_ns ? 1 : 0;
  }
  return static_cast<uint32_t>(node - leaves_);
}

void Lanes::update(uint32_t lane) {
  constexpr int64_t kTaken = INT64_MIN;
  std::size_t node = leaves_ + lane;
  const Open* open = innermost(lane);
  nodes_[node] = open == nullptr ? Node{} : Node{open->end_ns, open->holds ? open->end_ns : kTaken};
  for (node /= 2; node > 0; node /= 2) {
    const Node& left = nodes_[2 * node];
    const Node& right = nodes_[2 * node + 1];
    nodes_[node] = {std::min(left.ends_ns, right.ends_ns), std::max(left.room_until_ns, right.room_until_ns)};
  }
}

void Lanes::make_room() {
  if (open_.size() < leaves_) {
    return;
  }
  leaves_ *= 2;
  nodes_.assign(2 * leaves_, {});
  for (uint32_t lane = 0; lane < open_.size(); ++lane) {
    update(lane);
  }
}

void place_work(Track& track) {
  Lanes lanes;
  for (Slice& slice : track.slices) {
    lanes.advance(slice.start_ns);
    const uint32_t lane = lanes.first_around(slice.end_ns);
    lanes.open(lane, {slice.end_ns, slice.source == Source::Annotation, store::kNone});
    slice.lane = lane & kMaxLane;
  }
  track.lanes = lanes.size();
}

// -- regions, calls and functions -------------------------------------------------------------------------------------

namespace {

// Instants overlap nothing, and functions are placed later.
bool has_lane(const Slice& slice) { return slice.source == Source::Region || slice.source == Source::Api; }

/// Functions nest with each other and with regions. Exceptions go to separate lanes: functions inside which a longer
/// region begins (`__enter__`) or an earlier region ends, and functions that outlast others inside which they began.
void place_functions(Track& track) {
  std::vector<Slice*> functions;        // open ones, outermost first
  std::vector<int64_t> region_ends_ns;  // the same for regions and calls of the first lane
  std::vector<Slice*> moved;
  const auto end_before = [](auto& open, int64_t at_ns, auto&& end_of) {
    while (!open.empty() && end_of(open.back()) <= at_ns) {
      open.pop_back();
    }
  };
  for (Slice& slice : track.slices) {
    const bool is_function = slice.source == Source::PythonFunction;
    if (!is_function && (!has_lane(slice) || slice.lane != 0)) {
      continue;
    }
    end_before(functions, slice.start_ns, [](const Slice* open) { return open->end_ns; });
    end_before(region_ends_ns, slice.start_ns, [](int64_t end_ns) { return end_ns; });
    if (!is_function) {
      for (; !functions.empty() && functions.back()->end_ns < slice.end_ns; functions.pop_back()) {
        moved.push_back(functions.back());
      }
      region_ends_ns.push_back(slice.end_ns);
    } else if ((!region_ends_ns.empty() && region_ends_ns.back() < slice.end_ns) ||
               (!functions.empty() && functions.back()->end_ns < slice.end_ns)) {
      moved.push_back(&slice);
    } else {
      functions.push_back(&slice);
    }
  }
  std::ranges::sort(moved);  // by start again
  Lanes lanes;
  for (Slice* slice : moved) {
    lanes.advance(slice->start_ns);
    const uint32_t lane = lanes.first_around(slice->end_ns);
    lanes.open(lane, {slice->end_ns, true, store::kNone});
    slice->lane = (track.lanes + lane) & kMaxLane;
  }
  track.lanes += lanes.size();
}

}  // namespace

void RegionLanes::place(Track& track) {
  lanes_.clear();
  for (Slice& slice : track.slices) {
    if (!has_lane(slice)) {
      continue;
    }
    lanes_.advance(slice.start_ns);
    const uint32_t lane = find_lane(slice);
    const bool is_region = slice.source == Source::Region;
    lanes_.open(lane, {slice.end_ns, true, is_region ? slice.row : parent_of(slice)});
    slice.lane = lane & kMaxLane;
    if (is_region) {
      lane_of_region_[slice.row] = lane;
    }
  }
  track.lanes = std::max(lanes_.size(), 1U);
  for (const Slice& slice : track.slices) {
    if (slice.source == Source::Region) {
      lane_of_region_[slice.row] = store::kNone;  // other threads have other lanes
    }
  }
  place_functions(track);
}

uint32_t RegionLanes::find_lane(const Slice& slice) const {
  const uint32_t parent = parent_of(slice);
  const uint32_t beside_parent = parent < lane_of_region_.size() ? lane_of_region_[parent] : store::kNone;
  if (beside_parent != store::kNone && is_below(beside_parent, parent, slice.end_ns)) {
    return beside_parent;
  }
  const uint32_t free = lanes_.first_free();
  // A call without a known region is drawn inside the surrounding slice.
  return free == lanes_.size() && slice.source == Source::Api ? lanes_.first_around(slice.end_ns) : free;
}

bool RegionLanes::is_below(uint32_t lane, uint32_t parent, int64_t end_ns) const {
  const Lanes::Open* open = lanes_.innermost(lane);
  return open != nullptr && open->region == parent && open->end_ns >= end_ns;
}

}  // namespace gpuscope::exporters
