// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "gpuscope/analysis/collect.h"
#include "gpuscope/analysis/grouping.h"
#include "gpuscope/analysis/instances.h"
#include "gpuscope/analysis/work_names.h"
#include "gpuscope/store/labels.h"

namespace gpuscope::analysis {
namespace {

using store::kNone;

/// Calls `take(first, last)` for each run of groups that have one name.
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

/// Everything of one name, whose groups lie one behind the other. `single` is what its only group came to.
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

/// The capture of each row of one event table; empty where no row is a node of a graph.
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

class Collector {
 public:
  Collector(const store::Store& store, const CallPaths& paths, DisplayNames& names, Summary& summary)
      : store_(store), paths_(paths), names_(names), summary_(summary) {}

  void regions() {
    const store::Regions& regions = store_.region;
    const std::vector<int64_t> inside = time_inside(store_);
    const std::vector<uint32_t>& name_of = summary_.path_names;
    Grouping grouping(regions.size());
    for (std::size_t row = 0; row < regions.size(); ++row) {
      const uint32_t path = paths_.valid(regions.path[row]);
      grouping.add({path == kNone ? kNone : name_of[path], path, kNone});
      if (path != kNone && (regions.flags[row] & store::kAsync) == 0) {
        summary_.paths[path].self_cpu_ns += std::max<int64_t>(0, regions.duration_ns[row] - inside[row]);
      }
    }
    each_name(grouping.arrange(regions.duration_ns.data()), [&](std::span<const Group> groups) {
      if (groups.front().key.path == kNone) {
        return;
      }
      for (const Group& group : groups) {
        summary_.paths[group.key.path].cpu = measure(group.durations_ns);
      }
      summary_.totals.push_back(total_of(Kind::Region, groups, summary_.paths[groups.front().key.path].cpu));
    });
  }

  /// `name_of(row)` and `bytes_of(row)` say what a row of the table is.
  template <class Table, class NameOf, class BytesOf>
  void work(Kind kind, const Table& table, NameOf&& name_of, BytesOf&& bytes_of) {
    const std::vector<uint32_t> captures =
        captures_of(store_.graph_node, static_cast<store::Work>(kind), is_device(kind) ? table.size() : 0);
    Grouping grouping(table.size());
    for (std::size_t row = 0; row < table.size(); ++row) {
      grouping.add({name_of(row), paths_.of_region(table.region[row]), captures.empty() ? kNone : captures[row]},
                   bytes_of(row));
    }
    each_name(grouping.arrange(table.duration_ns.data()), [&](std::span<const Group> groups) {
      for (const Group& group : groups) {
        const auto& [name, path, capture] = group.key;
        summary_.work.push_back({kind, name, path, capture, group.bytes, measure(group.durations_ns)});
      }
      summary_.totals.push_back(total_of(kind, groups, summary_.work.back().durations));
    });
  }

 private:
  const store::Store& store_;
  const CallPaths& paths_;
  DisplayNames& names_;
  Summary& summary_;
};

/// Names made once for each code that rows are told apart by.
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

}  // namespace

void collect_events(const store::Store& store, const CallPaths& paths, DisplayNames& names, Summary& summary) {
  Collector collector(store, paths, names, summary);
  collector.regions();

  const auto no_bytes = [](std::size_t) { return uint64_t{0}; };
  std::vector<uint32_t> variants(store.variant.size());
  for (std::size_t row = 0; row < variants.size(); ++row) {
    variants[row] = names.of_kernel(store.variant.name[row]);
  }
  // One name more than there are variants or calls: that of a row whose dictionary entry is missing.
  variants.push_back(names.intern(""));
  collector.work(
      Kind::Kernel, store.kernel,
      [&](std::size_t row) { return variants[std::min<std::size_t>(store.kernel.variant[row], variants.size() - 1)]; },
      no_bytes);

  std::vector<uint32_t> calls(store.call.size());
  for (std::size_t row = 0; row < calls.size(); ++row) {
    calls[row] = names.of_string(store.call.name[row]);
  }
  calls.push_back(names.intern(""));
  collector.work(
      Kind::Call, store.api,
      [&](std::size_t row) { return calls[std::min<std::size_t>(store.api.call[row], calls.size() - 1)]; }, no_bytes);

  CodedNames copies(names);
  collector.work(
      Kind::Memcpy, store.memcpy,
      [&, &table = store.memcpy](std::size_t row) {
        const auto [kind, source, destination] = std::tuple(table.kind[row], table.source[row], table.destination[row]);
        return copies.of(uint32_t{kind} << 16 | uint32_t{source} << 8 | destination, [&] {
          return store::copy_name(store::CopyKind{kind}, store::MemoryKind{source}, store::MemoryKind{destination});
        });
      },
      [&](std::size_t row) { return store.memcpy.bytes[row]; });
  const uint32_t memset_name = names.intern(store::kMemsetName);
  collector.work(
      Kind::Memset, store.memset, [&](std::size_t) { return memset_name; },
      [&](std::size_t row) { return store.memset.bytes[row]; });
  CodedNames syncs(names);
  collector.work(
      Kind::Sync, store.sync,
      [&](std::size_t row) {
        return syncs.of(store.sync.kind[row], [&] { return store::sync_name(store::SyncKind{store.sync.kind[row]}); });
      },
      no_bytes);
  CodedNames graphs(names);
  collector.work(
      Kind::GraphLaunch, store.graph_launch,
      [&](std::size_t row) {
        return graphs.of(store.graph_launch.graph[row],
                         [&] { return store::graph_name(store.graph_launch.graph[row]); });
      },
      no_bytes);
}

}  // namespace gpuscope::analysis
