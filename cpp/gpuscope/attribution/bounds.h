// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpuscope/attribution/recording.h"

namespace gpuscope::attribution {

/// Where rows are after the ring let the oldest go; store::kNone for those that went.
struct Moved {
  uint32_t region(uint32_t row) const noexcept {
    if (row == store::kNone || row >= regions_gone) {
      return behind(row, regions_gone - static_cast<uint32_t>(regions_kept.size()));
    }
    const auto kept = std::lower_bound(regions_kept.begin(), regions_kept.end(), row);
    return kept != regions_kept.end() && *kept == row ? static_cast<uint32_t>(kept - regions_kept.begin())
                                                      : store::kNone;
  }
  uint32_t api(uint32_t row) const noexcept { return behind(row, apis_gone); }
  uint32_t graph_launch(uint32_t row) const noexcept { return behind(row, graph_launches_gone); }
  /// A row of the table that `kind` names.
  uint32_t event(store::Work kind, uint32_t row) const noexcept {
    return kind == store::Work::Kernel   ? behind(row, kernels_gone)
           : kind == store::Work::Memcpy ? behind(row, memcpys_gone)
           : kind == store::Work::Memset ? behind(row, memsets_gone)
                                         : row;
  }

  uint32_t kernels_gone = 0, memcpys_gone = 0, memsets_gone = 0, apis_gone = 0, graph_launches_gone = 0;
  uint32_t regions_gone = 0;           // the rows before this one, but for
  std::vector<uint32_t> regions_kept;  // these, in order, which come first now

 private:
  static uint32_t behind(uint32_t row, uint32_t gone) noexcept {
    return row != store::kNone && row >= gone ? row - gone : store::kNone;
  }
};

/// Memory of the event rows, in bytes.
std::size_t event_bytes(const store::Store& store);

/// Tells a full recording that the cap is reached. Cheap enough to ask every few thousand rows.
void refuse_past_cap(Recording& recording);

/// Keeps a recording within its memory: full and aggregate mode refuse further rows at the cap, ring mode lets the
/// oldest go. Then every row number that is kept outside the store has to follow.
std::optional<Moved> keep_in_bounds(Recording& recording);

}  // namespace gpuscope::attribution
