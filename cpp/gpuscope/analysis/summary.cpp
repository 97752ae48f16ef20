// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/summary.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "gpuscope/analysis/collect.h"

namespace gpuscope::analysis {
namespace {

using store::kNone;

/// Device time of each path: the work launched there and below, or what the region's own CUDA events measured.
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
  // Children come behind their parents, so that going backwards a path's device_ns already holds its children's.
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

void add_region_times(const CallPaths& paths, Summary& summary) {
  std::unordered_map<uint32_t, NameStat*> regions;
  for (NameStat& total : summary.totals) {
    if (total.kind == Kind::Region) {
      regions.emplace(total.name, &total);
    }
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
      total.cpu_ns = duration_ns;  // not its own: it is the driver call's that waited
    }
    total.is_top_level |= top_level.contains({total.kind, total.name});
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
  collect_events(store, paths, names, summary);
  collect_totals(store, paths, names, summary);
  add_device_times(store, paths, summary);
  add_region_times(paths, summary);
  add_work_times(summary);
  summary.names = names.take();
  return summary;
}

}  // namespace gpuscope::analysis
