// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// The table a slice is a row of.
enum class Source : uint8_t {
  PythonFunction,  // first: of what takes the same time it is outside
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

/// What one thread or one stream did: slices by start, each before those inside it. In one lane no two overlap unless
/// one lies within the other (threads) or at all (streams); trace viewers drop what breaks this. Where functions of
/// Python lie has no influence on where the rest does.
struct Track {
  uint32_t row;  // of the store's thread or track table, the first with this id
  uint32_t lanes;
  std::vector<Slice> slices;
};

/// What is open in each lane of a track. Slices come in the order of their starts; each costs the logarithm of the
/// number of lanes, of which tens of thousands of tasks need as many. One thread.
class Lanes {
 public:
  struct Open {
    int64_t end_ns;
    bool holds;       // what comes may lie within it
    uint32_t region;  // that it is, or is a call of
  };

  void clear();
  /// How many have been used.
  uint32_t size() const noexcept { return static_cast<uint32_t>(open_.size()); }
  /// Ends what has ended by then.
  void advance(int64_t now_ns);
  /// The first lane without anything, one more than there are if need be.
  uint32_t first_free() const { return find_first(kNever); }
  /// The first lane without anything, or with something that holds and does not end before.
  uint32_t first_around(int64_t end_ns) const { return find_first(end_ns); }
  /// The innermost that is open in a lane; none where it is free.
  const Open* innermost(uint32_t lane) const { return open_[lane].empty() ? nullptr : &open_[lane].back(); }
  void open(uint32_t lane, Open what);

 private:
  static constexpr int64_t kNever = INT64_MAX;
  struct Node {
    int64_t ends_ns = kNever;        // of what is innermost in a lane; above, the first of both halves
    int64_t room_until_ns = kNever;  // may last what begins now; above, the most of both halves
  };

  uint32_t find_first(int64_t end_ns) const;
  void update(uint32_t lane);
  void make_room();

  std::vector<std::vector<Open>> open_;  // outermost first
  // A tree over the lanes, of which `leaves_`, a power of two, come at the end. One at least has not been used.
  std::vector<Node> nodes_{2};
  std::size_t leaves_ = 1;
};

/// Gives each slice the first lane that is free when it begins, so that slices of a lane never overlap, but that GPU
/// annotations may hold slices that lie within them.
void place_work(Track& track);

/// Puts regions and calls into lanes where each lies within its parent: tasks that take turns on one thread overlap
/// without nesting, and go to lanes of their own.
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
