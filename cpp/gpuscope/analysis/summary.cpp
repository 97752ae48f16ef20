// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/summary.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/store/call_names.h"
#include "gpuscope/store/values.h"

namespace gpuscope::analysis {

uint32_t DisplayNames::intern(std::string_view text) {
  const auto [entry, added] = ids_.try_emplace(std::string(text), static_cast<uint32_t>(texts_.size()));
  if (added) {
    texts_.push_back(base::to_utf8(text));
  }
  return entry->second;
}

uint32_t DisplayNames::of_string(uint32_t id) { return intern(store_.strings[id]); }

uint32_t DisplayNames::of_call(uint32_t id) { return intern(store::call_name(store_.strings[id])); }

uint32_t DisplayNames::of_region(uint32_t id, uint32_t kind) {
  std::string_view text = store_.strings[id];
  if (text.starts_with(store::kStepPrefix)) {
    text = store::kAllSteps;
  }
  const auto [entry, added] =
      regions_.try_emplace(std::to_string(kind).append(text), static_cast<uint32_t>(texts_.size()));
  if (added) {
    texts_.push_back(base::to_utf8(text));
  }
  return entry->second;
}

uint32_t DisplayNames::of_kernel(uint32_t id) {
  const auto [entry, added] = kernels_.try_emplace(id, 0);
  if (added) {
    entry->second = intern(base::demangle(store_.strings[id]));
  }
  return entry->second;
}

std::string event_name(const store::Store& store, Kind kind, std::size_t row) {
  const auto text = [&](const auto& names, std::size_t index) {
    return index < names.size() ? store.strings[names[index]] : std::string_view{};
  };
  const auto check = [&](const auto& table) -> const auto& {
    if (row >= table.size()) {
      throw base::InvalidArgument("row is " + std::to_string(row) + "; the table has " + std::to_string(table.size()));
    }
    return table;
  };
  switch (kind) {
    case Kind::Region:
      return std::string(text(store.path.name, check(store.region).path[row]));
    case Kind::Kernel:
      return base::demangle(text(store.variant.name, check(store.kernel).variant[row]));
    case Kind::Memcpy: {
      const auto copy = check(store.memcpy)[row];
      return store::copy_name(store::CopyKind{copy.kind}, store::MemoryKind{copy.source},
                              store::MemoryKind{copy.destination});
    }
    case Kind::Memset:
      return std::string(store::kMemsetName);
    case Kind::Call:
      return std::string(store::call_name(text(store.call.name, check(store.api).call[row])));
    case Kind::Sync:
      return std::string(store::sync_name(store::SyncKind{check(store.sync).kind[row]}));
    case Kind::GraphLaunch:
      return store::graph_name(check(store.graph_launch).graph[row]);
  }
  throw base::InvalidArgument("kind is " + std::to_string(static_cast<int>(kind)) + "; kinds are 0 to 6");
}
namespace {

using store::kNone;

/// Calls `take(first, last)` for each run of groups with one name.
template <class F>
void each_name(std::span<Group> groups, F&& take) {
  for (std::size_t first = 0; first < groups.size();) {
    std::size_t last = first;
    while (last + 1 < groups.size() && groups[last + 1].key.name == groups[first].key.name) {
      ++last;
    }
    take(groups.subspan(first, last - first + 1));
    first = last + 1;
  }
}

/// The total of a name whose groups are adjacent. `single`: the durations of its only group.
NameStat total_of(Kind kind, std::span<const Group> groups, const Durations& single) {
  NameStat total{.kind = kind, .name = groups.front().key.name};
  for (const Group& group : groups) {
    total.bytes += group.bytes;
  }
  const std::span<int64_t> last = groups.back().durations_ns;
  total.durations =
      groups.size() == 1 ? single : measure({groups.front().durations_ns.data(), last.data() + last.size()});
  return total;
}

/// The capture of each row of an event table. Empty if no row is a graph node.
std::vector<uint32_t> captures_of(const store::GraphNodes& nodes, store::Work kind, std::size_t rows) {
  std::vector<uint32_t> captures;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (nodes.kind[node] != static_cast<uint16_t>(kind) || nodes.event[node] >= rows) {
      continue;
    }
    if (captures.empty()) {
      captures.assign(rows, kNone);
    }
    captures[nodes.event[node]] = nodes.path[node] == kNone ? kUnknownCapture : nodes.path[node];
  }
  return captures;
}

/// Adds the totals of regions by path and by name.
void add_regions(const store::Store& store, const CallPaths& paths, Summary& summary) {
  const store::Regions& regions = store.region;
  summary.instances = measure_instances(store);
  std::vector<uint32_t> path_of(regions.size());
  for (std::size_t row = 0; row < regions.size(); ++row) {
    path_of[row] = std::min(regions.path[row], static_cast<uint32_t>(paths.size()));
    if (path_of[row] < paths.size()) {
      summary.paths[path_of[row]].self_cpu_ns += summary.instances.self_cpu_ns[row];
      summary.paths[path_of[row]].suspended_ns += summary.instances.suspended(row);
    }
  }
  for (std::size_t part = 0; part < store.resumption.size(); ++part) {  // a call counts where it began
    const uint32_t row = store.resumption.region[part];
    if (row < path_of.size() && store.resumption.first[part] < row) {
      path_of[row] = static_cast<uint32_t>(paths.size());
    }
  }
  const std::vector<Durations> durations =
      measure_groups(summary.instances.durations(regions), path_of, paths.size() + 1);
  for (uint32_t path = 0; path < paths.size(); ++path) {
    summary.paths[path].cpu = durations[path];
  }
  summary.regions = group_regions(store, summary.instances, summary.path_names);
}

/// Groups the rows of one work table. `name_of(row)` is the name of a row.
template <class Table, class NameOf>
void add_table(Kind kind, const store::Store& store, const CallPaths& paths, LateWork& late, const Table& table,
               NameOf&& name_of, Summary& summary) {
  const std::vector<uint32_t> captures =
      captures_of(store.graph_node, static_cast<store::Work>(kind), is_device(kind) ? table.size() : 0);
  Grouping grouping(table.size());
  for (std::size_t row = 0; row < table.size(); ++row) {
    uint64_t bytes = 0;
    if constexpr (requires { table.bytes; }) {
      bytes = table.bytes[row];
    }
    uint32_t path = paths.of_region(table.region[row]);
    if constexpr (requires { table.track; }) {
      if (late.may_be_in(table.region[row])) {
        path = late.path_at(table.region[row], late.launched_ns(table, row));
      }
    }
    grouping.add({name_of(row), path, captures.empty() ? kNone : captures[row]}, bytes);
  }
  each_name(grouping.arrange(table.duration_ns.data()), [&](std::span<const Group> groups) {
    for (const Group& group : groups) {
      const auto& [name, path, capture] = group.key;
      summary.work.push_back({kind, name, path, capture, group.bytes, measure(group.durations_ns)});
    }
    summary.totals.push_back(total_of(kind, groups, summary.work.back().durations));
  });
}

/// Names by a row's code, each made once.
class CodedNames {
 public:
  explicit CodedNames(DisplayNames& names) : names_(names) {}

