// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpuscope/attribution/decode_state.h"

namespace gpuscope::attribution {

/// The new row numbers after the ring evicted its oldest rows; store::kNone for evicted ones.
struct Eviction {
  uint32_t region(uint32_t row) const noexcept {
    if (row == store::kNone || row >= regions_evicted) {
      return behind(row, regions_evicted - static_cast<uint32_t>(regions_kept.size()));
    }
    const auto kept = std::lower_bound(regions_kept.begin(), regions_kept.end(), row);
    return kept != regions_kept.end() && *kept == row ? static_cast<uint32_t>(kept - regions_kept.begin())
                                                      : store::kNone;
  }
  uint32_t api(uint32_t row) const noexcept { return behind(row, apis_evicted); }
  uint32_t graph_launch(uint32_t row) const noexcept { return behind(row, graph_launches_evicted); }
  /// A row of the table that `kind` names.
  uint32_t event(store::Work kind, uint32_t row) const noexcept {
    return kind == store::Work::Kernel   ? behind(row, kernels_evicted)
           : kind == store::Work::Memcpy ? behind(row, memcpys_evicted)
           : kind == store::Work::Memset ? behind(row, memsets_evicted)
                                         : row;
  }

  uint32_t kernels_evicted = 0, memcpys_evicted = 0, memsets_evicted = 0, apis_evicted = 0, graph_launches_evicted = 0;
  uint32_t regions_evicted = 0;        // the rows before this one, but for
  std::vector<uint32_t> regions_kept;  // these, in order, which come first now

 private:
  static uint32_t behind(uint32_t row, uint32_t gone) noexcept {
    return row != store::kNone && row >= gone ? row - gone : store::kNone;
  }
};

/// Memory of the event rows, in bytes.
std::size_t event_bytes(const store::Store& store);

/// Sets `full` when full mode has reached its cap. Cheap enough for every few thousand rows.
void refuse_past_cap(DecodeState& state);

/// Keeps the rows within their memory cap: full and aggregate mode refuse further rows, ring mode evicts the oldest,
/// after which every row number kept outside the store must be renumbered by the returned Eviction.
std::optional<Eviction> keep_in_bounds(DecodeState& state);

}  // namespace gpuscope::attribution
