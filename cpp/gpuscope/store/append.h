// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/store/store.h"

/// The parts of appending one store to another. Only for this room.
namespace gpuscope::store::appending {

/// Whether 2-byte columns refer to a table. The last row in their range then stands for all rows without room.
constexpr bool is_narrow(Target target) noexcept {
  return std::ranges::any_of(kTables, [&](const TableInfo& table) {
    return std::ranges::any_of(table.columns, [&](const ColumnInfo& column) {
      return column.meaning.target == target && column.bytes == sizeof(uint16_t);
    });
  });
}
constexpr std::size_t kMaxNarrow = std::size_t{UINT16_MAX} + 1;

// Dictionaries are appended in list order, so they refer to no later one.
static_assert(std::ranges::none_of(kTables, [](const TableInfo& table) {
  return table.role == Role::Dictionary && std::ranges::any_of(table.columns, [&](const ColumnInfo& column) {
           return std::ranges::any_of(kTables, [&](const TableInfo& other) {
             return other.target == column.meaning.target &&
                    (other.role != Role::Dictionary || other.target > table.target);
           });
         });
}));

/// Maps row numbers of one store to the other.
class Rows {
 public:
  uint64_t operator()(Target target, uint64_t row) const {
    const auto index = static_cast<std::size_t>(target);
    if (target == Target::Nothing || row == kNone) {
      return row;
    }
    return row < known_[index].size() ? known_[index][row] : row + moved_[index];
  }
  /// All rows of an event table move by the same amount.
  void move(Target target, std::size_t by) { moved_[static_cast<std::size_t>(target)] = by; }
  void add(Target target, uint32_t row) { known_[static_cast<std::size_t>(target)].push_back(row); }

 private:
  std::array<std::vector<uint32_t>, kTargets> known_;
  std::array<uint64_t, kTargets> moved_{};
};

/// Adds the rows of `from`, renumbered for `to`.
template <class Table>
void append_rows(Table& to, const Table& from, const Rows& rows) {
  Table::each_pair(to, from, [&](const ColumnInfo& info, auto& target, const auto& source) {
    using T = std::remove_cvref_t<decltype(source)>::value_type;
    if (info.meaning.target == Target::Nothing) {
      target.append(source.span());
      return;
    }
    for (std::size_t row = 0; row < source.size(); ++row) {
      target.push_back(static_cast<T>(rows(target_of(from, info, row), static_cast<uint64_t>(source[row]))));
    }
  });
}

/// A lookup key: the bytes of the columns of a row that `takes` accepts.
template <class Table, class F>
std::string key_of(const Table& table, std::size_t row, F&& takes) {
  std::string key;
  table.each_column([&](const ColumnInfo& info, const auto& column) {
    if (takes(info, column[row])) {
      key.append(reinterpret_cast<const char*>(&column[row]), sizeof column[row]);
    }
  });
  return key;
}

/// Rows refer to earlier rows of the same table, or to dictionaries that were appended before.
template <class Table>
void append_dictionary(Table& to, const Table& from, Rows& rows) {
  const auto whole = [](const ColumnInfo&, const auto&) { return true; };
  std::unordered_map<std::string, uint32_t> known;
  for (uint32_t row = 0; row < to.size(); ++row) {
    known.emplace(key_of(to, row, whole), row);
  }
  for (std::size_t row = 0; row < from.size(); ++row) {
    const auto next = static_cast<uint32_t>(to.size());
    Table::each_pair(to, from, [&](const ColumnInfo& info, auto& target, const auto& source) {
      using T = std::remove_cvref_t<decltype(source)>::value_type;
      target.push_back(static_cast<T>(rows(info.meaning.target, static_cast<uint64_t>(source[row]))));
    });
    uint32_t at = known.try_emplace(key_of(to, next, whole), next).first->second;
    if (at == next && is_narrow(Table::kInfo.target) && next >= kMaxNarrow) {
      at = static_cast<uint32_t>(kMaxNarrow - 1);
    }
    if (at != next) {
      to.truncate(next);
    }
    rows.add(Table::kInfo.target, at);
  }
}

/// The number in a text. None for other texts.
std::optional<int64_t> number(std::string_view text);

/// Counts add up, notes are kept once each, and for other facts the later value stays.
void append_info(Store& to, const Store& from);

}  // namespace gpuscope::store::appending
