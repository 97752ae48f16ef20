// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/timeline.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/exporters/labels.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::Store;

// -- annotations on the GPU -------------------------------------------------------------------------------------------

/// From the first to the last work of one annotation on one stream.
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
    if (key != last_key_) {  // consecutive work usually has the same annotation
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

uint32_t outer_annotation(const Store& store, const Links& links, uint32_t annotation) {
  const uint32_t parent = store.region.parent[annotation];
  return parent == kNone ? kNone : links.annotation(parent);
}

/// The number of annotations around each annotation.
std::vector<uint32_t> annotation_depths(const Store& store, const Links& links) {
  std::vector<uint32_t> depths(store.region.size(), kNone);
  std::vector<uint32_t> inner;
  for (uint32_t row = 0; row < store.region.size(); ++row) {
    uint32_t at = links.annotation(row);
    for (; at != kNone && depths[at] == kNone; at = outer_annotation(store, links, at)) {
      inner.push_back(at);
    }
    uint32_t depth = at == kNone ? 0 : depths[at] + 1;
    for (; !inner.empty(); inner.pop_back()) {
      depths[inner.back()] = depth++;
    }
  }
  return depths;
}

/// Extends each annotation by the annotations inside it. Innermost first, so each is visited once.
void extend_outer(const Store& store, const Links& links, Spans& spans) {
  const std::vector<uint32_t> depths = annotation_depths(store, links);
  std::vector<std::vector<std::size_t>> by_depth;
  const auto add = [&](std::size_t at) {
    const uint32_t depth = depths[spans.all()[at].region];
    by_depth.resize(std::max<std::size_t>(by_depth.size(), depth + 1));
    by_depth[depth].push_back(at);
  };
  std::size_t added = 0;
  const auto add_new = [&] {
    for (; added < spans.all().size(); ++added) {
      add(added);
    }
  };
  add_new();
  for (std::size_t depth = by_depth.size(); depth-- > 1;) {
    for (const std::size_t at : by_depth[depth]) {
      const Span span = spans.all()[at];
      spans.extend(outer_annotation(store, links, span.region), span.track, span.start_ns, span.end_ns);
      add_new();
    }
  }
}

// -- tracks -----------------------------------------------------------------------------------------------------------

template <class Table>
bool has_no_time(const Table& table, std::size_t row) {
  if constexpr (requires { table.flags; }) {
    return (table.flags[row] & store::kZeroTime) != 0;
  }
  return false;
}

int64_t find_base(const Store& store) {
  int64_t first_ns = INT64_MAX;
  store.each_table([&]<class Table>(const Table& table) {
    if constexpr (store::Timed<Table>) {
      for (std::size_t row = 0; row < table.size(); ++row) {
        first_ns = has_no_time(table, row) ? first_ns : std::min(first_ns, table.start_ns[row]);
      }
    }
  });
  return first_ns == INT64_MAX ? 0 : first_ns;
}

/// Tracks under construction: the track of each thread or stream row, and the sorted runs of each track.
class TrackBuilder {
 public:
  /// `key_of`: the track key of each of the `rows`.
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

  // Tables are nearly sorted: merging is much faster than sorting.
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
  std::vector<std::vector<std::size_t>> runs_;  // end of each table's rows
  std::vector<std::size_t> track_of_;
};

// -- samples ----------------------------------------------------------------------------------------------------------

void add_samples(const Store& store, Timeline& timeline) {
  const store::PythonSamples& samples = store.python_sample;
  const store::Stacks& stacks = store.stack;
  std::vector<uint32_t> rows(samples.size());
  std::iota(rows.begin(), rows.end(), 0U);
  std::ranges::stable_sort(rows, {},
                           [&](uint32_t row) { return std::pair(samples.thread[row], samples.start_ns[row]); });
  // Samples at two instructions of a line have different stacks.
  const auto is_same = [&](uint32_t a, uint32_t b) {
    return a == b || (stacks.function[a] == stacks.function[b] && stacks.file[a] == stacks.file[b] &&
                      stacks.line[a] == stacks.line[b]);
  };
  std::vector<SampledCall>& calls = timeline.sampled_calls;
  std::vector<std::size_t> open;  // slices of the latest sample, outermost first
  std::vector<uint32_t> frames;
  int64_t end_ns = 0;
  for (const uint32_t row : rows) {
    const auto sample = samples[row];
    if (timeline.samples.empty() || timeline.samples.back().row != sample.thread) {
      timeline.samples.push_back({sample.thread, 1, {}});
      end_ns = INT64_MIN;
    }
    std::vector<Slice>& slices = timeline.samples.back().slices;
    const int64_t start_ns = std::max(sample.start_ns, end_ns);
    frames.clear();
    for (uint32_t at = sample.stack; at != kNone; at = stacks.parent[at]) {
      frames.insert(frames.begin(), at);
    }
    std::size_t depth = 0;
    while (start_ns == end_ns && depth < std::min(open.size(), frames.size()) &&
           is_same(calls[slices[open[depth]].row].stack, frames[depth])) {
      ++depth;
    }
    end_ns = std::max(start_ns, sample.start_ns + sample.duration_ns);
    open.resize(depth);
    for (; depth < frames.size(); ++depth) {
      open.push_back(slices.size());
      slices.push_back({start_ns, end_ns, static_cast<uint32_t>(calls.size()), 0, Source::PythonSample});
      calls.push_back({frames[depth], static_cast<uint32_t>(depth) + 1, 0, 0});
    }
    for (const std::size_t at : open) {
      slices[at].end_ns = end_ns;
      calls[slices[at].row].count += sample.count;
      calls[slices[at].row].cpu_ns += sample.cpu_ns;
    }
  }
}

}  // namespace

