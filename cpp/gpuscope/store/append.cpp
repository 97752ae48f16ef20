// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/append.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpuscope::store {

using namespace appending;

namespace {

/// Merges the bins of merged totals.
class Histogram {
 public:
  explicit Histogram(Histograms& table) : table_(table) {
    for (uint32_t row = 0; row < table.size(); ++row) {
      rows_.emplace(key(table.histogram[row], table.bin[row]), row);
      next_ = std::max(next_, table.histogram[row] + 1);
    }
  }
  /// The histogram of a merged total. `mine`: that of the existing total, none if it is new. `theirs`: the added one.
  uint32_t join(uint32_t mine, uint32_t theirs, bool is_new) {
    if (theirs == kNone || (mine == kNone && !is_new)) {
      return kNone;  // one of them has none
    }
    return joined_.emplace(theirs, is_new ? next_++ : mine).first->second;
  }
  void append(const Histograms& from) {
    for (std::size_t row = 0; row < from.size(); ++row) {
      const auto found = joined_.find(from.histogram[row]);
      if (found == joined_.end()) {
        continue;
      }
      const auto [at, is_new] = rows_.try_emplace(key(found->second, from.bin[row]), table_.size());
      if (is_new) {
        table_.append({found->second, from.bin[row], 0});
      }
      table_.count[at->second] += from.count[row];
    }
  }

 private:
  static uint64_t key(uint32_t histogram, uint32_t bin) { return uint64_t{histogram} << 32 | bin; }
  Histograms& table_;
  uint32_t next_ = 0;
  std::unordered_map<uint64_t, std::size_t> rows_;
  std::unordered_map<uint32_t, uint32_t> joined_;
};

/// Merges rows with the same subject, given by their 4-byte columns.
template <class Table>
void append_totals(Table& to, const Table& from, const Rows& rows, Histogram& histograms) {
  const auto subject = [](const ColumnInfo& info, const auto& value) {
    return sizeof value < sizeof(uint64_t) && info.meaning.target != Target::Histograms;
  };
  std::unordered_map<std::string, uint32_t> known;
  for (uint32_t row = 0; row < to.size(); ++row) {
    known.emplace(key_of(to, row, subject), row);
  }
  Table mapped;
  append_rows(mapped, from, rows);
  for (uint32_t row = 0; row < mapped.size(); ++row) {
    const auto [found, is_new] = known.try_emplace(key_of(mapped, row, subject), static_cast<uint32_t>(to.size()));
    const uint32_t at = found->second;
    if (is_new) {
      to.append(mapped[row]);
    }
    to.histogram[at] = histograms.join(to.histogram[at], mapped.histogram[row], is_new);
    if (is_new) {
      continue;
    }
    Table::each_pair(to, mapped, [&](const ColumnInfo& info, auto& target, const auto& source) {
      if (sizeof source[row] == sizeof(uint64_t)) {
        target[at] = info.meaning.merge == Merge::Minimum   ? std::min(target[at], source[row])
                     : info.meaning.merge == Merge::Maximum ? std::max(target[at], source[row])
                                                            : target[at] + source[row];
      }
    });
  }
}

}  // namespace

std::optional<int64_t> appending::number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

namespace {

bool has_line(std::string_view text, std::string_view wanted) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (text.substr(begin, end - begin) == wanted) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

/// The lines of both, without duplicates.
std::string lines_of(std::string_view first, std::string_view second) {
  std::string all(first);
  for (std::size_t begin = 0; begin < second.size();) {
    const std::size_t end = std::min(second.find('\n', begin), second.size());
    const std::string_view line = second.substr(begin, end - begin);
    if (!has_line(all, line)) {
      all.append(all.empty() || all.back() == '\n' ? "" : "\n").append(line);
    }
    begin = end + 1;
  }
  return all;
}

/// Facts that add up: counts, and times spent in each window.
bool is_sum(std::string_view key) {
  return key.starts_with("audit.") || key == "session.recorded_ns" || key == "session.steps";
}

/// Other audit facts keep the largest value: costs per item, and values measured once per process.
bool is_largest(std::string_view key) {
  constexpr std::array<std::string_view, 5> kEnds = {"_max_ns", "_longest_ns", "_cost_ns", "_interval_ns",
                                                     ".calibration_ns"};
  const auto is_end = [&](std::string_view end) { return key.ends_with(end); };
  return key == "session.stop_ns" || (key.starts_with("audit.") && std::ranges::any_of(kEnds, is_end));
}

std::string joined(std::string_view key, std::string_view before, std::string_view after) {
  if (key == "session.notes") {
    return lines_of(before, after);
  }
  const std::optional<int64_t> old_value = number(before);
  const std::optional<int64_t> new_value = number(after);
  if (old_value.has_value() && new_value.has_value()) {
    if (key == "session.start_ns") {
      return std::to_string(std::min(*old_value, *new_value));
    }
    if (is_largest(key)) {
      return std::to_string(std::max(*old_value, *new_value));
    }
    if (is_sum(key)) {
      return std::to_string(*old_value + *new_value);
    }
  }
  return std::string(after);
}

/// The recorded time: less than from start to end if there is a gap.
int64_t recorded_ns(const Store& store) {
  if (const std::optional<int64_t> known = number(store.find_info("session.recorded_ns"))) {
    return *known;
  }
  const std::optional<int64_t> start = number(store.find_info("session.start_ns"));
  const std::optional<int64_t> stop = number(store.find_info("session.stop_ns"));
  return start.has_value() && stop.has_value() ? *stop - *start : 0;
}

}  // namespace

void appending::append_info(Store& to, const Store& from) {
  const bool is_first = to.info.size() == 0;
  const int64_t in_all_ns = recorded_ns(to) + recorded_ns(from);
  for (std::size_t row = 0; row < from.info.size(); ++row) {
    const std::string_view key = from.strings[from.info.key[row]];
    const std::string_view after = from.strings[from.info.value[row]];
    const uint32_t known = to.strings.find(key);
    const bool is_known =
        known != UINT32_MAX && std::find(to.info.key.begin(), to.info.key.end(), known) != to.info.key.end();
    to.set_info(key, is_known ? joined(key, to.find_info(key), after) : std::string(after));
  }
  if (!is_first && in_all_ns > 0) {
    to.set_info("session.recorded_ns", std::to_string(in_all_ns));
  }
}

void append(Store& to, const Store& from) {
  Rows rows;
  for (uint32_t id = 0; id < from.strings.size(); ++id) {
    rows.add(Target::Strings, to.strings.intern(from.strings[id]));
  }
  Histogram histograms(to.histogram);
  to.each_table([&]<class Table>(const Table& table) { rows.move(Table::kInfo.target, table.size()); });
  rows.move(Target::Histograms, 0);  // joined with their totals
  Store::each_pair(to, from, [&]<class Table>(Table& target, const Table& source) {
    if constexpr (Table::kInfo.role == Role::Dictionary) {
      append_dictionary(target, source, rows);
    }
  });
  Store::each_pair(to, from, [&]<class Table>(Table& target, const Table& source) {
    if constexpr (Table::kInfo.role == Role::Event) {
      append_rows(target, source, rows);
    } else if constexpr (Table::kInfo.role == Role::Total) {
      append_totals(target, source, rows, histograms);
    }
  });
  histograms.append(from.histogram);
  append_info(to, from);
}

}  // namespace gpuscope::store
