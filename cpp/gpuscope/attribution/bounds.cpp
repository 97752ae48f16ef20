// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "gpuscope/attribution/decode_state.h"

namespace gpuscope::attribution {
namespace {

using store::kNone;
using store::Store;
using store::Target;

/// Tables whose rows contain other rows.
template <class Table>
concept Nested = std::is_same_v<Table, store::Regions> || std::is_same_v<Table, store::PythonFunctions>;

constexpr int64_t kStays = INT64_MAX;

/// The row is evicted if the ring begins after this time. kStays for open rows.
template <class Table>
int64_t last_moment(const Table& table, std::size_t row) {
  return table.start_ns[row];
}
template <Nested Table>
int64_t last_moment(const Table& table, std::size_t row) {
  if ((table.flags[row] & store::kOpen) != 0) {
    return kStays;
  }
  return std::max(table.start_ns[row], table.start_ns[row] + table.duration_ns[row] - 1);
}

// The row whose start is the ring's start. Nested rows that are open, or were kept for rows inside them, may have begun
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

/// The time before which that share of the rows is, estimated from some thousand rows. kStays if all are open.
int64_t moment_of_share(const Store& store, double share) {
  constexpr std::size_t kSamples = 4096;
  std::size_t rows = 0;
  store.each_table([&]<class Table>(const Table& table) { rows += store::Timed<Table> ? table.size() : 0; });
  std::vector<int64_t> moments;
  store.each_table([&]<class Table>(const Table& table) {
    if constexpr (store::Timed<Table>) {
      for (std::size_t row = 0; row < table.size(); row += rows / kSamples + 1) {
        if (const int64_t moment = last_moment(table, row); moment != kStays) {
          moments.push_back(moment);
        }
      }
    }
  });
  if (moments.empty()) {
    return kStays;
  }
  const auto at = moments.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(moments.size()));
  std::nth_element(moments.begin(), at, moments.end());
  return std::max(*at, *std::min_element(moments.begin(), moments.end()) + 1);  // evicts at least one row
}

// Rows are in the order in which threads were read, roughly by time. Rows that extend into the ring are cut to begin
// where it begins.
template <class Table, class F>
void evict_rows(Table& table, int64_t cutoff_ns, EvictedRows& evicted, F&& leaves) {
  for (uint32_t row = 0; row < table.size(); ++row) {
    if (leaves(table, row)) {
      for (uint32_t kept = evicted.end; kept < row; ++kept) {
        evicted.kept.push_back(kept);
      }
      evicted.end = row + 1;
    }
  }
  const std::size_t first = evicted.count();
  for (std::size_t index = evicted.kept.size(); index-- > 0;) {
    const uint32_t from = evicted.kept[index];
    table.each_column([&](const store::ColumnInfo&, auto& column) { column[first + index] = column[from]; });
  }
  table.drop_front(first);
  if constexpr (Nested<Table>) {
    for (std::size_t row = 0; row < table.size(); ++row) {
      if (table.start_ns[row] < cutoff_ns) {
        const int64_t end_ns = table.start_ns[row] + table.duration_ns[row];
        table.start_ns[row] = cutoff_ns;
        table.duration_ns[row] = std::max<int64_t>(0, end_ns - cutoff_ns);
        table.flags[row] |= store::kClipped;
      }
    }
  }
}

/// Renumbers a table's references to event rows.
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

/// Drops the rows whose owner was evicted. The others keep their order.
template <class Table>
void drop_orphans(Table& table) {
  static_assert(store::has_owner(Table::kInfo), "events without a time of their own need an owner");
  std::vector<uint32_t> kept;
  table.each_column([&](const store::ColumnInfo& info, const auto& column) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(column[0])>>) {
      for (uint32_t row = 0; info.meaning.owner && row < column.size(); ++row) {
        if (column[row] != kNone) {
          kept.push_back(row);
        }
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

// Rows move rarely: after the ring advanced by a quarter, or a quarter more rows came.
bool is_due(const LastEviction& last, int64_t newest_ns, std::size_t bytes, int64_t ring_ns) {
  constexpr std::size_t kLeastBytes = std::size_t{1} << 20;
  if (!last.newest_ns || bytes >= last.bytes_left + std::max(last.bytes_left / 4, kLeastBytes)) {
    return true;
  }
  const auto [before_ns, after_ns] = std::minmax(newest_ns, *last.newest_ns);  // the newest time may have been wrong
  return after_ns - before_ns >= ring_ns / 4;
}

/// Evicts the rows for which leaves(table, row) holds. Nested rows that stay begin at the cutoff, or later.
template <class F>
Eviction evict(DecodeState& state, int64_t cutoff_ns, F&& leaves) {
  Store& store = *state.store;
  Eviction evicted;
  store.each_table([&]<class Table>(Table& table) {
    if constexpr (store::Timed<Table>) {
      evict_rows(table, cutoff_ns, evicted[Table::kInfo.target], leaves);
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

std::optional<Eviction> keep_in_bounds(DecodeState& state) {
  const uint64_t max_bytes = state.settings.max_bytes;
  const std::size_t names_bytes = state.dictionaries.bytes() + state.unread_names_bytes;
  if (state.aggregates()) {
    const std::size_t rows_bytes = event_bytes(*state.store) + state.sample_rows.bytes();
    const bool refuses = state.totals.refuses() || state.totals.bytes() + rows_bytes + names_bytes >= max_bytes;
    state.totals.refuse_more(refuses);
    state.dictionaries.refuse_more(refuses);
    state.counters.refused += state.totals.take_refused();
    return {};
  }
  const std::size_t bytes = event_bytes(*state.store) + names_bytes;
  if (state.settings.mode == Mode::Full) {
    state.full = state.full || bytes >= max_bytes;
    state.dictionaries.refuse_more(state.full);
    return {};
  }
  state.dictionaries.refuse_more(state.dictionaries.bytes() > max_bytes);  // evicted rows also drop their names
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
  // A quarter of slack, so that rows move rarely.
  const int64_t ring_ns = state.settings.ring_ns;
  const bool too_long = newest_ns > oldest_ns && newest_ns - oldest_ns > ring_ns + ring_ns / 4 &&
                        is_due(state.last_eviction, newest_ns, bytes, ring_ns);
  const auto most = static_cast<double>(max_bytes) / static_cast<double>(bytes);
  const double share = most < 0.75 ? 1 - 0.75 * most : 0.25;
  const int64_t by_time = too_long ? newest_ns - ring_ns : INT64_MIN;
  const int64_t by_size = bytes > max_bytes ? moment_of_share(*state.store, share) : INT64_MIN;
  const int64_t cutoff_ns = by_size != kStays ? std::max(by_time, by_size) : by_time;
  if (cutoff_ns == INT64_MIN) {
    return {};
  }
  Eviction evicted =
      evict(state, cutoff_ns, [&](const auto& table, std::size_t row) { return last_moment(table, row) < cutoff_ns; });
  for (const store::TableInfo& table : store::kTables) {
    state.counters.evicted += evicted[table.target].count();
  }
  state.last_eviction = {newest_ns, event_bytes(*state.store)};
  return evicted;
}

Eviction evict_ended(DecodeState& state, int64_t at_ns, std::span<const uint32_t> open_calls) {
  Eviction evicted = evict(state, at_ns, [&]<class Table>(const Table& table, std::size_t row) {
    if constexpr (Nested<Table>) {
      return (table.flags[row] & store::kOpen) == 0;
    } else if constexpr (std::is_same_v<Table, store::Apis>) {
      return !std::ranges::binary_search(open_calls, row);
    } else {
      return true;
    }
  });
  state.store->each_table([]<class Table>(Table& table) {
    if constexpr (Nested<Table>) {  // all of them continue rows of the segment before
      for (std::size_t row = 0; row < table.size(); ++row) {
        table.flags[row] |= store::kClipped;
      }
    }
  });
  return evicted;
}

}  // namespace gpuscope::attribution
