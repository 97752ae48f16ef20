// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "gpuscope/store/schema.h"

namespace gpuscope::store {

/// What the numbers of a column are row numbers of. Histograms: the id that rows of `histogram` share.
enum class Target : uint8_t {
  Nothing,
  Strings,
#define GPUSCOPE_TARGET(Type, table, LIST) Type,
  GPUSCOPE_TABLES(GPUSCOPE_TARGET)
#undef GPUSCOPE_TARGET
};

struct Reference {
  Target target = Target::Nothing;
  bool optional = false;  // kNone is accepted
};

/// Which column refers to which table. Two columns are not here, as another column of their row decides what they refer
/// to: graph_node.event and payload.value.
constexpr Reference reference_of(std::string_view table, std::string_view column) noexcept {
  struct Entry {
    std::string_view table;  // empty: any
    std::string_view column;
    Reference reference;
  };
  constexpr std::array kEntries = {
      Entry{"info", "key", {Target::Strings, false}},
      Entry{"info", "value", {Target::Strings, false}},
      Entry{"", "name", {Target::Strings, false}},
      Entry{"", "uuid", {Target::Strings, false}},
      Entry{"", "domain", {Target::Strings, false}},
      Entry{"", "function", {Target::Strings, false}},
      Entry{"", "file", {Target::Strings, false}},
      Entry{"", "shapes", {Target::Strings, true}},
      Entry{"", "types", {Target::Strings, true}},
      Entry{"", "results", {Target::Strings, true}},
      Entry{"device_memory", "library", {Target::Strings, true}},
      Entry{"", "variant", {Target::Variants, false}},
      Entry{"", "track", {Target::Tracks, false}},
      Entry{"", "thread", {Target::Threads, false}},
      Entry{"", "call", {Target::Calls, false}},
      Entry{"region", "path", {Target::Paths, false}},
      Entry{"", "path", {Target::Paths, true}},
      Entry{"", "region", {Target::Regions, true}},
      Entry{"", "forward", {Target::Regions, true}},
      Entry{"", "api", {Target::Apis, false}},
      Entry{"", "stack", {Target::Stacks, true}},
      Entry{"path", "parent", {Target::Paths, true}},
      Entry{"stack", "parent", {Target::Stacks, true}},
      Entry{"region", "parent", {Target::Regions, true}},
      Entry{"", "histogram", {Target::Histograms, true}},
  };
  for (const Entry& entry : kEntries) {
    if (entry.column == column && (entry.table.empty() || entry.table == table)) {
      return entry.reference;
    }
  }
  return {};
}

}  // namespace gpuscope::store
