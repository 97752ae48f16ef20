// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/instances.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "gpuscope/base/event_log.h"

namespace gpuscope::analysis {
namespace {

using store::kNone;

/// The rows of the region table, each before the one it lies in: by depth, deepest first.
std::vector<uint32_t> inner_first(const store::Regions& regions, const CallPaths& paths) {
  std::vector<uint32_t> depths(paths.size());
  uint32_t deepest = 0;
  for (uint32_t path = 0; path < paths.size(); ++path) {
    depths[path] = paths.parent(path) == kNone ? 0 : depths[paths.parent(path)] + 1;
    deepest = std::max(deepest, depths[path]);
  }
  const auto place_of = [&](std::size_t row) {
    const uint32_t path = paths.valid(regions.path[row]);
    return deepest - (path == kNone ? 0 : depths[path]);
  };
  std::vector<std::size_t> next(std::size_t{deepest} + 2);
  for (std::size_t row = 0; row < regions.size(); ++row) {
    ++next[place_of(row) + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<uint32_t> order(regions.size());
  for (std::size_t row = 0; row < regions.size(); ++row) {
    order[next[place_of(row)]++] = static_cast<uint32_t>(row);
  }
  return order;
}

void add_up(const store::Regions& regions, const std::vector<uint32_t>& order, std::vector<int64_t>& inclusive) {
  for (const uint32_t row : order) {
    if (regions.parent[row] < inclusive.size()) {
      inclusive[regions.parent[row]] += inclusive[row];
    }
  }
}

template <class Table>
void add_device_time(const Table& table, std::vector<int64_t>& self) {
  for (std::size_t row = 0; row < table.size(); ++row) {
    if (table.region[row] < self.size()) {
      self[table.region[row]] += table.duration_ns[row];
    }
  }
}

/// One column of the details by region; `kNone` for regions without.
std::vector<uint32_t> detail_of(const store::Store& store, const store::Column<uint32_t>& column) {
  std::vector<uint32_t> values(store.region.size(), kNone);
  for (std::size_t row = 0; row < store.detail.size(); ++row) {
    if (store.detail.region[row] < values.size()) {
      values[store.detail.region[row]] = column[row];
    }
  }
  return values;
}

/// Fills in `forward` and `stack`, from the outermost regions inwards.
void find_forward(const store::Store& store, const std::vector<uint32_t>& order, Instances& result) {
  const std::size_t count = order.size();
  result.forward = detail_of(store, store.detail.forward);
  result.stack = detail_of(store, store.detail.stack);
  for (std::size_t place = count; place-- > 0;) {
    const uint32_t row = order[place];
    const uint32_t parent = store.region.parent[row];
    if (result.forward[row] == kNone && parent < count) {
      result.forward[row] = result.forward[parent];
    }
  }
  const std::vector<uint32_t> own = result.stack;
  for (std::size_t row = 0; row < count; ++row) {
    if (result.forward[row] < count) {
      result.stack[row] = own[result.forward[row]];
    }
  }
}

/// For each region the first part of its call; itself of what is no part of a call.
std::vector<uint32_t> first_parts(const store::Store& store) {
  const store::Resumptions& parts = store.resumption;
  std::vector<uint32_t> first(store.region.size());
  std::iota(first.begin(), first.end(), 0U);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const uint32_t row = parts.region[part];
    if (row < first.size() && parts.first[part] < row) {
      first[row] = parts.first[part];
    }
  }
  return first;
}

/// Fills in `counted_as`, from the outermost regions inwards.
void find_counted(const store::Store& store, const CallPaths& paths, const std::vector<uint32_t>& order,
                  Instances& result) {
  const store::Regions& regions = store.region;
  const std::size_t count = order.size();
  const std::vector<uint32_t> first = first_parts(store);
  const auto call_of = [&](uint32_t region) { return region < count ? first[region] : kNone; };
  std::vector<uint32_t> inside(count);  // of the first part of a call what all its parts have
  const auto add = [&](uint32_t region) {
    if (region < count) {
      ++inside[first[region]];
    }
  };
  for (uint32_t row = 0; row < count; ++row) {  // a call within another is one there, in however many parts
    if (first[row] == row || call_of(regions.parent[row]) != call_of(regions.parent[first[row]])) {
      add(regions.parent[row]);
    }
  }
  std::ranges::for_each(store.api.region, add);
  result.counted_as.resize(count);
  std::iota(result.counted_as.begin(), result.counted_as.end(), 0U);
  for (std::size_t place = count; place-- > 0;) {
    const uint32_t row = order[place];
    const uint32_t parent = call_of(regions.parent[row]);
    if (parent == kNone || first[row] != row || inside[parent] != 1) {
      continue;
    }
    const uint32_t path = paths.valid(regions.path[row]);
    const uint32_t around = paths.valid(regions.path[parent]);
    if (path != kNone && around != kNone && paths.kind(around) == paths.kind(path) &&
        paths.name(around) == paths.name(path)) {
      result.counted_as[row] = result.counted_as[parent];
    }
  }
}

/// What lies below each region, or what its own CUDA events measured.
std::vector<int64_t> inclusive_device_time(const store::Store& store, const std::vector<uint32_t>& order,
                                           std::vector<int64_t>& self) {
  const store::Regions& regions = store.region;
  std::vector<int64_t> below(regions.size());
  std::vector<int64_t> measured(regions.size(), -1);
  for (std::size_t row = 0; row < store.region_gpu.size(); ++row) {
    if (store.region_gpu.region[row] < measured.size()) {
      measured[store.region_gpu.region[row]] = store.region_gpu.duration_ns[row];
    }
  }
  for (const uint32_t row : order) {
    if (measured[row] >= 0) {
      self[row] = std::max<int64_t>(0, measured[row] - below[row]);
      below[row] = measured[row];
    } else {
      below[row] += self[row];
    }
    if (regions.parent[row] < below.size()) {
      below[regions.parent[row]] += below[row];
    }
  }
  return below;
}

/// For each region, how long its own thread was in the regions and driver calls directly inside it.
std::vector<int64_t> time_inside(const store::Store& store) {
  const store::Regions& regions = store.region;
  std::vector<int64_t> inside(regions.size());
  const auto add = [&](uint32_t region, uint16_t thread, int64_t duration_ns) {
    if (region < inside.size() && regions.thread[region] == thread) {
      inside[region] += duration_ns;
    }
  };
  // A task lies in the region that it was created in, and runs after that was left: within one around it, maybe.
  const auto left_before = [&](uint32_t region, std::size_t row) {
    return region < inside.size() && regions.thread[region] == regions.thread[row] &&
           regions.start_ns[region] + regions.duration_ns[region] < regions.start_ns[row];
  };
  for (std::size_t row = 0; row < regions.size(); ++row) {
    if ((regions.flags[row] & store::kAsync) == 0) {
      uint32_t around = regions.parent[row];
      while (left_before(around, row)) {
        around = regions.parent[around] < around ? regions.parent[around] : kNone;
      }
      add(around, regions.thread[row], regions.duration_ns[row]);
    }
  }
  for (std::size_t row = 0; row < store.api.size(); ++row) {
    add(store.api.region[row], store.api.thread[row], store.api.duration_ns[row]);
  }
  return inside;
}

/// Counts the parts of a call as its first.
void join_calls(const store::Store& store, Instances& result) {
  const store::Resumptions& parts = store.resumption;
  const std::size_t count = store.region.size();
  if (parts.size() == 0) {
    return;
  }
  result.ran_ns.assign(store.region.duration_ns.begin(), store.region.duration_ns.end());
  result.suspended_ns.resize(count);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const uint32_t row = parts.region[part];
    const uint32_t first = parts.first[part] < row ? parts.first[part] : row;
    if (row >= count) {
      continue;
    }
    result.suspended_ns[first] += parts.suspended_ns[part];
    if (first != row) {
      result.ran_ns[first] += store.region.duration_ns[row];
      result.counted_as[row] = result.counted_as[first];
    }
  }
}

}  // namespace

std::vector<bool> find_outermost(std::span<const uint32_t> parents, std::span<const uint32_t> groups) {
  const auto count = static_cast<uint32_t>(parents.size());
  std::vector<uint32_t> first_child(count, kNone);
  std::vector<uint32_t> next_sibling(count, kNone);
  uint32_t first_root = kNone;
  for (uint32_t node = count; node-- > 0;) {
    uint32_t& first = parents[node] < count ? first_child[parents[node]] : first_root;
    next_sibling[node] = first;
    first = node;
  }

  // Depth first, counting the open nodes of each group: linear, however deep a recursion goes.
  std::vector<bool> result(count, true);
  std::vector<uint32_t> open(count == 0 ? 0 : std::size_t{std::ranges::max(groups)} + 1);
  for (uint32_t node = first_root; node < count;) {
    result[node] = open[groups[node]]++ == 0;
    if (first_child[node] != kNone) {
      node = first_child[node];
      continue;
    }
    while (node < count) {
      --open[groups[node]];
      if (next_sibling[node] != kNone) {
        node = next_sibling[node];
        break;
      }
      node = parents[node];
    }
  }
  return result;
}

std::vector<bool> CallPaths::outermost() const {
  std::vector<uint32_t> parents(size());
  std::vector<uint32_t> groups(size());
  std::unordered_map<uint64_t, uint32_t> numbers;
  for (uint32_t path = 0; path < size(); ++path) {
    parents[path] = parent(path);
    const auto next = static_cast<uint32_t>(numbers.size());
    groups[path] = numbers.try_emplace(uint64_t{kind(path)} << 32 | name(path), next).first->second;
  }
  return find_outermost(parents, groups);
}

Instances measure_instances(const store::Store& store) {
  const store::Regions& regions = store.region;
  const std::size_t count = regions.size();
  const CallPaths paths(store);
  const std::vector<uint32_t> order = inner_first(regions, paths);

  Instances result;
  result.self_cpu_ns = time_inside(store);
  for (std::size_t row = 0; row < count; ++row) {
    const bool overlaps = (regions.flags[row] & store::kAsync) != 0;
    const int64_t own = regions.duration_ns[row] - result.self_cpu_ns[row];
    result.self_cpu_ns[row] = overlaps ? 0 : std::max<int64_t>(0, own);
  }

  result.self_device_ns.resize(count);
  add_device_time(store.kernel, result.self_device_ns);
  add_device_time(store.memcpy, result.self_device_ns);
  add_device_time(store.memset, result.self_device_ns);
  add_device_time(store.graph_launch, result.self_device_ns);
  result.device_ns = inclusive_device_time(store, order, result.self_device_ns);

  result.self_cpu_bytes.resize(count);
  result.self_device_bytes.resize(count);
  for (std::size_t row = 0; row < store.allocation.size(); ++row) {
    auto& self = store.allocation.ordinal[row] == kNone ? result.self_cpu_bytes : result.self_device_bytes;
    if (store.allocation.region[row] < count) {
      self[store.allocation.region[row]] += store.allocation.bytes[row];
    }
  }
  result.cpu_bytes = result.self_cpu_bytes;
  add_up(regions, order, result.cpu_bytes);
  result.device_bytes = result.self_device_bytes;
  add_up(regions, order, result.device_bytes);

  find_forward(store, order, result);
  find_counted(store, paths, order, result);
  join_calls(store, result);
  const std::vector<bool> outermost = paths.outermost();
  result.outermost.resize(count);
  for (std::size_t row = 0; row < count; ++row) {
    const uint32_t path = paths.valid(regions.path[row]);
    result.outermost[row] = path != kNone && outermost[path];
  }
  return result;
}

}  // namespace gpuscope::analysis