GpuAnnotations find_gpu_annotations(const store::Store& store, const Links& links) {
  Spans spans;
  extend_by(store.kernel, links, spans);
  extend_by(store.memcpy, links, spans);
  extend_by(store.memset, links, spans);
  extend_by(store.graph_launch, links, spans);
  extend_outer(store, links, spans);
  const auto order = [&](const Span& span) {
    return std::tuple(span.start_ns, -span.end_ns, store.path.depth[store.region.path[span.region]], span.region);
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
  Timeline timeline{find_base(store), {}, {}, {}, {}, {}, {}};
  const auto thread_key = [&](std::size_t row) { return std::pair(store.thread.system_id[row], 0UL); };
  const auto nests = [&](std::size_t row) { return (store.region.flags[row] & store::kAsync) == 0; };

  TrackBuilder threads(store, timeline.base_ns, store.thread.size(), thread_key);
  threads.add(store.python_function, store.python_function.thread, Source::PythonFunction);
  threads.add_if(store.region, store.region.thread, Source::Region, nests);
  threads.add(store.api, store.api.thread, Source::Api);
  threads.add(store.mark, store.mark.thread, Source::Mark);
  threads.add(store.allocation, store.allocation.thread, Source::Allocation);
  threads.add(store.failed_allocation, store.failed_allocation.thread, Source::FailedAllocation);
  RegionLanes region_lanes(store);
  timeline.threads = threads.finish([&](Track& track) { region_lanes.place(track); });

  TrackBuilder ranges(store, timeline.base_ns, store.thread.size(), thread_key);
  ranges.add_if(store.region, store.region.thread, Source::Region, std::not_fn(nests));
  timeline.ranges = ranges.finish(&place_work);

  // Contexts of a device have streams of the same number. They share a track here, as viewers have no contexts.
  const auto stream_key = [&](std::size_t row) {
    return std::pair<uint64_t, uint64_t>(store.track.device[row], store.track.stream[row]);
  };
  TrackBuilder streams(store, timeline.base_ns, store.track.size(), stream_key);
  streams.add(annotations, annotations.track, Source::Annotation);
  streams.add(store.kernel, store.kernel.track, Source::Kernel);
  streams.add(store.memcpy, store.memcpy.track, Source::Memcpy);
  streams.add(store.memset, store.memset.track, Source::Memset);
  streams.add(store.graph_launch, store.graph_launch.track, Source::GraphLaunch);
  timeline.streams = streams.finish(&place_work);

  TrackBuilder syncs(store, timeline.base_ns, store.track.size(), stream_key);
  syncs.add(store.sync, store.sync.track, Source::Sync);
  timeline.syncs = syncs.finish(&place_work);
  add_samples(store, timeline);
  return timeline;
}

namespace {

using store::MemoryKind;
using Point = MemoryCounter::Point;

/// The counter of an allocation. In drawing order.
enum class Group { Device, Managed, Pinned, Host };

Group group_of(uint8_t kind) {
  switch (static_cast<MemoryKind>(kind)) {
    case MemoryKind::Pageable:
      return Group::Host;
    case MemoryKind::Pinned:
      return Group::Pinned;
    case MemoryKind::Managed:
    case MemoryKind::ManagedStatic:
      return Group::Managed;
    default:
      return Group::Device;
  }
}

std::string name_of(Group group, uint32_t device) {
  switch (group) {
    case Group::Pinned:
      return "pinned memory, driver";
    case Group::Host:
      return "host memory, driver";
    default:
      std::string name = "GPU ";
      name.append(std::to_string(device)).append(group == Group::Managed ? " managed" : "");
      return name.append(" memory, driver");
  }
}

std::string pool_name(uint32_t device, uint64_t pool, std::string_view what) {
  char digits[16];
  const auto length = static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, pool, 16).ptr - digits);
  std::string name = "GPU ";
  name.append(std::to_string(device)).append(" pool 0x").append(digits, length);
  return name.append(" ").append(what);
}

