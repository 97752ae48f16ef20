// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/references.h"

#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/store/histogram.h"
#include "gpuscope/store/references.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::Store;
using store::Work;

constexpr int64_t kLatest = int64_t{1} << 62;  // any two can be added

std::string describe(std::string_view table, std::string_view column, std::size_t row, int64_t value) {
  return "row " + std::to_string(row) + " of " + std::string(table) + " has " + std::string(column) + " " +
         std::to_string(value);
}

/// How many rows, or strings, there are to refer to.
std::size_t rows_of(const Store& store, store::Target target) {
  switch (target) {
#define GPUSCOPE_ROWS(Type, table, LIST) \
  case store::Target::Type:              \
    return store.table.size();
    GPUSCOPE_TABLES(GPUSCOPE_ROWS)
#undef GPUSCOPE_ROWS
    case store::Target::Strings:
      return store.strings.size();
    case store::Target::Nothing:
      break;
  }
  return SIZE_MAX;
}

std::string check_columns(const Store& store) {
  std::string found;
  store.each_table([&](const char* table, const auto& rows) {
    rows.each_column([&](std::string_view column, const auto& values) {
      if (!found.empty()) {
        return;
      }
      const store::Reference reference = store::reference_of(table, column);
      const std::size_t rows = rows_of(store, reference.target);
      const bool refers = reference.target != store::Target::Nothing && reference.target != store::Target::Histograms;
      const bool is_time = column == "start_ns" || column == "duration_ns";
      if (!refers && !is_time) {
        return;
      }
      for (std::size_t row = 0; row < values.size(); ++row) {
        const auto value = static_cast<int64_t>(values[row]);
        const bool good =
            is_time ? value >= 0 && value < kLatest
                    : static_cast<uint64_t>(value) < rows || (reference.optional && std::cmp_equal(value, kNone));
        if (!good) {
          found = describe(table, column, row, value);
          found += is_time ? ", which is no time" : ", of " + std::to_string(rows);
          return;
        }
      }
    });
  });
  return found;
}

std::string check_paths(const store::Paths& path) {
  for (std::size_t row = 0; row < path.size(); ++row) {
    const uint32_t parent = path.parent[row];
    if (parent != kNone && parent >= row) {
      return describe("path", "parent", row, parent) + ", which does not stand before it";
    }
    if (path.depth[row] != (parent == kNone ? 0 : path.depth[parent] + 1)) {
      return describe("path", "depth", row, path.depth[row]) + ", which is not one more than its parent's";
    }
  }
  return {};
}

std::string check_stacks(const store::Stacks& stack) {
  for (std::size_t row = 0; row < stack.size(); ++row) {
    if (stack.parent[row] != kNone && stack.parent[row] >= row) {
      return describe("stack", "parent", row, stack.parent[row]) + ", which does not stand before it";
    }
  }
  return {};
}

// Regions may stand before their parents (they can be logged at their end), so a cycle has to be looked for.
std::string check_region_cycles(const store::Regions& region) {
  enum : uint8_t { kNew, kOnWay, kDone };
  std::vector<uint8_t> state(region.size(), kNew);
  for (std::size_t row = 0; row < region.size(); ++row) {
    std::size_t at = row;
    for (; at != kNone && state[at] == kNew; at = region.parent[at]) {
      state[at] = kOnWay;
    }
    if (at != kNone && state[at] == kOnWay) {
      return describe("region", "parent", at, region.parent[at]) + ", which it is an ancestor of";
    }
    for (at = row; at != kNone && state[at] == kOnWay; at = region.parent[at]) {
      state[at] = kDone;
    }
  }
  return {};
}

std::string check_graph_nodes(const Store& store) {
  for (std::size_t row = 0; row < store.graph_node.size(); ++row) {
    std::size_t rows = 0;
    switch (static_cast<Work>(store.graph_node.kind[row])) {
      case Work::Kernel:
        rows = store.kernel.size();
        break;
      case Work::Memcpy:
        rows = store.memcpy.size();
        break;
      case Work::Memset:
        rows = store.memset.size();
        break;
      default:
        return describe("graph_node", "kind", row, store.graph_node.kind[row]) + ", which is no work of a graph";
    }
    if (store.graph_node.event[row] >= rows) {
      return describe("graph_node", "event", row, store.graph_node.event[row]) + ", of " + std::to_string(rows);
    }
  }
  return {};
}

std::string check_bins(const store::Histograms& histogram) {
  constexpr uint32_t kLastBin = store::histogram_bin(INT64_MAX);
  for (std::size_t row = 0; row < histogram.size(); ++row) {
    if (histogram.bin[row] > kLastBin) {
      return describe("histogram", "bin", row, histogram.bin[row]) + ", of " + std::to_string(kLastBin + 1);
    }
  }
  return {};
}

}  // namespace

std::string find_bad_reference(const Store& store) {
  std::string found = check_columns(store);
  for (const auto& check :
       {+[](const Store& s) { return check_paths(s.path); }, +[](const Store& s) { return check_stacks(s.stack); },
        +[](const Store& s) { return check_region_cycles(s.region); }, +check_graph_nodes,
        +[](const Store& s) { return check_bins(s.histogram); }}) {
    if (!found.empty()) {
      break;
    }
    found = check(store);
  }
  return found;
}

}  // namespace gpuscope::exporters
