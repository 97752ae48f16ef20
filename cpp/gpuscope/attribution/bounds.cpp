// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/bounds.h"

namespace gpuscope::attribution {
namespace {

using store::kNone;
using store::Store;

template <class F>
void each_timed_table(Store& store, F&& visit) {
  visit(store.kernel);
  visit(store.memcpy);
  visit(store.memset);
  visit(store.api);
  visit(store.region);
  visit(store.sync);
  visit(store.graph_launch);
  visit(store.mark);
  visit(store.allocation);
  visit(store.device_memory);
  visit(store.memory_pool);
}

// Rows lie in the order of their arrival, which is nearly that of their time.
template <class Table>
uint32_t rows_before(const Table& table, int64_t cutoff_ns) {
  uint32_t row = 0;
  while (row < table.size() && table.start_ns[row] < cutoff_ns) {
    ++row;
  }
  return row;
}

// The row that tells where the ring begins. A region that is open, or was kept for what lies in it, may reach far back.
template <class Table>
std::size_t first_row(const Table&) {
  return 0;
}
std::size_t first_row(const store::Regions& regions) {
  std::size_t row = 0;
  while (row < regions.size() && (regions.flags[row] & (store::kOpen | store::kClipped)) != 0) {
    ++row;
  }
  return row;
}

template <class Table>
uint32_t evict(Table& table, int64_t cutoff_ns) {
  const uint32_t rows = rows_before(table, cutoff_ns);
  table.drop_front(rows);
  return rows;
}

// Regions that reach beyond the cutoff stay, for rows that stay lie in them: as if they had begun there.
void evict_regions(store::Regions& regions, int64_t cutoff_ns, Eviction& eviction) {
  eviction.regions_evicted = rows_before(regions, cutoff_ns);
  for (uint32_t row = 0; row < eviction.regions_evicted; ++row) {
    if ((regions.flags[row] & store::kOpen) != 0 || regions.start_ns[row] + regions.duration_ns[row] > cutoff_ns) {
      eviction.regions_kept.push_back(row);
    }
  }
  const std::size_t first = eviction.regions_evicted - eviction.regions_kept.size();
  for (std::size_t index = eviction.regions_kept.size(); index-- > 0;) {
    const uint32_t from = eviction.regions_kept[index];
    const std::size_t to = first + index;
    regions.each_column([&](const char*, auto& column) { column[to] = column[from]; });
    const int64_t end_ns = regions.start_ns[to] + regions.duration_ns[to];
    regions.start_ns[to] = cutoff_ns;
    regions.duration_ns[to] = std::max<int64_t>(0, end_ns - cutoff_ns);
    regions.flags[to] |= store::kClipped;
  }
  regions.drop_front(first);
}

// Keeps the rows that `keep` says, in their order.
template <class Table, class F>
void keep_rows(Table& table, F&& keep) {
  const std::size_t rows = table.size();
  std::size_t kept = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    if (keep(row)) {
      table.each_column([&](const char*, auto& column) { column[kept] = column[row]; });
      ++kept;
    }
  }
  table.truncate(kept);
}

void apply(DecodeState& state, const Eviction& eviction) {
  Store& store = *state.store;
  for (auto* references : {&store.kernel.region, &store.memcpy.region, &store.memset.region, &store.sync.region,
                           &store.api.region, &store.graph_launch.region, &store.mark.region, &store.region.parent,
                           &store.region_gpu.region, &store.detail.region, &store.detail.forward, &store.payload.region,
                           &store.allocation.region, &store.device_memory.region, &store.memory_pool.region}) {
    for (std::size_t row = 0; row < references->size(); ++row) {
      (*references)[row] = eviction.region((*references)[row]);
    }
  }
  keep_rows(store.region_gpu, [&](std::size_t row) { return store.region_gpu.region[row] != kNone; });
  keep_rows(store.detail, [&](std::size_t row) { return store.detail.region[row] != kNone; });
  keep_rows(store.payload, [&](std::size_t row) { return store.payload.region[row] != kNone; });
  keep_rows(store.call_stack, [&](std::size_t row) {
    uint32_t& api = store.call_stack.api[row];
    api = eviction.api(api);
    return api != kNone;
  });
  keep_rows(store.graph_node, [&](std::size_t row) {
    uint32_t& event = store.graph_node.event[row];
    event = eviction.event(static_cast<store::Work>(store.graph_node.kind[row]), event);
    return event != kNone;
  });
  for (GpuSpan& span : state.gpu_spans) {
    span.region = eviction.region(span.region);
  }
  state.forward_ops.change_regions([&](uint32_t row) { return eviction.region(row); });
  state.started_ranges.each([&](uint64_t, StartedRange& range) { range.row = eviction.region(range.row); });
  state.correlations.change_references([&](uint32_t row) { return eviction.region(row); });
}

Eviction evict_before(DecodeState& state, int64_t cutoff_ns) {
  Store& store = *state.store;
  Eviction eviction;
  eviction.kernels_evicted = evict(store.kernel, cutoff_ns);
  eviction.memcpys_evicted = evict(store.memcpy, cutoff_ns);
  eviction.memsets_evicted = evict(store.memset, cutoff_ns);
  eviction.apis_evicted = evict(store.api, cutoff_ns);
  eviction.graph_launches_evicted = evict(store.graph_launch, cutoff_ns);
  evict_regions(store.region, cutoff_ns, eviction);
  state.counters.evicted += uint64_t{eviction.kernels_evicted} + eviction.memcpys_evicted + eviction.memsets_evicted +
                            eviction.apis_evicted + eviction.graph_launches_evicted + eviction.regions_evicted -
                            eviction.regions_kept.size() + evict(store.sync, cutoff_ns) + evict(store.mark, cutoff_ns) +
                            evict(store.allocation, cutoff_ns) + evict(store.device_memory, cutoff_ns) +
                            evict(store.memory_pool, cutoff_ns);
  apply(state, eviction);
  return eviction;
}

}  // namespace

