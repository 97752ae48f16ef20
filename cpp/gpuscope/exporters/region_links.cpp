// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/region_links.h"

#include <algorithm>

namespace gpuscope::exporters {
namespace {

using base::RegionKind;
using store::kNone;

/// For each region the innermost one around it, itself counted, that `matches`; each is looked at once.
template <class F>
std::vector<uint32_t> find_innermost(const store::Regions& region, F&& matches) {
  constexpr uint32_t kUnknown = kNone - 1;
  std::vector<uint32_t> found(region.size(), kUnknown);
  std::vector<uint32_t> way;
  for (uint32_t row = 0; row < region.size(); ++row) {
    uint32_t at = row;
    while (at != kNone && found[at] == kUnknown && !matches(at)) {
      way.push_back(at);
      at = region.parent[at];
    }
    const uint32_t result = at == kNone || found[at] == kUnknown ? at : found[at];
    if (at != kNone) {
      found[at] = result;
    }
    for (; !way.empty(); way.pop_back()) {
      found[way.back()] = result;
    }
  }
  return found;
}

}  // namespace

RegionLinks::RegionLinks(const store::Store& store) : store_(store) {
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
  if (store.call_stack.size() != 0) {
    call_stacks_.assign(store.api.size(), kNone);
    for (std::size_t row = 0; row < store.call_stack.size(); ++row) {
      call_stacks_[store.call_stack.api[row]] = store.call_stack.stack[row];
    }
  }
}

RegionKind RegionLinks::path_kind(uint32_t path) const {
  const uint32_t kind = store_.path.kind[path];
  return kind <= static_cast<uint32_t>(RegionKind::Module) ? RegionKind{static_cast<uint8_t>(kind)}
                                                           : RegionKind::Region;
}

uint32_t RegionLinks::outer_module(uint32_t region) const {
  do {
    region = store_.region.parent[region];
  } while (region != kNone && kind(region) != RegionKind::Module);
  return region;
}

void RegionLinks::add_details() {
  if (store_.detail.size() == 0) {
    return;
  }
  details_.assign(store_.region.size(), kNone);
  is_forward_.assign(store_.region.size(), false);
  for (uint32_t row = 0; row < store_.detail.size(); ++row) {
    if (store_.detail.region[row] != kNone) {
      details_[store_.detail.region[row]] = row;
    }
    if (store_.detail.forward[row] != kNone) {
      is_forward_[store_.detail.forward[row]] = true;
    }
  }
}

void RegionLinks::add_payloads() {
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
  payload_owners_ = find_innermost(store_.region, [&](uint32_t row) { return first_payload_[row] != kNone; });
}

}  // namespace gpuscope::exporters
