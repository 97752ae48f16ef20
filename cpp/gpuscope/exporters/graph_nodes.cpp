// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/graph_nodes.h"

namespace gpuscope::exporters {

GraphNodes::GraphNodes(const store::Store& store) {
  if (store.graph_node.size() == 0) {
    return;
  }
  kernels_.assign(store.kernel.size(), store::kNone);
  copies_.assign(store.memcpy.size(), store::kNone);
  fills_.assign(store.memset.size(), store::kNone);
  for (std::size_t row = 0; row < store.graph_node.size(); ++row) {
    const auto kind = static_cast<store::Work>(store.graph_node.kind[row]);
    auto& nodes = kind == store::Work::Kernel ? kernels_ : kind == store::Work::Memcpy ? copies_ : fills_;
    nodes[store.graph_node.event[row]] = static_cast<uint32_t>(row);
  }
}

}  // namespace gpuscope::exporters
