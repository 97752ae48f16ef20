// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/base/events.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

// Facts for switches of torch: "off" or "on" if the program changed them.
inline constexpr std::string_view kBackwardLinks = "torch.backward_links";  // arrows to backward operators
inline constexpr std::string_view kExternalIds = "torch.external_ids";      // External ids of driver calls and GPU work
inline constexpr std::string_view kAdjustedSteps = "torch.adjusted_steps";  // where steps begin in Chrome traces

/// The arrow number from each region to its backward operator, 0 for none. Counted from 1 in the order in which
/// backward operators began, as in torch.profiler. Empty if there are no arrows.
std::vector<uint32_t> number_backward_flows(const store::Store& store);

/// Adjusted starts of steps in Chrome traces, by region, if the program enabled that. If a Python function begins
/// inside a step and ends after it, the step is moved to begin inside the function, so that they nest.
std::unordered_map<uint32_t, int64_t> adjust_steps(const store::Store& store);

/// The relations between rows of a recording that no column contains: regions and their surrounding regions, calls and
/// their GPU work, GPU work and graph nodes. Reads the store during its lifetime. After construction: any thread.
class Links {
 public:
  explicit Links(const store::Store& store);

  // -- regions --------------------------------------------------------------------------------------------------------
  base::RegionKind kind(uint32_t region) const { return path_kind(store_.region.path[region]); }
  /// Unknown kinds read as regions.
  base::RegionKind path_kind(uint32_t path) const;

  /// The owner of work: the innermost operator at or around the region. Without one, the region.
  uint32_t owner(uint32_t region) const { return find(operators_, region, region); }
  /// The innermost annotation of the program or of a library at or around the region. kNone for none.
  uint32_t annotation(uint32_t region) const { return annotations_[region]; }
  /// The innermost region with payloads at or around the region. kNone for none.
  uint32_t payload_owner(uint32_t region) const {
    return region == store::kNone ? store::kNone : find(payload_owners_, region, store::kNone);
  }
  /// The innermost module around the region, without itself. kNone for none.
  uint32_t outer_module(uint32_t region) const;

  /// The region's row of `detail`. kNone for none.
  uint32_t detail(uint32_t region) const { return find(details_, region, store::kNone); }
  /// For the forward operator of a backward operator, the number of the arrow between them. Otherwise 0.
  uint32_t backward_flow(uint32_t region) const { return backward_flows_.empty() ? 0 : backward_flows_[region]; }
  /// Visits the region's rows of `payload`, in order.
  template <class F>
  void each_payload(uint32_t region, F&& visit) const {
    for (uint32_t row = find(first_payload_, region, store::kNone); row != store::kNone; row = next_payload_[row]) {
      visit(row);
    }
  }

  // -- calls and GPU work: the two ends of the arrows that viewers draw -----------------------------------------------
  /// The call's row of `stack`. kNone for none.
  uint32_t call_stack(uint32_t api) const { return find(call_stacks_, api, store::kNone); }
  /// Whether the recording has GPU work of the call.
  bool has_work(uint32_t api) const { return has_work_[api]; }
  /// Whether the recording has the call with this correlation.
  bool has_call(uint32_t correlation) const { return find_call(correlation) != store::kNone; }

  /// The work's row of `graph_node`. kNone for work outside graphs.
  uint32_t graph_node(store::Work work, uint32_t row) const {
    return find(nodes_[static_cast<std::size_t>(work)], row, store::kNone);
  }

 private:
  using Rows = std::vector<uint32_t>;  // empty if the recording has no such rows

  static uint32_t find(const Rows& rows, uint32_t row, uint32_t otherwise) {
    return rows.empty() || rows[row] == store::kNone ? otherwise : rows[row];
  }
  uint32_t find_call(uint32_t correlation) const {
    for (std::size_t at = correlation & mask_;; at = (at + 1) & mask_) {
      if (calls_[at].correlation == correlation || calls_[at].correlation == 0) {
        return calls_[at].correlation == 0 ? store::kNone : calls_[at].api;
      }
    }
  }
  void add_details();
  void add_payloads();
  void add_calls();
  void add_graph_nodes();

  struct CallSlot {
    uint32_t correlation;  // 0 is a free slot: no correlation is 0
    uint32_t api;
  };
  const store::Store& store_;
  Rows operators_, annotations_, payload_owners_, details_, first_payload_, next_payload_, call_stacks_;
  Rows nodes_[static_cast<std::size_t>(store::Work::GraphLaunch) + 1];
  Rows backward_flows_;
  std::vector<bool> has_work_;
  // A hash table with open addressing. Correlations increase, so their low bits fill the slots in order.
  std::vector<CallSlot> calls_;
  std::size_t mask_;
};

}  // namespace gpuscope::exporters
