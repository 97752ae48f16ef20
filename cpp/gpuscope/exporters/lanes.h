// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// The table of the slice's row.
enum class Source : uint8_t {
  PythonFunction,  // first: outermost among slices with equal times
  Region,
  Api,
  Mark,
  Allocation,
  FailedAllocation,
  Annotation,  // of GpuAnnotations
  Kernel,
  Memcpy,
  Memset,
  GraphLaunch,
  Sync,
  PythonSample  // of Timeline::sampled_calls
};

inline constexpr uint32_t kMaxLane = (1U << 24) - 1;

struct Slice {
  int64_t start_ns;
  int64_t end_ns;
  uint32_t row;
  uint32_t lane : 24;
  Source source : 8;
};

/// The slices of a thread or stream by start, outer before inner. Slices of a lane do not overlap, except that they
/// nest on threads: trace viewers drop violations. Python functions have no influence on the places of other slices.
struct Track {
  uint32_t row;  // of the store's thread or track table, the first with this id
  uint32_t lanes;
  std::vector<Slice> slices;
};

/// The open slices of each lane of a track. Slices come sorted by start. Each costs the logarithm of the number of
/// lanes: tens of thousands of tasks need as many. One thread.
class Lanes {
 public:
  struct Open {
    int64_t end_ns;
    bool holds;       // later slices may be inside it
    uint32_t region;  // it is, or is a call of
  };

  void clear();
  /// The number of lanes used so far.
  uint32_t size() const noexcept { return static_cast<uint32_t>(open_.size()); }
  /// Ends the slices that have ended by `now_ns`.
  void advance(int64_t now_ns);
  /// The first empty lane, possibly a new one.
  uint32_t first_free() const { return find_first(kNever); }
  /// The first lane that is empty, or whose innermost slice may contain others and ends no earlier.
  uint32_t first_around(int64_t end_ns) const { return find_first(end_ns); }
  /// The innermost open slice of a lane. Null if it is empty.
  const Open* innermost(uint32_t lane) const { return open_[lane].empty() ? nullptr : &open_[lane].back(); }
  void open(uint32_t lane, Open what);

 private:
  static constexpr int64_t kNever = INT64_MAX;
  struct Node {
    int64_t ends_ns = kNever;        // leaf: end of the innermost slice; inner node: the minimum of both halves
    int64_t room_until_ns = kNever;  // leaf: latest possible end of a new slice; inner node: the maximum
  };

  uint32_t find_first(int64_t end_ns) const;
  void update(uint32_t lane);
  void make_room();

  std::vector<std::vector<Open>> open_;  // outermost first
  // A tree over the lanes. Its `leaves_` leaves, a power of two, are last. At least one leaf is unused.
  std::vector<Node> nodes_{2};
  std::size_t leaves_ = 1;
};

/// Gives each slice the first lane that is free at its start. Only GPU annotations may contain slices of their lane.
void place_work(Track& track);

/// Places regions and calls in lanes so that each is inside its parent. Tasks that alternate on a thread overlap
/// without nesting, and get separate lanes.
class RegionLanes {
 public:
  explicit RegionLanes(const store::Store& store) : store_(store), lane_of_region_(store.region.size(), store::kNone) {}

  void place(Track& track);

 private:
  uint32_t parent_of(const Slice& slice) const {
    return slice.source == Source::Region ? store_.region.parent[slice.row] : store_.api.region[slice.row];
  }
  uint32_t find_lane(const Slice& slice) const;
  bool is_below(uint32_t lane, uint32_t parent, int64_t end_ns) const;

  const store::Store& store_;
  std::vector<uint32_t> lane_of_region_;  // kNone until placed on this track
  Lanes lanes_;
};

}  // namespace gpuscope::exporters
