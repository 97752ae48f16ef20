// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/salvage.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace gpuscope::store {

void RowsRead::add(uint32_t first, uint32_t rows) {
  if (rows == 0) {
    return;
  }
  if (!runs_.empty() && end() == first) {
    runs_.back().rows += rows;
  } else {
    runs_.push_back({first, rows, static_cast<uint32_t>(size())});
  }
}

uint32_t RowsRead::find(uint64_t number) const noexcept {
  const auto behind = std::ranges::upper_bound(runs_, number, {}, [](const Run& run) { return uint64_t{run.first}; });
  if (behind == runs_.begin()) {
    return kNone;
  }
  const Run& run = *std::prev(behind);
  return number - run.first < run.rows ? run.place + static_cast<uint32_t>(number - run.first) : kNone;
}

namespace {

class Rejoining {
 public:
  Rejoining(Store& store, const PartsRead& read) : store_(store), read_(read) {
    numbers_[static_cast<std::size_t>(Target::Strings)] = read.strings;
  }

  std::size_t run() {
    for (const Target next : table_order()) {  // each after the tables to which it refers
      store_.each_table([&](auto& table) {
        if (table.kInfo.target == next) {
          rejoin_table(table);
        }
      });
    }
    count_depths();
    forget_partial_histograms(store_.region_total);
    forget_partial_histograms(store_.work_total);
    return cut_;
  }

 private:
  /// The new number of a row or string of the file. kNone if it is lost.
  uint32_t find(Target target, uint64_t number) const {
    const auto index = static_cast<std::size_t>(target);
    const uint32_t place = read_.rows[index].find(number);
    return place < numbers_[index].size() ? numbers_[index][place] : kNone;
  }

  template <class Table>
  void rejoin_table(Table& table) {
    std::vector<bool> stays(table.size(), true);
    table.each_column([&](const ColumnInfo& info, auto& column) {
      if (info.meaning.target != Target::Nothing && info.meaning.target != Target::Histograms &&
          info.meaning.target != Table::kInfo.target) {
        renumber(table, info, column, stays);
      }
    });
    std::vector<uint32_t>& numbers = numbers_[static_cast<std::size_t>(Table::kInfo.target)];
    numbers.assign(table.size(), kNone);
    uint32_t kept = 0;
    for (std::size_t row = 0; row < numbers.size(); ++row) {
      numbers[row] = stays[row] ? kept++ : kNone;
    }
    table.each_column([&](const ColumnInfo& info, auto& column) {
      const bool is_own = info.meaning.target == Table::kInfo.target;
      for (std::size_t row = 0; row < numbers.size(); ++row) {
        if (stays[row]) {
          column[numbers[row]] = is_own ? own_reference(info, column[row]) : column[row];
        }
      }
    });
    table.truncate(kept);
  }

  template <class Table, class Column>
  void renumber(const Table& table, const ColumnInfo& info, Column& column, std::vector<bool>& stays) {
    using T = Column::value_type;
    for (std::size_t row = 0; row < column.size(); ++row) {
      const Target target = target_of(table, info, row);
      if ((info.meaning.optional && column[row] == static_cast<T>(kNone)) || target == Target::Nothing) {
        continue;
      }
      uint32_t number = find(target, static_cast<uint64_t>(column[row]));
      if (number == kNone && info.meaning.optional && !info.meaning.owner) {
        ++cut_;
      } else if (number == kNone && target == Target::Strings && Table::kInfo.role != Role::Info) {
        number = store_.strings.intern(kLostText);
      } else if (number == kNone) {
        stays[row] = false;
      }
      column[row] = static_cast<T>(number);
    }
  }

  /// Runs after all rows have numbers, as events may refer to later rows of their table.
  template <class T>
  T own_reference(const ColumnInfo& info, T value) {
    if (value == static_cast<T>(kNone)) {
      return value;
    }
    const uint32_t number = find(info.meaning.target, static_cast<uint64_t>(value));
    cut_ += number == kNone ? 1 : 0;
    return static_cast<T>(number);
  }

  void count_depths() {
    Paths& path = store_.path;
    for (std::size_t row = 0; row < path.size(); ++row) {
      path.depth[row] = path.parent[row] < row ? path.depth[path.parent[row]] + 1 : 0;
    }
  }

  template <class Totals>
  void forget_partial_histograms(Totals& totals) {
    std::unordered_map<uint32_t, uint64_t> counts;
    for (std::size_t row = 0; row < store_.histogram.size(); ++row) {
      counts[store_.histogram.histogram[row]] += store_.histogram.count[row];
    }
    for (std::size_t row = 0; row < totals.size(); ++row) {
      const auto found = counts.find(totals.histogram[row]);
      if (totals.histogram[row] != kNone && (found == counts.end() || found->second != totals.count[row])) {
        totals.histogram[row] = kNone;
        ++cut_;
      }
    }
  }

  Store& store_;
  const PartsRead& read_;
  std::array<std::vector<uint32_t>, kTargets> numbers_;  // the new number of each row read; kNone for dropped rows
  std::size_t cut_ = 0;
};

}  // namespace

std::size_t rejoin(Store& store, const PartsRead& read) { return Rejoining(store, read).run(); }

}  // namespace gpuscope::store