std::vector<Point> count_live(const store::DeviceMemories& memory, std::vector<uint32_t>& rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [&](uint32_t a, uint32_t b) { return memory.start_ns[a] < memory.start_ns[b]; });
  std::unordered_set<uint64_t> taken;  // by address
  uint64_t live = 0;                   // unsigned, as a file may contain any numbers
  for (const uint32_t row : rows) {
    if (memory.bytes[row] >= 0) {
      taken.insert(memory.address[row]);
    } else if (taken.erase(memory.address[row]) == 0) {
      live -= static_cast<uint64_t>(memory.bytes[row]);
    }
  }
  std::vector<Point> points{{INT64_MIN, live}};
  for (const uint32_t row : rows) {
    live += static_cast<uint64_t>(memory.bytes[row]);
    points.push_back({memory.start_ns[row], static_cast<int64_t>(live) < 0 ? 0 : live});
  }
  return points;
}

struct Pool {
  std::vector<Point> reserved, used;

  void add(int64_t at_ns, uint64_t reserved_bytes, uint64_t used_bytes) {
    reserved.push_back({at_ns, reserved_bytes});
    used.push_back({at_ns, used_bytes});
  }
};

void add_live(const Store& store, std::vector<MemoryCounter>& counters) {
  std::map<std::pair<Group, uint32_t>, std::vector<uint32_t>> groups;
  for (uint32_t row = 0; row < store.device_memory.size(); ++row) {
    const Group group = group_of(store.device_memory.kind[row]);
    const bool on_host = group == Group::Pinned || group == Group::Host;
    const uint32_t device = store.track.device[store.device_memory.track[row]];
    groups[{group, on_host ? kNone : device}].push_back(row);
  }
  for (auto& [key, rows] : groups) {
    counters.push_back({name_of(key.first, key.second), key.second, count_live(store.device_memory, rows)});
  }
}

