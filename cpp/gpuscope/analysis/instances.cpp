// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/instances.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "gpuscope/base/events.h"
#include "gpuscope/store/values.h"

namespace gpuscope::analysis {
namespace {

using store::kNone;

/// The rows of the region table, inner before outer regions: by depth, deepest first.
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

/// One column of the details, by region. `kNone` for regions without details.
std::vector<uint32_t> detail_of(const store::Store& store, const store::Column<uint32_t>& column) {
  std::vector<uint32_t> values(store.region.size(), kNone);
  for (std::size_t row = 0; row < store.detail.size(); ++row) {
    if (store.detail.region[row] < values.size()) {
      values[store.detail.region[row]] = column[row];
    }
  }
  return values;
}

/// Sets `forward` and `stack`, outermost regions first.
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

/// For each region, the first part of its call. Regions that are no part give themselves.
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

/// Sets `counted_as`, outermost regions first.
void find_counted(const store::Store& store, const CallPaths& paths, const std::vector<uint32_t>& order,
                  Instances& result) {
  const store::Regions& regions = store.region;
  const std::size_t count = order.size();
  const std::vector<uint32_t> first = first_parts(store);
  const auto call_of = [&](uint32_t region) { return region < count ? first[region] : kNone; };
  std::vector<uint32_t> inside(count);  // for the first part of a call: regions inside all parts
  const auto add = [&](uint32_t region) {
    if (region < count) {
      ++inside[first[region]];
    }
  };
  for (uint32_t row = 0; row < count; ++row) {  // nested calls count once, regardless of their number of parts
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

/// The device time below each region, or the time measured by its own CUDA events.
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

/// The rows of the region table by thread and start, outer before inner. Empty: already in this order.
std::vector<uint32_t> by_start(const store::Regions& regions, const std::vector<uint32_t>& inner_first) {
  std::vector<int64_t> newest_ns(std::size_t{UINT16_MAX} + 1, INT64_MIN);
  std::vector<uint32_t> order;
  for (uint32_t row = 0; row < regions.size() && order.empty(); ++row) {
    const int64_t start_ns = regions.start_ns[row];
    const uint32_t parent = regions.parent[row];
    if (std::exchange(newest_ns[regions.thread[row]], start_ns) > start_ns ||
        (parent >= row && parent < regions.size())) {
      order.assign(inner_first.rbegin(), inner_first.rend());
      std::ranges::stable_sort(order, {}, [&](uint32_t other) { return regions.start_ns[other]; });
    }
  }
  return order;
}

/// For each region, how long its own thread was in regions and driver calls inside it.
///
/// A region may outlast the region in which it was opened. It is then inside all surrounding regions while they are
/// open. `until_ns` is the end of the last span inside, so that no moment counts twice. In files, overlapping spans of
/// a thread are siblings, although the later one was opened inside the earlier one.
std::vector<int64_t> time_inside(const store::Store& store, const std::vector<uint32_t>& inner_first, bool& crosses) {
  const store::Regions& regions = store.region;
  const auto count = static_cast<uint32_t>(regions.size());
  const bool is_by_time = !store.find_info(store::kNestedByTime).empty();
  const bool has_parts = store.resumption.size() != 0;
  const std::vector<uint32_t> first = has_parts ? first_parts(store) : std::vector<uint32_t>();
  std::vector<uint32_t> newest_part = first;
  std::vector<uint32_t> newest_inside(is_by_time ? count + std::size_t{UINT16_MAX} + 1 : 0, kNone);  // threads last
  std::vector<int64_t> until_ns(regions.start_ns.begin(), regions.start_ns.end());
  std::vector<int64_t> inside(count);
  const auto end_of = [&](uint32_t row) { return regions.start_ns[row] + regions.duration_ns[row]; };
  // Returns false if the time was covered already: surrounding regions are covered too.
  const auto cover = [&](uint32_t row, int64_t start_ns, int64_t end_ns) {
    if (end_ns <= until_ns[row]) {
      return false;
    }
    inside[row] += std::max<int64_t>(0, std::min(end_ns, end_of(row)) - std::max(start_ns, until_ns[row]));
    until_ns[row] = end_ns;
    return true;
  };
  const std::vector<uint32_t> order = by_start(regions, inner_first);
  for (uint32_t place = 0; place < count; ++place) {
    const uint32_t row = order.empty() ? place : order[place];
    if ((regions.flags[row] & store::kAsync) != 0) {
      continue;
    }
    const int64_t start_ns = regions.start_ns[row];
    const int64_t end_ns = end_of(row);
    const uint16_t thread = regions.thread[row];
    if (const uint32_t last = has_parts ? std::exchange(newest_part[first[row]], row) : row; last != row) {
      cover(row, start_ns, until_ns[last]);  // regions still open in the last part
    }
    if (is_by_time) {
      uint32_t beside = std::exchange(newest_inside[std::min(regions.parent[row], count + thread)], row);
      for (; beside != kNone && end_of(beside) > start_ns; beside = newest_inside[beside]) {
        cover(beside, start_ns, end_ns);
      }
    }
    int64_t opened_ns = start_ns;  // when the region inside `around` was opened
    uint32_t around = regions.parent[row];
    while (around < count && regions.thread[around] == thread) {
      const uint32_t parent = regions.parent[around];
      const bool is_later = opened_ns >= end_of(around);  // a task that began after its creator's region had ended
      opened_ns = regions.start_ns[around];
      crosses |= !is_later && end_of(around) < end_ns;
      if (!is_later && !cover(has_parts ? newest_part[first[around]] : around, start_ns, end_ns)) {
        break;
      }
      around = is_later && parent >= around ? kNone : parent;  // damaged files have loops
    }
  }
  for (std::size_t row = 0; row < store.api.size(); ++row) {
    const uint32_t region = store.api.region[row];
    if (region < count && regions.thread[region] == store.api.thread[row]) {
      inside[region] += store.api.duration_ns[row];
    }
  }
  return inside;
}

/// Subtracts late work from each region: launches and allocations in inner regions after the region was left.
void leave_out_late(const store::Store& store, Instances& result) {
  const LateWork late(store, result.crosses);
  const auto each = [&](const auto& table, auto&& at_ns, auto&& take) {
    for (std::size_t row = 0; row < table.size(); ++row) {
      if (const uint32_t region = table.region[row]; late.may_be_in(region)) {
        late.each_left(region, at_ns(row), [&](uint32_t left) { take(row, left); });
      }
    }
  };
  const auto leave_out_work = [&](const auto& table) {
    each(
        table, [&](std::size_t row) { return late.launched_ns(table, row); },
        [&](std::size_t row, uint32_t left) {
          result.late_device_ns.resize(store.region.size());
          result.late_device_ns[left] += table.duration_ns[row];
          result.device_ns[left] -= table.duration_ns[row];
        });
  };
  leave_out_work(store.kernel);
  leave_out_work(store.memcpy);
  leave_out_work(store.memset);
  leave_out_work(store.graph_launch);
  const store::Allocations& memory = store.allocation;
  each(
      memory, [&](std::size_t row) { return memory.start_ns[row]; },
      [&](std::size_t row, uint32_t left) {
        (memory.ordinal[row] == kNone ? result.cpu_bytes : result.device_bytes)[left] -= memory.bytes[row];
      });
}

/// Counts the parts of a call as its first part.
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

  // Depth first, counting the open nodes of each group: linear for any recursion depth.
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
  result.self_cpu_ns = time_inside(store, order, result.crosses);
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
  leave_out_late(store, result);

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

LateWork::LateWork(const store::Store& store, bool crosses)
    : regions_(store.region), path_table_(store.path), paths_(store) {
  if (!crosses) {
    return;
  }
  is_part_.resize(regions_.size());
  for (const uint32_t region : store.resumption.region) {
    if (region < is_part_.size()) {
      is_part_[region] = true;
    }
  }
  for (uint32_t row = 0; row < regions_.size(); ++row) {
    const uint32_t parent = parent_of(row);
    if (parent != kNone && (may_be_in(parent) || (is_outlasted(parent, row) && end_of(parent) < end_of(row)))) {
      outlasts_.resize(regions_.size());
      outlasts_[row] = true;
    }
  }
  for (std::size_t call = 0; !outlasts_.empty() && call < store.api.size(); ++call) {
    if (may_be_in(store.api.region[call])) {
      launched_ns_.emplace(store.api.correlation[call], store.api.start_ns[call]);
    }
  }
}

uint32_t LateWork::path_at(uint32_t region, int64_t at_ns) {
  std::vector<uint32_t> left;
  each_left(region, at_ns, [&](uint32_t row) { left.push_back(row); });
  const uint32_t own = paths_.of_region(region);
  if (left.empty()) {
    return own;
  }
  std::vector<uint32_t> inside;  // regions inside the outermost one that was left, innermost first
  for (uint32_t row = region; row != left.back(); row = parent_of(row)) {
    inside.push_back(row);
  }
  const uint32_t outermost = paths_.of_region(left.back());
  uint32_t path = outermost != kNone ? paths_.parent(outermost) : kNone;
  for (auto row = inside.rbegin(); row != inside.rend(); ++row) {
    if (std::ranges::find(left, *row) == left.end()) {
      const uint32_t found = named_as(paths_.of_region(*row), path);
      if (found == kNone) {
        return own;
      }
      path = found;
    }
  }
  return path;
}

/// The child of `parent` with the same name as `path`.
uint32_t LateWork::named_as(uint32_t path, uint32_t parent) {
  const auto [known, is_new] = renamed_.try_emplace({path, parent}, kNone);
  for (uint32_t other = 0; is_new && path != kNone && other < paths_.size(); ++other) {
    if (paths_.parent(other) == parent && paths_.name(other) == paths_.name(path) &&
        paths_.kind(other) == paths_.kind(path) && path_table_.domain[other] == path_table_.domain[path]) {
      known->second = other;
      break;
    }
  }
  return known->second;
}

}  // namespace gpuscope::analysis
