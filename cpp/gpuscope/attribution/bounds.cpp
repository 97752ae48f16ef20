// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "gpuscope/attribution/decode_state.h"

namespace gpuscope::attribution {
namespace {

using store::kNone;
using store::Store;
using store::Target;

// Rows lie in the order of their arrival, which is nearly that of their time.
template <class Table>
uint32_t rows_before(const Table& table, int64_t cutoff_ns) {
  uint32_t row = 0;
  while (row < table.size() && table.start_ns[row] < cutoff_ns) {
    ++row;
  }
  return row;
}

/// Rows that others lie in.
template <class Table>
concept Nested = std::is_same_v<Table, store::Regions> || std::is_same_v<Table, store::PythonFunctions>;

// The row whose start is the ring's. Nested rows that are open, or were kept for what lies in them, may have begun
// earlier.
template <class Table>
std::size_t first_row(const Table&) {
  return 0;
}
template <Nested Table>
std::size_t first_row(const Table& table) {
  std::size_t row = 0;
  while (row < table.size() && (table.flags[row] & (store::kOpen | store::kClipped)) != 0) {
    ++row;
  }
  return row;
}

template <class Table>
void evict_before(Table& table, int64_t cutoff_ns, EvictedRows& evicted) {
  evicted.end = rows_before(table, cutoff_ns);
  table.drop_front(evicted.end);
}

// Those that end after the cutoff are kept, as kept rows lie in them, with the cutoff as their start.
template <Nested Table>
void evict_before(Table& table, int64_t cutoff_ns, EvictedRows& evicted) {
  evicted.end = rows_before(table, cutoff_ns);
  for (uint32_t row = 0; row < evicted.end; ++row) {
    if ((table.flags[row] & store::kOpen) != 0 || table.start_ns[row] + table.duration_ns[row] > cutoff_ns) {
      evicted.kept.push_back(row);
    }
  }
  const std::size_t first = evicted.count();
  for (std::size_t index = evicted.kept.size(); index-- > 0;) {
    const uint32_t from = evicted.kept[index];
    const std::size_t to = first + index;
    table.each_column([&](const store::ColumnInfo&, auto& column) { column[to] = column[from]; });
    const int64_t end_ns = table.start_ns[to] + table.duration_ns[to];
    table.start_ns[to] = cutoff_ns;
    table.duration_ns[to] = std::max<int64_t>(0, end_ns - cutoff_ns);
    table.flags[to] |= store::kClipped;
  }
  table.drop_front(first);
}

/// Changes a table's references to rows of events.
template <class Table>
void renumber(Table& table, const Eviction& evicted) {
  table.each_column([&](const store::ColumnInfo& info, auto& column) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(column[0])>, uint32_t>) {
      const Target target = info.meaning.target;
      for (std::size_t row = 0; target == Target::EventOfKind && row < column.size(); ++row) {
        column[row] = evicted[store::target_of(table, info, row)].renumber(column[row]);
      }
      if (const EvictedRows& rows = evicted[target]; rows.end != 0) {
        for (std::size_t row = 0; row < column.size(); ++row) {
          column[row] = rows.renumber(column[row]);
        }
      }
    }
  });
}

/// Drops the rows whose owner was evicted; the others keep their order.
template <class Table>
void drop_orphans(Table& table) {
  static_assert(store::has_owner(Table::kInfo), "events without a time of their own need an owner");
  std::vector<uint32_t> kept;
  table.each_column([&](const store::ColumnInfo& info, const auto& column) {
    for (uint32_t row = 0; info.meaning.owner && row < column.size(); ++row) {
      if (column[row] != kNone) {
        kept.push_back(row);
      }
    }
  });
  if (kept.size() == table.size()) {
    return;
  }
  table.each_column([&](const store::ColumnInfo&, auto& column) {
    for (std::size_t row = 0; row < kept.size(); ++row) {
      column[row] = column[kept[row]];
    }
  });
  table.truncate(kept.size());
}

Eviction evict_before(DecodeState& state, int64_t cutoff_ns) {
  Store& store = *state.store;
  Eviction evicted;
  store.each_table([&]<class Table>(Table& table) {
    if constexpr (store::Timed<Table>) {
      evict_before(table, cutoff_ns, evicted[Table::kInfo.target]);
      state.counters.evicted += evicted[Table::kInfo.target].count();
    }
  });
  store.each_table([&]<class Table>(Table& table) {
    if constexpr (Table::kInfo.role == store::Role::Event) {
      renumber(table, evicted);
      if constexpr (!store::Timed<Table>) {
        drop_orphans(table);
      }
    }
  });
  for (GpuSpan& span : state.gpu_spans) {
    span.region = evicted.region(span.region);
  }
  state.forward_ops.change_regions([&](uint32_t row) { return evicted.region(row); });
  state.started_ranges.each([&](uint64_t, StartedRange& range) { range.row = evicted.region(range.row); });
  state.origins.change_rows([&](uint32_t row) { return evicted.region(row); });
  for (auto& [number, call] : state.calls) {
    call.first = evicted.region(call.first);
    call.last = evicted.region(call.last);
  }
  state.correlations.change_references([&](uint32_t row) { return evicted.region(row); });
  return evicted;
}

}  // namespace

std::size_t event_bytes(const Store& store) {
  std::size_t bytes = 0;
  store.each_table([&]<class Table>(const Table& table) {
    if constexpr (Table::kInfo.role == store::Role::Event) {
      bytes += table.size() * Table::kRowBytes;
    }
  });
  return bytes;
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
  state.store->each_table([&]<class Table>(const Table& table) {
    if constexpr (store::Timed<Table>) {
      if (const std::size_t first = first_row(table); first < table.size()) {
        oldest_ns = std::min(oldest_ns, table.start_ns[first]);
        newest_ns = std::max(newest_ns, table.start_ns[table.size() - 1]);
      }
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
