// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/timeline.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/exporters/labels.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::Store;

// -- annotations on the GPU -------------------------------------------------------------------------------------------

/// From the first to the last of the work of one annotation on one stream.
struct Span {
  int64_t start_ns;
  int64_t end_ns;
  uint32_t region;
  uint16_t track;
};

class Spans {
 public:
  void extend(uint32_t region, uint16_t track, int64_t start_ns, int64_t end_ns) {
    const uint64_t key = (uint64_t{region} << 16) | track;
    if (key != last_key_) {  // work comes in runs of one annotation
      last_key_ = key;
      last_ = spans_.size();
      last_ = at_.find_or_make(key, [&] {
        spans_.push_back({start_ns, end_ns, region, track});
        return last_;
      });
    }
    Span& span = spans_[last_];
    span.start_ns = std::min(span.start_ns, start_ns);
    span.end_ns = std::max(span.end_ns, end_ns);
  }
  std::vector<Span>& all() { return spans_; }

 private:
  std::vector<Span> spans_;
  base::FlatMap<std::size_t> at_;
  uint64_t last_key_ = UINT64_MAX;
  std::size_t last_ = 0;
};

template <class Table>
void extend_by(const Table& work, const Links& links, Spans& spans) {
  for (std::size_t row = 0; row < work.size(); ++row) {
    if (work.region[row] == kNone || (work.flags[row] & store::kZeroTime) != 0) {
      continue;
    }
    if (const uint32_t annotation = links.annotation(work.region[row]); annotation != kNone) {
      spans.extend(annotation, work.track[row], work.start_ns[row], work.start_ns[row] + work.duration_ns[row]);
    }
  }
}

// -- lanes ------------------------------------------------------------------------------------------------------------