void add_pools(const Store& store, std::vector<MemoryCounter>& counters) {
  std::map<std::pair<uint32_t, uint64_t>, Pool> pools;  // by device and address
  const store::DeviceMemories& memory = store.device_memory;
  for (uint32_t row = 0; row < memory.size(); ++row) {
    if (memory.pool[row] != 0) {
      const uint32_t device = store.track.device[memory.track[row]];
      pools[{device, memory.pool[row]}].add(memory.start_ns[row], memory.pool_reserved_bytes[row],
                                            memory.pool_used_bytes[row]);
    }
  }
  for (uint32_t row = 0; row < store.memory_pool.size(); ++row) {
    const auto event = store.memory_pool[row];
    const bool is_gone = static_cast<store::PoolOperation>(event.operation) == store::PoolOperation::Destroyed;
    pools[{event.device, event.pool}].add(event.start_ns, is_gone ? 0 : event.reserved_bytes,
                                          is_gone ? 0 : event.used_bytes);
  }
  const auto by_time = [](const Point& a, const Point& b) { return a.at_ns < b.at_ns; };
  const auto is_empty = [](const Point& point) { return point.bytes == 0; };
  for (auto& [key, pool] : pools) {
    if (std::all_of(pool.reserved.begin(), pool.reserved.end(), is_empty)) {
      continue;  // of another process, or always empty
    }
    for (const auto& [what, points] : {std::pair("reserved", &pool.reserved), {"used", &pool.used}}) {
      std::stable_sort(points->begin(), points->end(), by_time);
      counters.push_back({pool_name(key.first, key.second, what), key.first, std::move(*points)});
    }
  }
}

}  // namespace

Window find_window(const Store& store, const Timeline& timeline) {
  Window window{timeline.base_ns, timeline.base_ns};
  for (const auto* tracks :
       {&timeline.threads, &timeline.ranges, &timeline.streams, &timeline.syncs, &timeline.samples}) {
    for (const Track& track : *tracks) {
      for (const Slice& slice : track.slices) {
        window.end_ns = std::max(window.end_ns, slice.end_ns);
      }
    }
  }
  if (store.find_info("session.mode") != "ring") {
    const auto number = [&](std::string_view key, int64_t otherwise) {
      const std::string_view text = store.find_info(key);
      std::from_chars(text.data(), text.data() + text.size(), otherwise);
      return otherwise;
    };
    const int64_t start_ns = number("session.start_ns", window.start_ns);
    const bool has_events = window.start_ns != 0;
    window.start_ns = start_ns > 0 && (start_ns < window.start_ns || !has_events) ? start_ns : window.start_ns;
    window.end_ns = std::max(window.end_ns, number("session.stop_ns", window.end_ns));
  }
  return window;
}

std::vector<SuspendedCall> find_suspended_calls(const Store& store) {
  const store::Resumptions& parts = store.resumption;
  const store::Regions& regions = store.region;
  std::map<uint32_t, int64_t> ends;  // by the first region
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const uint32_t row = parts.region[part];
    const uint32_t first = std::min(parts.first[part], row);
    if (row < regions.size() && (first != row || parts.suspended_ns[part] > 0)) {
      ends[first] = regions.start_ns[row] + regions.duration_ns[row] + parts.suspended_ns[part];
    }
  }
  std::vector<SuspendedCall> calls;
  for (const auto& [first, end_ns] : ends) {
    if (regions.thread[first] < store.thread.size()) {
      calls.push_back({first, end_ns});
    }
  }
  return calls;
}

std::vector<MemoryCounter> count_driver_memory(const Store& store) {
  std::vector<MemoryCounter> counters;
  add_live(store, counters);
  add_pools(store, counters);
  return counters;
}