std::size_t event_bytes(const Store& store) {
  return store.kernel.size() * store::Kernels::kRowBytes + store.graph_node.size() * store::GraphNodes::kRowBytes +
         store.graph_launch.size() * store::GraphLaunches::kRowBytes + store.memcpy.size() * store::Memcpys::kRowBytes +
         store.memset.size() * store::Memsets::kRowBytes + store.sync.size() * store::Syncs::kRowBytes +
         store.api.size() * store::Apis::kRowBytes + store.region.size() * store::Regions::kRowBytes +
         store.region_gpu.size() * store::RegionGpus::kRowBytes + store.mark.size() * store::Marks::kRowBytes +
         store.detail.size() * store::Details::kRowBytes + store.payload.size() * store::Payloads::kRowBytes +
         store.allocation.size() * store::Allocations::kRowBytes +
         store.device_memory.size() * store::DeviceMemories::kRowBytes +
         store.memory_pool.size() * store::MemoryPools::kRowBytes +
         store.call_stack.size() * store::CallStacks::kRowBytes;
}

void refuse_past_cap(DecodeState& state) {
  if (state.settings.mode == Mode::Full) {
    state.full = event_bytes(*state.store) >= state.settings.max_bytes;
  }
}

std::optional<Eviction> keep_in_bounds(DecodeState& state) {
  if (state.aggregates()) {
    state.totals.refuse_more(state.totals.bytes() >= state.settings.max_bytes);
    state.counters.refused += state.totals.take_refused();
    return {};
  }
  if (state.settings.mode == Mode::Full) {
    refuse_past_cap(state);
    return {};
  }
  const std::size_t bytes = event_bytes(*state.store);
  int64_t oldest_ns = INT64_MAX;
  int64_t newest_ns = INT64_MIN;
  each_timed_table(*state.store, [&](auto& table) {
    if (const std::size_t first = first_row(table); first < table.size()) {
      oldest_ns = std::min(oldest_ns, table.start_ns[first]);
      newest_ns = std::max(newest_ns, table.start_ns[table.size() - 1]);
    }
  });
  // A quarter of slack, so that rows move seldom.
  const int64_t ring_ns = state.settings.ring_ns;
  if (newest_ns <= oldest_ns) {
    return {};  // nothing, or open regions alone
  }
  const bool too_long = newest_ns - oldest_ns > ring_ns + ring_ns / 4;
  const bool too_large = bytes > state.settings.max_bytes;
  if (!too_long && !too_large) {
    return {};
  }
  const int64_t by_time = newest_ns - ring_ns;
  const int64_t by_size = too_large ? oldest_ns + (newest_ns - oldest_ns) / 4 : INT64_MIN;
  return evict_before(state, std::max(by_time, by_size));
}

}  // namespace gpuscope::attribution