/// Gives each slice the first lane that is free when it begins, so that slices of a lane never overlap.
void place_side_by_side(Track& track) {
  std::vector<int64_t> free_at_ns;
  for (Slice& slice : track.slices) {
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
  track.lanes = static_cast<uint32_t>(free_at_ns.size());
}

/// The same, but that GPU annotations may hold slices that lie within them.
void place_within(Track& track) {
  struct Open {
    int64_t end_ns;
    bool holds;
  };
  std::vector<std::vector<Open>> lanes(1);
  for (Slice& slice : track.slices) {
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
  track.lanes = static_cast<uint32_t>(lanes.size());
}

/// Puts regions and calls into lanes where each lies within its parent: tasks that take turns on one thread overlap
/// without nesting, and go to lanes of their own.
class RegionLanes {
 public:
  explicit RegionLanes(const Store& store) : store_(store), lane_of_region_(store.region.size(), kNone) {}

  void place(Track& track) {
    lanes_.assign(1, {});
    for (Slice& slice : track.slices) {
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
    track.lanes = static_cast<uint32_t>(lanes_.size());
    for (const Slice& slice : track.slices) {
      if (slice.source == Source::Region) {
        lane_of_region_[slice.row] = kNone;  // other threads have other lanes
      }
    }
  }

 private:
  struct Open {
    int64_t end_ns;
    uint32_t region;
  };

  uint32_t parent_of(const Slice& slice) const {
    return slice.source == Source::Region ? store_.region.parent[slice.row] : store_.api.region[slice.row];
  }

  uint32_t find_lane(const Slice& slice) {
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

  bool is_below(uint32_t lane, uint32_t parent, int64_t end_ns) const {
    return !lanes_[lane].empty() && lanes_[lane].back().region == parent && lanes_[lane].back().end_ns >= end_ns;
  }

  const Store& store_;
  std::vector<uint32_t> lane_of_region_;  // kNone until placed on this track
  std::vector<std::vector<Open>> lanes_;  // what is open in each, outermost first
};

// -- tracks -----------------------------------------------------------------------------------------------------------

template <class Table>
bool has_no_time(const Table& table, std::size_t row) {
  if constexpr (requires { table.flags; }) {
    return (table.flags[row] & store::kZeroTime) != 0;
  }
  return false;
}

template <class Table>
void find_first(const Table& table, int64_t& first_ns) {
  for (std::size_t row = 0; row < table.size(); ++row) {
    if (!has_no_time(table, row)) {
      first_ns = std::min(first_ns, table.start_ns[row]);
    }
  }
}

int64_t find_base(const Store& store) {
  int64_t first_ns = INT64_MAX;
  find_first(store.region, first_ns);
  find_first(store.api, first_ns);
  find_first(store.mark, first_ns);
  find_first(store.allocation, first_ns);
  find_first(store.device_memory, first_ns);
  find_first(store.memory_pool, first_ns);
  find_first(store.kernel, first_ns);
  find_first(store.memcpy, first_ns);
  find_first(store.memset, first_ns);
  find_first(store.graph_launch, first_ns);
  find_first(store.sync, first_ns);
  return first_ns == INT64_MAX ? 0 : first_ns;
}

/// Tracks in the making: which one a thread or track row belongs to, and the sorted runs each consists of.
class TrackBuilder {
 public:
  /// `key_of` says of each of the `rows` which track it belongs to.
  template <class Key>
  TrackBuilder(const Store& store, int64_t base_ns, std::size_t rows, Key&& key_of) : store_(store), base_ns_(base_ns) {
    std::map<std::pair<uint64_t, uint64_t>, std::size_t> known;
    for (std::size_t row = 0; row < rows; ++row) {
      const auto [at, is_new] = known.try_emplace(key_of(row), tracks_.size());
      if (is_new) {
        tracks_.push_back({static_cast<uint32_t>(row), 1, {}});
        runs_.emplace_back();
      }
      track_of_.push_back(at->second);
    }
  }

  template <class Table, class Index>
  void add(const Table& table, const Index& track, Source source) {
    add_if(table, track, source, [](std::size_t) { return true; });
  }

  template <class Table, class Index, class Take>
  void add_if(const Table& table, const Index& track, Source source, Take&& take) {
    for (std::size_t row = 0; row < table.size(); ++row) {
      if (!take(row)) {
        continue;
      }
      int64_t start_ns = base_ns_;
      int64_t end_ns = base_ns_;
      if (!has_no_time(table, row)) {
        start_ns = table.start_ns[row];
        end_ns = start_ns;
        if constexpr (requires { table.duration_ns; }) {
          end_ns += table.duration_ns[row];
        }
      }
      tracks_[track_of_[track[row]]].slices.push_back({start_ns, end_ns, static_cast<uint32_t>(row), 0, source});
    }
    for (std::size_t at = 0; at < tracks_.size(); ++at) {
      runs_[at].push_back(tracks_[at].slices.size());
    }
  }

  template <class PutInLanes>
  std::vector<Track> finish(PutInLanes&& put_in_lanes) {
    for (std::size_t at = 0; at < tracks_.size(); ++at) {
      sort(tracks_[at].slices, runs_[at]);
      put_in_lanes(tracks_[at]);
    }
    std::erase_if(tracks_, [](const Track& track) { return track.slices.empty(); });
    return std::move(tracks_);
  }

 private:
  bool comes_before(const Slice& a, const Slice& b) const {
    if (a.start_ns != b.start_ns) {
      return a.start_ns < b.start_ns;
    }
    if (a.end_ns != b.end_ns) {
      return a.end_ns > b.end_ns;
    }
    if (a.source != b.source) {
      return a.source < b.source;
    }
    if (a.source == Source::Region) {
      return store_.path.depth[store_.region.path[a.row]] < store_.path.depth[store_.region.path[b.row]];
    }
    return false;
  }

  // Tables are in order or nearly so: merging their rows costs far less than sorting them.
  void sort(std::vector<Slice>& slices, const std::vector<std::size_t>& ends) const {
    const auto before = [this](const Slice& a, const Slice& b) { return comes_before(a, b); };
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      const auto first = slices.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = slices.begin() + static_cast<std::ptrdiff_t>(end);
      if (!std::is_sorted(first, last, before)) {
        std::stable_sort(first, last, before);
      }
      std::inplace_merge(slices.begin(), first, last, before);
      begin = end;
    }
  }

  const Store& store_;
  int64_t base_ns_;
  std::vector<Track> tracks_;
  std::vector<std::vector<std::size_t>> runs_;  // where the rows of each table end
  std::vector<std::size_t> track_of_;
};

}  // namespace

GpuAnnotations find_gpu_annotations(const store::Store& store, const Links& links) {
  Spans spans;
  extend_by(store.kernel, links, spans);
  extend_by(store.memcpy, links, spans);
  extend_by(store.memset, links, spans);
  extend_by(store.graph_launch, links, spans);
  const std::vector<Span> innermost = spans.all();
  for (const Span& span : innermost) {
    for (uint32_t outer = store.region.parent[span.region]; outer != kNone;) {
      outer = links.annotation(outer);
      if (outer != kNone) {
        spans.extend(outer, span.track, span.start_ns, span.end_ns);
        outer = store.region.parent[outer];
      }
    }
  }
  const auto order = [&](const Span& span) {
    return std::tuple(span.start_ns, -span.end_ns, store.path.depth[store.region.path[span.region]]);
  };
  std::sort(spans.all().begin(), spans.all().end(), [&](const Span& a, const Span& b) { return order(a) < order(b); });
  GpuAnnotations found;
  for (const Span& span : spans.all()) {
    found.start_ns.push_back(span.start_ns);
    found.duration_ns.push_back(span.end_ns - span.start_ns);
    found.region.push_back(span.region);
    found.track.push_back(span.track);
  }
  return found;
}

Timeline lay_out(const Store& store, const GpuAnnotations& annotations) {
  if (store.find_info("session.mode") == "aggregate") {
    throw base::InvalidArgument(
        "an aggregate recording has totals, no events; record with mode='full' or mode='ring' to export a trace");
  }
  Timeline timeline{find_base(store), {}, {}, {}, {}};
  const auto thread_key = [&](std::size_t row) { return std::pair(store.thread.system_id[row], 0UL); };
  const auto nests = [&](std::size_t row) { return (store.region.flags[row] & store::kAsync) == 0; };

  TrackBuilder threads(store, timeline.base_ns, store.thread.size(), thread_key);
  threads.add_if(store.region, store.region.thread, Source::Region, nests);
  threads.add(store.api, store.api.thread, Source::Api);
  threads.add(store.mark, store.mark.thread, Source::Mark);
  threads.add(store.allocation, store.allocation.thread, Source::Allocation);
  RegionLanes region_lanes(store);
  timeline.threads = threads.finish([&](Track& track) { region_lanes.place(track); });

  TrackBuilder ranges(store, timeline.base_ns, store.thread.size(), thread_key);
  ranges.add_if(store.region, store.region.thread, Source::Region, std::not_fn(nests));
  timeline.ranges = ranges.finish(&place_side_by_side);

  // Contexts of one device have streams of the same number: one track here, as viewers know no contexts.
  const auto stream_key = [&](std::size_t row) {
    return std::pair<uint64_t, uint64_t>(device_ordinal(store, store.track.device[row]), store.track.stream[row]);
  };
  TrackBuilder streams(store, timeline.base_ns, store.track.size(), stream_key);
  streams.add(annotations, annotations.track, Source::Annotation);
  streams.add(store.kernel, store.kernel.track, Source::Kernel);
  streams.add(store.memcpy, store.memcpy.track, Source::Memcpy);
  streams.add(store.memset, store.memset.track, Source::Memset);
  streams.add(store.graph_launch, store.graph_launch.track, Source::GraphLaunch);
  timeline.streams = streams.finish(annotations.size() == 0 ? &place_side_by_side : &place_within);

  TrackBuilder syncs(store, timeline.base_ns, store.track.size(), stream_key);
  syncs.add(store.sync, store.sync.track, Source::Sync);
  timeline.syncs = syncs.finish(&place_side_by_side);
  return timeline;
}

}  // namespace gpuscope::exporters
