// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/base/strings.h"
#include "gpuscope/store/schema.h"

namespace gpuscope::store {

/// One recording: every table, and the strings of their ids. Written by one thread, then only read.
struct Store {
  // Not inline: every includer would compile them for a hundred tables.
  Store();
  Store(Store&& other) noexcept;
  Store& operator=(Store&& other) noexcept;
  ~Store();

#define GPUSCOPE_MEMBER(Type, table, ...) Type table;
  GPUSCOPE_TABLES(GPUSCOPE_MEMBER)
#undef GPUSCOPE_MEMBER
  base::StringTable strings;

  void set_info(std::string_view key, std::string_view value);
  /// Empty if the key is missing.
  std::string_view find_info(std::string_view key) const;

  /// For the bindings' Reading, with the GIL: number of readers without the GIL, and facts that wait for them.
  std::size_t readers = 0;
  std::vector<std::pair<std::string, std::string>> waiting;

  /// The number of rows or strings of a target. SIZE_MAX for other targets.
  std::size_t rows_of(Target target) const noexcept;

#define GPUSCOPE_VISIT(Type, table, ...) visit(table);
  template <class F>
  void each_table(F&& visit) {
    GPUSCOPE_TABLES(GPUSCOPE_VISIT)
  }
  template <class F>
  void each_table(F&& visit) const {
    GPUSCOPE_TABLES(GPUSCOPE_VISIT)
  }
#undef GPUSCOPE_VISIT
  /// Visits the table with that name. Throws InvalidArgument if there is none.
  template <class F>
  void with_table(std::string_view name, F&& visit) const {
    bool found = false;
    each_table([&](const auto& table) {
      if (table.kInfo.name == name) {
        visit(table);
        found = true;
      }
    });
    if (!found) {
      throw_unknown_table(name);
    }
  }
  /// Calls visit(table of one, table of the other).
  template <class Self, class F>
  static void each_pair(Self& one, const Store& other, F&& visit) {
#define GPUSCOPE_VISIT(Type, table, ...) visit(one.table, other.table);
    GPUSCOPE_TABLES(GPUSCOPE_VISIT)
#undef GPUSCOPE_VISIT
  }

 private:
  [[noreturn]] static void throw_unknown_table(std::string_view name);
};

/// All tables in file order: facts first, thread events before GPU events, and each after the tables to which it
/// refers. So a truncated file has no dangling references.
std::vector<Target> table_order();

/// Appends the contents of `from` to `to`: events row by row, totals summed by path, dictionaries without duplicates.
/// Both must be of one process, in which correlation ids and operator numbers are unique.
///
/// Facts: audit counters and the number of steps add up. Of costs per item ("audit.*_cost_ns", "_max_ns") the largest
/// stays. Notes are kept once each. The window reaches from the first start to the last end. For other facts, such as
/// the times of steps, the later value stays. Throws std::bad_alloc, and `to` is unusable afterwards.
void append(Store& to, const Store& from);

/// The first invalid value in a store, as a clause. Empty if all are valid.
///
/// Checks that every id and row number is in its table, that paths and regions have no cycles, and that times,
/// durations and sizes can be added.
std::string find_bad_reference(const Store& store);

}  // namespace gpuscope::store