  template <class Make>
  uint32_t of(uint32_t code, Make&& make) {
    const auto [entry, added] = ids_.try_emplace(code, 0);
    if (added) {
      entry->second = names_.intern(make());
    }
    return entry->second;
  }

 private:
  DisplayNames& names_;
  std::unordered_map<uint32_t, uint32_t> ids_;
};

/// For full and ring mode.
void add_work(const store::Store& store, const CallPaths& paths, DisplayNames& names, Summary& summary) {
  LateWork late(store, summary.instances.crosses);
  const auto add = [&](Kind kind, const auto& table, auto&& name_of) {
    add_table(kind, store, paths, late, table, name_of, summary);
  };
  std::vector<uint32_t> variants(store.variant.size());
  for (std::size_t row = 0; row < variants.size(); ++row) {
    variants[row] = names.of_kernel(store.variant.name[row]);
  }
  // One extra name: for rows whose dictionary entry is missing.
  variants.push_back(names.intern(""));
  std::vector<uint32_t> calls(store.call.size());
  for (std::size_t row = 0; row < calls.size(); ++row) {
    calls[row] = names.of_call(store.call.name[row]);
  }
  calls.push_back(names.intern(""));
  add(Kind::Kernel, store.kernel,
      [&](std::size_t row) { return variants[std::min<std::size_t>(store.kernel.variant[row], variants.size() - 1)]; });
  add(Kind::Call, store.api,
      [&](std::size_t row) { return calls[std::min<std::size_t>(store.api.call[row], calls.size() - 1)]; });
  CodedNames copies(names);
  add(Kind::Memcpy, store.memcpy, [&, &table = store.memcpy](std::size_t row) {
    const auto [kind, source, destination] = std::tuple(table.kind[row], table.source[row], table.destination[row]);
    return copies.of(uint32_t{kind} << 16 | uint32_t{source} << 8 | destination, [&] {
      return store::copy_name(store::CopyKind{kind}, store::MemoryKind{source}, store::MemoryKind{destination});
    });
  });
  const uint32_t memset_name = names.intern(store::kMemsetName);
  add(Kind::Memset, store.memset, [&](std::size_t) { return memset_name; });
  CodedNames syncs(names);
  add(Kind::Sync, store.sync, [&](std::size_t row) {
    return syncs.of(store.sync.kind[row], [&] { return store::sync_name(store::SyncKind{store.sync.kind[row]}); });
  });
  CodedNames graphs(names);
  add(Kind::GraphLaunch, store.graph_launch, [&, &graph = store.graph_launch.graph](std::size_t row) {
    return graphs.of(graph[row], [&] { return store::graph_name(graph[row]); });
  });
}

/// For aggregate mode.
void add_totals(const store::Store& store, const CallPaths& paths, DisplayNames& names, Summary& summary) {
  std::unordered_map<uint32_t, std::vector<BinCount>> histograms;
  for (std::size_t row = 0; row < store.histogram.size(); ++row) {
    histograms[store.histogram.histogram[row]].push_back({store.histogram.bin[row], store.histogram.count[row]});
  }
  struct Total {
    NameStat stat{};
    std::vector<BinCount> bins;
  };
  std::map<std::pair<Kind, uint32_t>, Total> totals;
  // Computes the quantiles of one row, and adds it to the total of its kind and name.
  const auto add = [&](Kind kind, uint32_t name, uint64_t bytes, uint32_t histogram, Durations& durations) {
    const auto found = histograms.find(histogram);
    std::vector<BinCount> bins = found != histograms.end() ? found->second : std::vector<BinCount>();
    fill_quantiles(durations, bins);
    Total& total = totals[{kind, name}];
    total.stat.kind = kind;
    total.stat.name = name;
    total.stat.bytes += bytes;
    merge(total.stat.durations, durations);
    total.bins.insert(total.bins.end(), bins.begin(), bins.end());
  };
  for (std::size_t row = 0; row < store.region_total.size(); ++row) {
    const auto region = store.region_total[row];
    if (paths.valid(region.path) == store::kNone) {
      continue;
    }
    PathStat& stat = summary.paths[region.path];
    stat.cpu = {.count = region.count, .total_ns = region.total_ns, .min_ns = region.min_ns, .max_ns = region.max_ns};
    stat.self_cpu_ns = std::max<int64_t>(0, region.total_ns - region.child_ns);
    stat.suspended_ns = region.suspended_ns;
    add(Kind::Region, summary.path_names[region.path], 0, region.histogram, stat.cpu);
  }
  for (std::size_t row = 0; row < store.work_total.size(); ++row) {
    const auto work = store.work_total[row];
    const auto kind = static_cast<Kind>(work.kind);
    const uint32_t name = kind == Kind::Kernel ? names.of_kernel(work.name)
                          : kind == Kind::Call ? names.of_call(work.name)
                                               : names.of_string(work.name);
    Durations durations{.count = work.count, .total_ns = work.total_ns, .min_ns = work.min_ns, .max_ns = work.max_ns};
    add(kind, name, work.bytes, work.histogram, durations);
    summary.work.push_back({kind, name, paths.valid(work.path), store::kNone, work.bytes, durations});
  }
  for (auto& [key, total] : totals) {
    fill_quantiles(total.stat.durations, total.bins);
    summary.totals.push_back(total.stat);
  }
}

/// Device time of each path: the work launched there and below, or the time measured by the region's CUDA events.
void add_device_times(const store::Store& store, const CallPaths& paths, Summary& summary) {
  for (const WorkStat& work : summary.work) {
    if (is_device(work.kind)) {
      summary.has_device = true;
      if (work.path != kNone) {
        summary.paths[work.path].self_device_ns += work.durations.total_ns;
      } else {
        summary.device_ns += work.durations.total_ns;
      }
    }
  }
  std::vector<int64_t> measured(paths.size(), -1);
  for (std::size_t row = 0; row < store.region_gpu.size(); ++row) {
    const uint32_t path = paths.valid(store.region_gpu.path[row]);
    if (path != kNone) {
      summary.has_device = true;
      measured[path] = std::max<int64_t>(0, measured[path]) + store.region_gpu.duration_ns[row];
    }
  }
  // Children follow their parents: going backwards, a path's device_ns already includes its children's.
  for (auto path = static_cast<uint32_t>(paths.size()); path-- > 0;) {
    PathStat& stat = summary.paths[path];
    if (measured[path] >= 0) {
      stat.self_device_ns = std::max<int64_t>(0, measured[path] - stat.device_ns);
      stat.device_ns = measured[path];
    } else {
      stat.device_ns += stat.self_device_ns;
    }
    const uint32_t parent = paths.parent(path);
    (parent == kNone ? summary.device_ns : summary.paths[parent].device_ns) += stat.device_ns;
  }
}

/// For regions with totals only: sums over the paths of each name.
void add_region_times(const CallPaths& paths, Summary& summary) {
  std::unordered_map<uint32_t, NameStat*> regions;
  for (NameStat& total : summary.totals) {
    if (total.kind == Kind::Region) {
      regions.emplace(total.name, &total);
    }
  }
  if (regions.empty()) {
    return;
  }
  const std::vector<bool> outermost = paths.outermost();
  for (uint32_t path = 0; path < paths.size(); ++path) {
    const auto found = regions.find(summary.path_names[path]);
    if (found == regions.end()) {
      continue;
    }
    const PathStat& stat = summary.paths[path];
    NameStat& total = *found->second;
    total.region_kind = paths.kind(path);
    total.self_cpu_ns += stat.self_cpu_ns;
    total.self_device_ns += stat.self_device_ns;
    total.is_top_level |= paths.parent(path) == kNone;
    if (outermost[path]) {
      total.cpu_ns += stat.cpu.total_ns;
      total.suspended_ns += stat.suspended_ns;
      total.device_ns += stat.device_ns;
    }
  }
}

void add_work_times(Summary& summary) {
  std::set<std::pair<Kind, uint32_t>> top_level;
  for (const WorkStat& work : summary.work) {
    if (work.path == kNone) {
      top_level.emplace(work.kind, work.name);
    }
  }
  for (NameStat& total : summary.totals) {
    const int64_t duration_ns = total.durations.total_ns;
    if (is_device(total.kind)) {
      total.device_ns = total.self_device_ns = duration_ns;
    } else if (total.kind == Kind::Call) {
      total.cpu_ns = total.self_cpu_ns = duration_ns;
    } else if (total.kind == Kind::Sync) {
      total.cpu_ns = duration_ns;  // not its own time: the driver call waited
    }
    total.is_top_level |= top_level.contains({total.kind, total.name});
    summary.cpu_ns += total.self_cpu_ns;
  }
  for (const NameStat& total : summary.regions.totals) {
    summary.cpu_ns += total.self_cpu_ns;
  }
}

}  // namespace

Summary summarize(const store::Store& store) {
  const CallPaths paths(store);
  DisplayNames names(store);
  Summary summary;
  summary.paths.resize(paths.size());
  for (uint32_t path = 0; path < paths.size(); ++path) {
    summary.path_names.push_back(names.of_region(paths.name(path), paths.kind(path)));
  }
  add_regions(store, paths, summary);
  add_work(store, paths, names, summary);
  add_totals(store, paths, names, summary);
  add_device_times(store, paths, summary);
  add_region_times(paths, summary);
  add_work_times(summary);
  summary.names = names.take();
  return summary;
}

}  // namespace gpuscope::analysis
