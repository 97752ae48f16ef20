// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/launches.h"

#include <bit>

namespace gpuscope::exporters {

Launches::Launches(const store::Store& store)
    : slots_(std::bit_ceil(store.api.size() * 2 + 2)), mask_(slots_.size() - 1), has_work_(store.api.size()) {
  for (std::size_t row = 0; row < store.api.size(); ++row) {
    const uint32_t correlation = store.api.correlation[row];
    if (correlation == 0) {
      continue;
    }
    std::size_t at = correlation & mask_;
    while (slots_[at].correlation != 0 && slots_[at].correlation != correlation) {
      at = (at + 1) & mask_;
    }
    if (slots_[at].correlation == 0) {
      slots_[at] = {correlation, static_cast<uint32_t>(row)};
    }
  }
  mark(store.kernel.correlation);
  mark(store.memcpy.correlation);
  mark(store.memset.correlation);
  mark(store.graph_launch.correlation);
}

void Launches::mark(const store::Column<uint32_t>& correlations) {
  for (const uint32_t correlation : correlations) {
    if (const uint32_t row = find(correlation); row != store::kNone) {
      has_work_[row] = true;
    }
  }
}

}  // namespace gpuscope::exporters
