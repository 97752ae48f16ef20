// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpuscope/attribution/decode_state.h"

namespace gpuscope::attribution {

/// What the ring evicted of one table, and where the other rows are now.
struct EvictedRows {
  uint32_t end = 0;            // the rows before this one, but for
  std::vector<uint32_t> kept;  // these, in order, which come first now

  /// Where a row is now; store::kNone for one that was evicted.
  uint32_t renumber(uint32_t row) const noexcept {
    if (row == store::kNone || row >= end) {
      return row == store::kNone ? row : row - (end - static_cast<uint32_t>(kept.size()));
    }
    const auto found = std::lower_bound(kept.begin(), kept.end(), row);
    return found != kept.end() && *found == row ? static_cast<uint32_t>(found - kept.begin()) : store::kNone;
  }
  uint32_t count() const noexcept { return end - static_cast<uint32_t>(kept.size()); }
};

/// What the ring evicted of every table.
class Eviction {
 public:
  EvictedRows& operator[](store::Target table) noexcept { return tables_[static_cast<std::size_t>(table)]; }
  const EvictedRows& operator[](store::Target table) const noexcept { return tables_[static_cast<std::size_t>(table)]; }
  uint32_t region(uint32_t row) const noexcept { return (*this)[store::Target::Regions].renumber(row); }
  uint32_t api(uint32_t row) const noexcept { return (*this)[store::Target::Apis].renumber(row); }
  uint32_t graph_launch(uint32_t row) const noexcept { return (*this)[store::Target::GraphLaunches].renumber(row); }

 private:
  std::array<EvictedRows, store::kTargets> tables_;
};

/// Memory of the event rows, in bytes.
std::size_t event_bytes(const store::Store& store);

/// Sets `full` when full mode has reached its cap. Cheap enough for every few thousand rows.
void refuse_past_cap(DecodeState& state);

/// Keeps the rows within their memory cap: full and aggregate mode refuse further rows, ring mode evicts the oldest,
/// after which every row number kept outside the store must be renumbered by the returned Eviction.
std::optional<Eviction> keep_in_bounds(DecodeState& state);

}  // namespace gpuscope::attribution
