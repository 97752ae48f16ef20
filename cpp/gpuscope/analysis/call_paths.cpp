// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/call_paths.h"

#include <unordered_map>

namespace gpuscope::analysis {

std::vector<bool> CallPaths::outermost() const {
  const auto count = static_cast<uint32_t>(size());
  std::vector<uint32_t> first_child(count, store::kNone);
  std::vector<uint32_t> next_sibling(count, store::kNone);
  uint32_t first_root = store::kNone;
  for (uint32_t path = count; path-- > 0;) {
    uint32_t& first = parent(path) == store::kNone ? first_root : first_child[parent(path)];
    next_sibling[path] = first;
    first = path;
  }

  // Depth first, counting the open regions of each name: linear, however deep a recursion goes.
  std::vector<bool> result(count);
  std::unordered_map<uint64_t, uint32_t> open;
  const auto key = [&](uint32_t path) { return uint64_t{kind(path)} << 32 | name(path); };
  for (uint32_t path = first_root; path != store::kNone;) {
    result[path] = open[key(path)]++ == 0;
    if (first_child[path] != store::kNone) {
      path = first_child[path];
      continue;
    }
    while (path != store::kNone) {
      --open[key(path)];
      if (next_sibling[path] != store::kNone) {
        path = next_sibling[path];
        break;
      }
      path = parent(path);
    }
  }
  return result;
}

}  // namespace gpuscope::analysis