namespace {

void add_new(std::vector<uint32_t>& devices, uint32_t ordinal) {
  if (std::find(devices.begin(), devices.end(), ordinal) == devices.end()) {
    devices.push_back(ordinal);
  }
}

std::set<uint32_t> find_sampled_devices(const Store& store) {
  std::set<uint32_t> found;
  for (std::size_t sample = 0; sample < store.counter_sample.size(); ++sample) {
    found.insert(store.counter_sample.device[sample]);
  }
  for (std::size_t sample = 0; sample < store.device_sample.size(); ++sample) {
    found.insert(store.device_sample.device[sample]);
  }
  return found;
}

/// The NVML figures of each device, in readable units.
void each_device_figure(const Store& store, const std::function<void(const HardwareCounter&)>& visit) {
  const store::DeviceSamples& samples = store.device_sample;
  if (samples.size() == 0) {
    return;
  }
  std::map<uint32_t, std::vector<uint32_t>> rows;
  for (uint32_t row = 0; row < samples.size(); ++row) {
    rows[samples.device[row]].push_back(row);
  }
  for (auto& [ordinal, its_rows] : rows) {
    const uint32_t device = ordinal;
    std::vector<uint32_t>& in_time = its_rows;
    std::ranges::stable_sort(in_time, {}, [&](uint32_t row) { return samples.start_ns[row]; });
    const auto draw = [&](const char* name, const char* unit, const auto& column, double per_unit) {
      HardwareCounter figure{name, unit, device, {}};
      for (const uint32_t row : in_time) {
        if (column[row] >= 0) {
          figure.points.push_back({samples.start_ns[row], per_unit * static_cast<double>(column[row])});
        }
      }
      if (!figure.points.empty()) {
        visit(figure);
      }
    };
    draw("power", "W", samples.power_mw, 1e-3);
    draw("power limit", "W", samples.power_limit_mw, 1e-3);
    draw("SM clock", "MHz", samples.sm_mhz, 1);
    draw("memory clock", "MHz", samples.memory_mhz, 1);
    draw("temperature", "C", samples.temperature_c, 1);
    draw("busy", "%", samples.busy_percent, 1);
    draw("memory busy", "%", samples.memory_busy_percent, 1);
    draw("memory used, all processes", "bytes", samples.memory_used_bytes, 1);
  }
}

}  // namespace

void each_hardware_counter(const Store& store, const std::function<void(const HardwareCounter&)>& visit) {
  each_device_figure(store, visit);
  const store::CounterSamples& samples = store.counter_sample;
  const store::CounterValues& values = store.counter_value;
  std::vector<std::vector<uint32_t>> rows(store.counter.size());  // the value rows of each counter
  for (uint32_t row = 0; row < values.size(); ++row) {
    if (std::isfinite(values.value[row])) {
      rows[values.counter[row]].push_back(row);
    }
  }
  const auto starts_first = [&](uint32_t a, uint32_t b) {
    return samples.start_ns[values.sample[a]] < samples.start_ns[values.sample[b]];
  };
  for (const uint32_t device : find_sampled_devices(store)) {
    for (std::size_t counter = 0; counter < rows.size(); ++counter) {
      std::stable_sort(rows[counter].begin(), rows[counter].end(), starts_first);
      HardwareCounter found{std::string(store.strings[store.counter.name[counter]]),
                            std::string(store.strings[store.counter.unit[counter]]),
                            device,
                            {}};
      const bool is_sum = found.name.ends_with(".sum");
      found.unit += is_sum ? "/s" : "";
      int64_t end_ns = 0, length_ns = 0;
      for (const uint32_t row : rows[counter]) {
        const uint32_t sample = values.sample[row];
        if (samples.device[sample] != device) {
          continue;
        }
        const int64_t start_ns = samples.start_ns[sample];
        if (!found.points.empty() && start_ns - end_ns > length_ns) {
          found.points.push_back({end_ns, 0});
        }
        length_ns = std::max<int64_t>(samples.duration_ns[sample], 1);
        end_ns = start_ns + length_ns;
        found.points.push_back({start_ns, values.value[row] * (is_sum ? 1e9 / static_cast<double>(length_ns) : 1.0)});
      }
      if (!found.points.empty()) {
        found.points.push_back({end_ns, 0});
        visit(found);
      }
    }
  }
}

std::vector<uint32_t> find_devices(const Store& store, const Timeline& timeline,
                                   const std::vector<MemoryCounter>& memory) {
  std::vector<uint32_t> found;
  for (const auto* tracks : {&timeline.streams, &timeline.syncs}) {
    for (const Track& track : *tracks) {
      add_new(found, store.track.device[track.row]);
    }
  }
  for (const MemoryCounter& counter : memory) {
    if (counter.device != kNone) {
      add_new(found, counter.device);
    }
  }
  for (const uint32_t device : find_sampled_devices(store)) {
    add_new(found, device);
  }
  return found;
}

}  // namespace gpuscope::exporters
