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

/// One recording: every table, and the strings their ids name. Written by one thread, then only read.
struct Store {
  // Not inline: they are of a hundred tables, and whoever has a store would compile them again.
  Store();
  Store(Store&& other) noexcept;
  Store& operator=(Store&& other) noexcept;
  ~Store();

#define GPUSCOPE_MEMBER(Type, table, ...) Type table;
  GPUSCOPE_TABLES(GPUSCOPE_MEMBER)
#undef GPUSCOPE_MEMBER
  base::StringTable strings;

  void set_info(std::string_view key, std::string_view value);
  /// Empty when the key is not there.
  std::string_view find_info(std::string_view key) const;

  /// For the bindings' Reading, under the GIL: threads that read this without it, and facts that wait for their end.
  std::size_t readers = 0;
  std::vector<std::pair<std::string, std::string>> waiting;

  /// How many rows, or strings, there are to refer to; SIZE_MAX where a target is neither.
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
  /// Visits the table of that name. Throws InvalidArgument where there is none.
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
  /// visit(table of one, table of the other)
  template <class Self, class F>
  static void each_pair(Self& one, const Store& other, F&& visit) {
#define GPUSCOPE_VISIT(Type, table, ...) visit(one.table, other.table);
    GPUSCOPE_TABLES(GPUSCOPE_VISIT)
#undef GPUSCOPE_VISIT
  }

 private:
  [[noreturn]] static void throw_unknown_table(std::string_view name);
};

/// Every table: facts first, what threads did before what the GPU did, and each after those it refers to, so that a
/// file cut anywhere has no loose ends.
std::vector<Target> table_order();

/// Adds all that `from` holds behind what `to` holds: events row by row, totals summed path by path, dictionaries
/// without doubles. Both are of one process, whose correlation ids and operators' numbers are unique.
///
/// Facts: counters of the audit and the number of steps add up, but of what one of something takes ("audit.*_cost_ns",
/// "_max_ns") the largest holds; notes stand once each, the window reaches from the first's start to the last's end,
/// and of other facts the later one holds, as of the moments of steps. Throws std::bad_alloc, and then `to` is of no
/// more use.
void append(Store& to, const Store& from);

/// The first value in a store that is not valid, as a clause; empty when there is none.
///
/// Checked: every id and row number lies in its table, paths and regions have no cycles, and times, durations and sizes
/// can be added.
std::string find_bad_reference(const Store& store);

}  // namespace gpuscope::store
