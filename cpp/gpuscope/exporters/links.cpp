// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/links.h"

#include <algorithm>
#include <bit>

namespace gpuscope::exporters {
namespace {

using base::RegionKind;
using store::kNone;

/// For each region, itself or the innermost region around it that `matches`. Visits each region once.
template <class F>
std::vector<uint32_t> find_innermost(const store::Regions& region, F&& matches) {
  constexpr uint32_t kUnknown = kNone - 1;
  std::vector<uint32_t> found(region.size(), kUnknown);
  std::vector<uint32_t> passed;
  for (uint32_t row = 0; row < region.size(); ++row) {
    uint32_t at = row;
    while (at != kNone && found[at] == kUnknown && !matches(at)) {
      passed.push_back(at);
      at = region.parent[at];
    }
    const uint32_t result = at == kNone || found[at] == kUnknown ? at : found[at];
    if (at != kNone) {
      found[at] = result;
    }
    for (; !passed.empty(); passed.pop_back()) {
      found[passed.back()] = result;
    }
  }
  return found;
}

}  // namespace

std::vector<uint32_t> number_backward_flows(const store::Store& store) {
  const store::Details& detail = store.detail;
  std::vector<uint32_t> linked;
  for (uint32_t row = 0; row < detail.size(); ++row) {
    if (detail.forward[row] != kNone && detail.region[row] != kNone) {
      linked.push_back(row);
    }
  }
  if (linked.empty() || store.find_info(kBackwardLinks) == "off") {
    return {};
  }
  std::ranges::stable_sort(linked, {}, [&](uint32_t row) { return store.region.start_ns[detail.region[row]]; });
  std::vector<uint32_t> flows(store.region.size());
  uint32_t last = 0;
  for (const uint32_t row : linked) {
    uint32_t& flow = flows[detail.forward[row]];
    flow = flow != 0 ? flow : ++last;
  }
  return flows;
}

std::unordered_map<uint32_t, int64_t> adjust_steps(const store::Store& store) {
  std::unordered_map<uint32_t, int64_t> starts;
  if (store.find_info(kAdjustedSteps).empty()) {
    return starts;
  }
  const auto& functions = store.python_function;
  for (uint32_t region = 0; region < store.region.size(); ++region) {
    const auto step = store.region[region];
    if (!std::string_view(store.strings[store.path.name[step.path]]).starts_with(store::kStepPrefix)) {
      continue;
    }
    const int64_t end_ns = step.start_ns + step.duration_ns;
    int64_t first_ns = end_ns;
    for (uint32_t row = 0; row < functions.size(); ++row) {
      const int64_t start_ns = functions.start_ns[row];
      if (start_ns > step.start_ns && start_ns < first_ns && start_ns + functions.duration_ns[row] > end_ns &&
          functions.thread[row] == step.thread) {
        first_ns = start_ns;
      }
    }
    if (first_ns < end_ns) {
      starts[region] = first_ns + 1;
    }
  }
  return starts;
}

Links::Links(const store::Store& store)
    : store_(store),
      backward_flows_(number_backward_flows(store)),
      has_work_(store.api.size()),
      calls_(std::bit_ceil(store.api.size() * 2 + 2)),
      mask_(calls_.size() - 1) {
  const auto& kinds = store.path.kind;
  if (std::find(kinds.begin(), kinds.end(), static_cast<uint32_t>(RegionKind::Op)) != kinds.end()) {
    operators_ = find_innermost(store.region, [&](uint32_t row) { return kind(row) == RegionKind::Op; });
  }
  annotations_ = find_innermost(store.region, [&](uint32_t row) {
    return (kind(row) == RegionKind::Region || kind(row) == RegionKind::Range) &&
           (store.region.flags[row] & store::kAsync) == 0;
  });
  add_details();
  add_payloads();
  add_calls();
  add_graph_nodes();
}

RegionKind Links::path_kind(uint32_t path) const {
  const uint32_t kind = store_.path.kind[path];
  return kind <= static_cast<uint32_t>(RegionKind::Module) ? RegionKind{static_cast<uint8_t>(kind)}
                                                           : RegionKind::Region;
}

uint32_t Links::outer_module(uint32_t region) const {
  do {
    region = store_.region.parent[region];
  } while (region != kNone && kind(region) != RegionKind::Module);
  return region;
}

void Links::add_details() {
  if (store_.detail.size() == 0) {
    return;
  }
  details_.assign(store_.region.size(), kNone);
  for (uint32_t row = 0; row < store_.detail.size(); ++row) {
    if (store_.detail.region[row] != kNone) {
      details_[store_.detail.region[row]] = row;
    }
  }
}

void Links::add_payloads() {
  const auto rows = static_cast<uint32_t>(store_.payload.size());
  if (rows == 0) {
    return;
  }
  first_payload_.assign(store_.region.size(), kNone);
  next_payload_.assign(rows, kNone);
  for (uint32_t row = rows; row-- > 0;) {
    if (const uint32_t region = store_.payload.region[row]; region != kNone) {
      next_payload_[row] = first_payload_[region];
      first_payload_[region] = row;
    }
  }
  payload_owners_ = find_innermost(
      store_.region, [&](uint32_t row) { return first_payload_[row] != kNone && kind(row) != store::RegionKind::Op; });
}

void Links::add_calls() {
  if (store_.call_stack.size() != 0) {
    call_stacks_.assign(store_.api.size(), kNone);
    for (std::size_t row = 0; row < store_.call_stack.size(); ++row) {
      call_stacks_[store_.call_stack.api[row]] = store_.call_stack.stack[row];
    }
  }
  for (std::size_t row = 0; row < store_.api.size(); ++row) {
    const uint32_t correlation = store_.api.correlation[row];
    if (correlation == 0) {
      continue;
    }
    std::size_t at = correlation & mask_;
    while (calls_[at].correlation != 0 && calls_[at].correlation != correlation) {
      at = (at + 1) & mask_;
    }
    if (calls_[at].correlation == 0) {
      calls_[at] = {correlation, static_cast<uint32_t>(row)};
    }
  }
  for (const auto* correlations : {&store_.kernel.correlation, &store_.memcpy.correlation, &store_.memset.correlation,
                                   &store_.graph_launch.correlation}) {
    for (const uint32_t correlation : *correlations) {
      if (const uint32_t api = find_call(correlation); api != kNone) {
        has_work_[api] = true;
      }
    }
  }
}

void Links::add_graph_nodes() {
  if (store_.graph_node.size() == 0) {
    return;
  }
  Rows& kernels = nodes_[static_cast<std::size_t>(store::Work::Kernel)];
  Rows& copies = nodes_[static_cast<std::size_t>(store::Work::Memcpy)];
  Rows& fills = nodes_[static_cast<std::size_t>(store::Work::Memset)];
  kernels.assign(store_.kernel.size(), kNone);
  copies.assign(store_.memcpy.size(), kNone);
  fills.assign(store_.memset.size(), kNone);
  for (std::size_t row = 0; row < store_.graph_node.size(); ++row) {
    const auto work = static_cast<store::Work>(store_.graph_node.kind[row]);
    Rows& nodes = work == store::Work::Kernel ? kernels : work == store::Work::Memcpy ? copies : fills;
    nodes[store_.graph_node.event[row]] = static_cast<uint32_t>(row);
  }
}

}  // namespace gpuscope::exporters
