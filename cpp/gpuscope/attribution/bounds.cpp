// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/bounds.h"

#include <algorithm>

namespace gpuscope::attribution {
namespace {

using store::kNone;
using store::Store;

template <class F>
void each_timed_table(Store& store, Evicted& evicted, F&& visit) {
  uint32_t unreferenced = 0;
  visit(store.kernel, evicted.kernel);
  visit(store.memcpy, evicted.memcpy);
  visit(store.memset, evicted.memset);
  visit(store.api, evicted.api);
  visit(store.region, evicted.region);
  visit(store.sync, unreferenced);
  visit(store.graph_launch, unreferenced);
  visit(store.mark, unreferenced);
}

// Rows lie in the order of their arrival, which is nearly that of their time.
template <class Table>
std::size_t rows_before(const Table& table, int64_t cutoff_ns) {
  std::size_t row = 0;
  while (row < table.size() && table.start_ns[row] < cutoff_ns) {
    ++row;
  }
  return row;
}

uint32_t* base_of(Evicted& evicted, uint16_t kind) {
  switch (static_cast<store::Work>(kind)) {
    case store::Work::Kernel:
      return &evicted.kernel;
    case store::Work::Memcpy:
      return &evicted.memcpy;
    case store::Work::Memset:
      return &evicted.memset;
    default:
      return nullptr;
  }
}

void let_go(Recording& recording, int64_t cutoff_ns) {
  each_timed_table(*recording.store, recording.evicted, [&](auto& table, uint32_t& gone) {
    const std::size_t rows = rows_before(table, cutoff_ns);
    table.drop_front(rows);
    gone += static_cast<uint32_t>(rows);
    recording.counters.evicted += rows;
  });
  store::GraphNodes& nodes = recording.store->graph_node;
  std::size_t rows = 0;
  while (rows < nodes.size() && nodes.event[rows] < *base_of(recording.evicted, nodes.kind[rows])) {
    ++rows;
  }
  nodes.drop_front(rows);
}

void shift(store::Column<uint32_t>& references, uint32_t gone) {
  for (std::size_t row = 0; row < references.size(); ++row) {
    uint32_t& reference = references[row];
    if (reference != kNone) {
      reference = reference >= gone ? reference - gone : kNone;
    }
  }
}

}  // namespace

std::size_t event_bytes(const Store& store) {
  return store.kernel.size() * store::Kernels::kRowBytes + store.graph_node.size() * store::GraphNodes::kRowBytes +
         store.graph_launch.size() * store::GraphLaunches::kRowBytes + store.memcpy.size() * store::Memcpys::kRowBytes +
         store.memset.size() * store::Memsets::kRowBytes + store.sync.size() * store::Syncs::kRowBytes +
         store.api.size() * store::Apis::kRowBytes + store.region.size() * store::Regions::kRowBytes +
         store.mark.size() * store::Marks::kRowBytes;
}

bool keep_in_bounds(Recording& recording) {
  if (recording.aggregates()) {
    return false;
  }
  const std::size_t bytes = event_bytes(*recording.store);
  if (recording.settings.mode == Mode::Full) {
    recording.full = bytes >= recording.settings.max_bytes;
    return false;
  }
  int64_t oldest_ns = INT64_MAX;
  int64_t newest_ns = INT64_MIN;
  each_timed_table(*recording.store, recording.evicted, [&](auto& table, uint32_t&) {
    if (table.size() != 0) {
      oldest_ns = std::min(oldest_ns, table.start_ns[0]);
      newest_ns = std::max(newest_ns, table.start_ns[table.size() - 1]);
    }
  });
  // A quarter of slack, so that rows move seldom.
  const int64_t ring_ns = recording.settings.ring_ns;
  const bool too_long = newest_ns > oldest_ns && newest_ns - oldest_ns > ring_ns + ring_ns / 4;
  const bool too_large = bytes > recording.settings.max_bytes;
  if (!too_long && !too_large) {
    return false;
  }
  const int64_t by_time = newest_ns - ring_ns;
  const int64_t by_size = too_large ? oldest_ns + (newest_ns - oldest_ns) / 4 : INT64_MIN;
  let_go(recording, std::max(by_time, by_size));
  return true;
}

void settle_references(Recording& recording) {
  const Evicted& evicted = recording.evicted;
  Store& store = *recording.store;
  if (evicted.region != 0) {
    for (auto* references :
         {&store.kernel.region, &store.memcpy.region, &store.memset.region, &store.sync.region, &store.api.region,
          &store.graph_launch.region, &store.mark.region, &store.region.parent, &store.region_gpu.region}) {
      shift(*references, evicted.region);
    }
  }
  Evicted bases = evicted;
  for (std::size_t row = 0; row < store.graph_node.size(); ++row) {
    if (const uint32_t* base = base_of(bases, store.graph_node.kind[row]); base != nullptr) {
      store.graph_node.event[row] -= *base;
    }
  }
}

}  // namespace gpuscope::attribution
