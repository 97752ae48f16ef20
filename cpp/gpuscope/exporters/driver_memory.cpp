// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/driver_memory.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "gpuscope/exporters/labels.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::MemoryKind;
using store::Store;
using Point = MemoryCounter::Point;

/// Which counter an allocation belongs to. In the order in which they are drawn.
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
  uint64_t live = 0;                   // unsigned, as a file may hold any numbers
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
    groups[{group, on_host ? kNone : device_ordinal(store, device)}].push_back(row);
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
      const uint32_t device = device_ordinal(store, store.track.device[memory.track[row]]);
      pools[{device, memory.pool[row]}].add(memory.start_ns[row], memory.pool_reserved_bytes[row],
                                            memory.pool_used_bytes[row]);
    }
  }
  for (uint32_t row = 0; row < store.memory_pool.size(); ++row) {
    const auto event = store.memory_pool[row];
    const bool is_gone = static_cast<store::PoolOperation>(event.operation) == store::PoolOperation::Destroyed;
    pools[{device_ordinal(store, event.device), event.pool}].add(event.start_ns, is_gone ? 0 : event.reserved_bytes,
                                                                 is_gone ? 0 : event.used_bytes);
  }
  const auto by_time = [](const Point& a, const Point& b) { return a.at_ns < b.at_ns; };
  const auto is_empty = [](const Point& point) { return point.bytes == 0; };
  for (auto& [key, pool] : pools) {
    if (std::all_of(pool.reserved.begin(), pool.reserved.end(), is_empty)) {
      continue;  // of another process, or nothing was ever in it
    }
    for (const auto& [what, points] : {std::pair("reserved", &pool.reserved), {"used", &pool.used}}) {
      std::stable_sort(points->begin(), points->end(), by_time);
      counters.push_back({pool_name(key.first, key.second, what), key.first, std::move(*points)});
    }
  }
}

}  // namespace

std::vector<MemoryCounter> count_driver_memory(const Store& store) {
  std::vector<MemoryCounter> counters;
  add_live(store, counters);
  add_pools(store, counters);
  return counters;
}

}  // namespace gpuscope::exporters
