// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/base/event_log.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// What exporters ask of a region beyond its row: what else is known of it, and which of those around it matter.
class RegionLinks {
 public:
  explicit RegionLinks(const store::Store& store);

  base::RegionKind kind(uint32_t region) const { return path_kind(store_.region.path[region]); }
  /// Kinds that this version does not know read as regions.
  base::RegionKind path_kind(uint32_t path) const;

  /// Whose work it is: the innermost operator around the region, itself counted; without one, the region.
  uint32_t owner(uint32_t region) const { return find(operators_, region, region); }
  /// The innermost annotation of the program or of a library around it, itself counted; kNone for none.
  uint32_t annotation(uint32_t region) const { return annotations_[region]; }
  /// The innermost region around it, itself counted, that has payloads; kNone for none.
  uint32_t payload_owner(uint32_t region) const {
    return region == store::kNone ? store::kNone : find(payload_owners_, region, store::kNone);
  }
  /// The innermost module around it, itself not counted; kNone for none.
  uint32_t outer_module(uint32_t region) const;

  /// The region's row of `detail`; kNone for none.
  uint32_t detail(uint32_t region) const { return find(details_, region, store::kNone); }
  /// Whether it is the forward operator of some backward one.
  bool is_forward(uint32_t region) const { return !is_forward_.empty() && is_forward_[region]; }
  /// Visits the region's rows of `payload`, in their order.
  template <class F>
  void each_payload(uint32_t region, F&& visit) const {
    for (uint32_t row = find(first_payload_, region, store::kNone); row != store::kNone; row = next_payload_[row]) {
      visit(row);
    }
  }
  /// The call's row of `stack`; kNone for none.
  uint32_t call_stack(uint32_t api) const { return find(call_stacks_, api, store::kNone); }

 private:
  using Rows = std::vector<uint32_t>;  // empty where the recording has nothing of the sort

  static uint32_t find(const Rows& rows, uint32_t row, uint32_t otherwise) {
    return rows.empty() || rows[row] == store::kNone ? otherwise : rows[row];
  }
  void add_details();
  void add_payloads();

  const store::Store& store_;
  Rows operators_, annotations_, payload_owners_, details_, first_payload_, next_payload_, call_stacks_;
  std::vector<bool> is_forward_;
};

}  // namespace gpuscope::exporters
