// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/exporters/timeline.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// From GPU work to its row of graph_node.
class GraphNodes {
 public:
  explicit GraphNodes(const store::Store& store);

  /// kNone for work that was no node of a graph.
  uint32_t find(Source source, uint32_t row) const {
    const auto& nodes = source == Source::Kernel ? kernels_ : source == Source::Memcpy ? copies_ : fills_;
    return row < nodes.size() && source != Source::GraphLaunch ? nodes[row] : store::kNone;
  }

 private:
  std::vector<uint32_t> kernels_, copies_, fills_;  // empty where there are no graphs
};

}  // namespace gpuscope::exporters
