// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/timeline.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "gpuscope/base/errors.h"
#include "gpuscope/exporters/lanes.h"

namespace gpuscope::exporters {
namespace {

using store::Store;

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

/// Strands in the making: which one a thread or track row belongs to, and the sorted runs each consists of.
class Builder {
 public:
  Builder(const Store& store, int64_t base_ns) : store_(store), base_ns_(base_ns) {}

  /// Row after row, the key that says which strand it belongs to.
  template <class Key>
  void define(std::size_t rows, Key&& key_of) {
    std::map<std::pair<uint64_t, uint64_t>, std::size_t> known;
    for (std::size_t row = 0; row < rows; ++row) {
      const auto [at, is_new] = known.try_emplace(key_of(row), strands_.size());
      if (is_new) {
        strands_.push_back({static_cast<uint32_t>(row), 1, {}});
        runs_.emplace_back();
      }
      strand_of_.push_back(at->second);
    }
  }

  template <class Table, class Index>
  void add(const Table& table, const Index& strand, Source source) {
    add_if(table, strand, source, [](std::size_t) { return true; });
  }

  template <class Table, class Index, class Take>
  void add_if(const Table& table, const Index& strand, Source source, Take&& take) {
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
      strands_[strand_of_[strand[row]]].slices.push_back({start_ns, end_ns, static_cast<uint32_t>(row), 0, source});
    }
    for (std::size_t at = 0; at < strands_.size(); ++at) {
      runs_[at].push_back(strands_[at].slices.size());
    }
  }

  template <class PutInLanes>
  std::vector<Strand> finish(PutInLanes&& put_in_lanes) {
    for (std::size_t at = 0; at < strands_.size(); ++at) {
      sort(strands_[at].slices, runs_[at]);
      put_in_lanes(strands_[at]);
    }
    std::erase_if(strands_, [](const Strand& strand) { return strand.slices.empty(); });
    return std::move(strands_);
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
  std::vector<Strand> strands_;
  std::vector<std::vector<std::size_t>> runs_;  // where the rows of each table end
  std::vector<std::size_t> strand_of_;
};

}  // namespace

uint32_t device_ordinal(const Store& store, uint32_t device) {
  return device < store.device.size() ? store.device.ordinal[device] : device;
}

Timeline lay_out(const Store& store, const GpuAnnotations& annotations) {
  if (store.find_info("session.mode") == "aggregate") {
    throw base::InvalidArgument(
        "an aggregate recording has totals, no events; record with mode='full' or mode='ring' to export a trace");
  }
  Timeline timeline{find_base(store), {}, {}, {}, {}};
  const auto thread_key = [&](std::size_t row) { return std::pair(store.thread.system_id[row], 0UL); };
  const auto nests = [&](std::size_t row) { return (store.region.flags[row] & store::kAsync) == 0; };

  Builder threads(store, timeline.base_ns);
  threads.define(store.thread.size(), thread_key);
  threads.add_if(store.region, store.region.thread, Source::Region, nests);
  threads.add(store.api, store.api.thread, Source::Api);
  threads.add(store.mark, store.mark.thread, Source::Mark);
  threads.add(store.allocation, store.allocation.thread, Source::Allocation);
  RegionLanes region_lanes(store);
  timeline.threads = threads.finish([&](Strand& strand) { region_lanes.place(strand); });

  Builder ranges(store, timeline.base_ns);
  ranges.define(store.thread.size(), thread_key);
  ranges.add_if(store.region, store.region.thread, Source::Region, std::not_fn(nests));
  timeline.ranges = ranges.finish(&place_side_by_side);

  // Contexts of one device have streams of the same number: one strand, as viewers know no contexts.
  const auto stream_key = [&](std::size_t row) {
    return std::pair<uint64_t, uint64_t>(device_ordinal(store, store.track.device[row]), store.track.stream[row]);
  };
  Builder streams(store, timeline.base_ns);
  streams.define(store.track.size(), stream_key);
  streams.add(annotations, annotations.track, Source::Annotation);
  streams.add(store.kernel, store.kernel.track, Source::Kernel);
  streams.add(store.memcpy, store.memcpy.track, Source::Memcpy);
  streams.add(store.memset, store.memset.track, Source::Memset);
  streams.add(store.graph_launch, store.graph_launch.track, Source::GraphLaunch);
  timeline.streams = streams.finish(annotations.size() == 0 ? &place_side_by_side : &place_within);

  Builder waits(store, timeline.base_ns);
  waits.define(store.track.size(), stream_key);
  waits.add(store.sync, store.sync.track, Source::Sync);
  timeline.waits = waits.finish(&place_side_by_side);
  return timeline;
}

}  // namespace gpuscope::exporters
