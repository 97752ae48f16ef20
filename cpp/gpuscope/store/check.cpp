// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::store {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 62;  // the sum of two fits

std::string describe(const TableInfo& table, std::string_view column, std::size_t row, int64_t value) {
  return "row " + std::to_string(row) + " of " + std::string(table.name) + " has " + std::string(column) + " " +
         std::to_string(value);
}

/// Times, durations and amounts: no reader's sum may overflow.
class Quantities {
 public:
  template <class Column>
  std::string check(const TableInfo& table, const ColumnInfo& info, const Column& values) {
    const Quantity quantity = info.meaning.quantity;
    if (quantity == Quantity::Number) {
      return {};
    }
    constexpr bool kIsSigned = std::is_signed_v<typename Column::value_type>;
    // Sums of unsigned numbers are defined, and may be larger: the bytes that a long run copied.
    const bool adds = quantity == Quantity::Duration || (quantity == Quantity::Amount && kIsSigned);
    uint64_t amount = 0;
    uint64_t& sum = quantity == Quantity::Duration ? in_all_ns_ : amount;
    for (std::size_t row = 0; row < values.size(); ++row) {
      const auto value = static_cast<int64_t>(values[row]);
      const bool is_negative = kIsSigned && value < 0;
      const uint64_t size = is_negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
      if (size >= kMost || (is_negative && quantity != Quantity::Amount)) {
        return describe(table, info.name, row, value) + ", which is no " +
               (quantity == Quantity::Amount ? "size" : "time");
      }
      sum += adds ? size : 0;
      if (sum >= kMost) {
        return describe(table, info.name, row, value) + ", which with those before it is more than can be added";
      }
    }
    return {};
  }

 private:
  uint64_t in_all_ns_ = 0;
};

template <class Column>
std::string check_ids(const TableInfo& table, const ColumnInfo& info, const Column& values, std::size_t rows) {
  for (std::size_t row = 0; row < values.size(); ++row) {
    const auto value = static_cast<uint64_t>(values[row]);
    if (value >= rows && (!info.meaning.optional || value != kNone)) {
      return describe(table, info.name, row, static_cast<int64_t>(value)) + ", of " + std::to_string(rows);
    }
  }
  return {};
}

template <class Table, class Column>
std::string check_events(const Store& store, const Table& table, const ColumnInfo& info, const Column& values) {
  for (std::size_t row = 0; row < values.size(); ++row) {
    const Target target = target_of(table, info, row);
    if constexpr (requires { table.kind; }) {
      if (target == Target::Nothing) {
        return describe(table.kInfo, "kind", row, table.kind[row]) + ", which is no work of a graph";
      }
    }
    const auto value = static_cast<uint64_t>(values[row]);
    if (const std::size_t rows = store.rows_of(target); value >= rows) {
      return describe(table.kInfo, info.name, row, static_cast<int64_t>(value)) + ", of " + std::to_string(rows);
    }
  }
  return {};
}

/// Dictionary rows refer to earlier rows.
template <class Column>
std::string check_backward(const TableInfo& table, const ColumnInfo& info, const Column& values) {
  for (std::size_t row = 0; row < values.size(); ++row) {
    const auto other = static_cast<std::size_t>(values[row]);
    if (other != kNone && other >= row) {
      return describe(table, info.name, row, static_cast<int64_t>(other)) + ", which does not stand before it";
    }
  }
  return {};
}

/// Regions may precede their parents (some are logged at their end), so cycles must be searched.
template <class Column>
std::string check_cycles(const TableInfo& table, const ColumnInfo& info, const Column& values) {
  enum : uint8_t { kNew, kVisiting, kDone };
  std::vector<uint8_t> state(values.size(), kNew);
  for (std::size_t row = 0; row < values.size(); ++row) {
    std::size_t at = row;
    for (; at != kNone && state[at] == kNew; at = static_cast<std::size_t>(values[at])) {
      state[at] = kVisiting;
    }
    if (at != kNone && state[at] == kVisiting) {
      return describe(table, info.name, at, static_cast<int64_t>(values[at])) + ", which it is an ancestor of";
    }
    for (at = row; at != kNone && state[at] == kVisiting; at = static_cast<std::size_t>(values[at])) {
      state[at] = kDone;
    }
  }
  return {};
}

template <class Table, class Column>
std::string check_column(const Store& store, const Table& table, const ColumnInfo& info, const Column& values,
                         Quantities& quantities) {
  switch (info.meaning.target) {
    case Target::Nothing:
      return quantities.check(table.kInfo, info, values);
    case Target::Histograms:
    case Target::ValueOfType:  // readers validate the text themselves
      return {};
    case Target::EventOfKind:
      return check_events(store, table, info, values);
    default:
      break;
  }
  std::string found = check_ids(table.kInfo, info, values, store.rows_of(info.meaning.target));
  if (found.empty() && info.meaning.target == table.kInfo.target) {
    found = table.kInfo.role == Role::Dictionary ? check_backward(table.kInfo, info, values)
                                                 : check_cycles(table.kInfo, info, values);
  }
  return found;
}

std::string check_depths(const Paths& path) {
  for (std::size_t row = 0; row < path.size(); ++row) {
    const uint32_t parent = path.parent[row];
    if (path.depth[row] != (parent == kNone ? 0 : path.depth[parent] + 1)) {
      return describe(Paths::kInfo, "depth", row, path.depth[row]) + ", which is not one more than its parent's";
    }
  }
  return {};
}

std::string check_bins(const Histograms& histogram) {
  constexpr uint32_t kLastBin = histogram_bin(INT64_MAX);
  for (std::size_t row = 0; row < histogram.size(); ++row) {
    if (histogram.bin[row] > kLastBin) {
      return describe(Histograms::kInfo, "bin", row, histogram.bin[row]) + ", of " + std::to_string(kLastBin + 1);
    }
  }
  return {};
}

}  // namespace

std::string find_bad_reference(const Store& store) {
  std::string found;
  Quantities quantities;
  store.each_table([&](const auto& table) {
    table.each_column([&](const ColumnInfo& info, const auto& values) {
      if (found.empty()) {
        found = check_column(store, table, info, values, quantities);
      }
    });
  });
  if (found.empty()) {
    found = check_depths(store.path);
  }
  return found.empty() ? check_bins(store.histogram) : found;
}

}  // namespace gpuscope::store
