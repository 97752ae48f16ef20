// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Which driver calls started GPU work that is in the recording, and which GPU work has its call there: the two ends of
/// the arrows that viewers draw.
class Launches {
 public:
  explicit Launches(const store::Store& store);

  bool has_work(uint32_t api_row) const { return has_work_[api_row]; }
  bool is_known(uint32_t correlation) const { return find(correlation) != store::kNone; }

 private:
  uint32_t find(uint32_t correlation) const {
    for (std::size_t at = correlation & mask_;; at = (at + 1) & mask_) {
      if (slots_[at].correlation == correlation || slots_[at].correlation == 0) {
        return slots_[at].correlation == 0 ? store::kNone : slots_[at].api_row;
      }
    }
  }
  void mark(const store::Column<uint32_t>& correlations);

  struct Slot {
    uint32_t correlation;  // 0 is a free slot, as it is no correlation
    uint32_t api_row;
  };
  // Correlations count up, so that taking their low bits as the hash fills the slots in order.
  std::vector<Slot> slots_;
  std::size_t mask_;
  std::vector<bool> has_work_;
};

}  // namespace gpuscope::exporters
