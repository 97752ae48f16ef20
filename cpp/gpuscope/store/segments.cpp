// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/segments.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/append.h"

namespace gpuscope::store {

using namespace appending;

namespace {

/// Work of one segment may be reported in the next, so segments have these as differences, which may be negative.
constexpr std::string_view kDifferences[] = {"audit.missing", "audit.copies_without_record"};

/// Event tables whose rows belong to rows of another table.
template <class Table>
concept Owned = Table::kInfo.role == Role::Event && !Timed<Table>;
/// Those with at most one row for each owner, in the owners' order.
template <class Table>
concept OnePerOwner =
    std::is_same_v<Table, Details> || std::is_same_v<Table, Resumptions> || std::is_same_v<Table, CallStacks>;
/// Tables whose rows contain other rows, and may be open.
template <class Table>
concept Nested = std::is_same_v<Table, Regions> || std::is_same_v<Table, PythonFunctions>;

/// What tells open rows of a thread apart.
uint64_t kind_of(const Regions& table, std::size_t row) { return uint64_t{table.thread[row]} << 32 | table.path[row]; }
uint64_t kind_of(const PythonFunctions& table, std::size_t row) {
  return uint64_t{table.thread[row]} << 32 | table.name[row];
}

/// The owner of a row, and the owner's table.
template <Owned Table>
std::pair<Target, uint32_t> owner_of(const Table& table, std::size_t row) {
  std::pair<Target, uint32_t> owner{Target::Nothing, kNone};
  table.each_column([&](const ColumnInfo& info, const auto& column) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(column[0])>, uint32_t>) {
      if (info.meaning.owner) {
        owner = {target_of(table, info, row), column[row]};
      }
    }
  });
  return owner;
}

template <class Table>
bool are_equal(const Table& table, std::size_t one, std::size_t other) {
  bool equal = true;
  table.each_column([&](const ColumnInfo&, const auto& column) { equal = equal && column[one] == column[other]; });
  return equal;
}

/// Puts the rows of a table in the order of their owners.
template <OnePerOwner Table>
void sort_by_owner(Table& table) {
  std::vector<uint32_t> owners(table.size());
  for (std::size_t row = 0; row < table.size(); ++row) {
    owners[row] = owner_of(table, row).second;
  }
  if (std::ranges::is_sorted(owners)) {
    return;
  }
  std::vector<uint32_t> order(table.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, {}, [&](uint32_t row) { return owners[row]; });
  table.each_column([&](const ColumnInfo&, auto& column) {
    std::remove_reference_t<decltype(column)> sorted;
    sorted.reserve(order.size());
    for (const uint32_t row : order) {
      sorted.push_back(column[row]);
    }
    column.swap(sorted);
  });
}

/// Appends segments to each other.
class Joining {
 public:
  explicit Joining(Store& to) : to_(to) {}

  void append(const Store& from) {
    Rows rows;
    for (uint32_t id = 0; id < from.strings.size(); ++id) {
      rows.add(Target::Strings, to_.strings.intern(from.strings[id]));
    }
    Store::each_pair(to_, from, [&]<class Table>(Table& target, const Table& source) {
      rows.move(Table::kInfo.target, target.size());
      if constexpr (std::is_same_v<Table, Threads>) {
        append_threads(source, rows);
      } else if constexpr (Table::kInfo.role == Role::Dictionary) {
        append_dictionary(target, source, rows);
      }
    });
    continued_ = {};
    join_open(to_.region, from.region, rows);
    join_open(to_.python_function, from.python_function, rows);
    join_calls(from, rows);
    open_ = {};
    Store::each_pair(to_, from, [&]<class Table>(Table& target, const Table& source) {
      if constexpr (Table::kInfo.role == Role::Event && Timed<Table>) {
        append_events(target, source, rows);
      }
    });
    std::unordered_map<uint64_t, std::vector<uint32_t>> owned;
    Store::each_pair(to_, from, [&]<class Table>(Table& target, const Table& source) {
      if constexpr (Owned<Table>) {
        append_owned(target, source, rows, owned);
      }
    });
    owned_ = std::move(owned);
    note_calls(from, rows);
    append_info(to_, from);
  }

  /// Rows that were open when the last segment was cut last until its last moment.
  void finish(bool is_cut) {
    keep_newest_communicators();
    if (is_cut) {
      end_open_rows();
      to_.set_info("file.unfinished", "1");
    }
    to_.each_table([]<class Table>(Table& table) {
      if constexpr (OnePerOwner<Table>) {
        sort_by_owner(table);
      }
    });
    for (const std::string_view key : kDifferences) {
      if (number(to_.find_info(key)).value_or(0) < 0) {
        to_.set_info(key, "0");
      }
    }
  }

 private:
  struct Call {
    uint32_t row;
    uint32_t region;
  };
  static constexpr std::size_t index(Target target) noexcept { return static_cast<std::size_t>(target); }

  // A thread may get its name later.
  void append_threads(const Threads& from, Rows& rows) {
    for (std::size_t row = 0; row < from.size(); ++row) {
      const auto name = static_cast<uint32_t>(rows(Target::Strings, from.name[row]));
      const uint64_t id = from.system_id[row];
      auto at = static_cast<uint32_t>(to_.thread.size());
      for (uint32_t known = at; known-- > 0;) {
        at = to_.thread.system_id[known] == id ? known : at;
      }
      if (at < to_.thread.size()) {
        to_.thread.name[at] = to_.strings[name].empty() ? to_.thread.name[at] : name;
      } else {
        to_.thread.append({id, name, from.flags[row]});
      }
      rows.add(Target::Threads, std::min<uint32_t>(at, UINT16_MAX));
    }
  }

  /// Finds the rows that continue open rows of the segment before. They are the first ones.
  template <Nested Table>
  void join_open(Table& to, const Table& from, Rows& rows) {
    const Target target = Table::kInfo.target;
    std::vector<uint32_t>& continued = continued_[index(target)];
    std::vector<uint32_t> left = open_[index(target)];
    Table mapped;
    for (std::size_t row = 0; row < from.size() && (from.flags[row] & kClipped) != 0; ++row) {
      typename Table::Row values = from[row];
      values.thread = static_cast<uint16_t>(rows(Target::Threads, values.thread));
      if constexpr (std::is_same_v<Table, Regions>) {
        values.path = static_cast<uint32_t>(rows(Target::Paths, values.path));
      } else {
        values.name = static_cast<uint32_t>(rows(Target::Strings, values.name));
      }
      mapped.append(values);
      const auto found =
          std::ranges::find_if(left, [&](uint32_t open) { return kind_of(to, open) == kind_of(mapped, row); });
      continued.push_back(found != left.end() ? *found : kNone);
      if (found == left.end()) {
        continue;
      }
      left.erase(found);
      const uint32_t at = continued.back();
      to.duration_ns[at] = values.start_ns + values.duration_ns - to.start_ns[at];
      const auto is_clipped = static_cast<uint16_t>(to.flags[at] & kClipped);
      to.flags[at] = static_cast<uint16_t>((values.flags & ~kClipped) | is_clipped);
    }
    number_rows(target, from.size(), rows);
  }

  /// The same for driver calls.
  void join_calls(const Store& from, Rows& rows) {
    std::vector<uint32_t>& continued = continued_[index(Target::Apis)];
    for (std::size_t row = 0; row < from.api.size(); ++row) {
      const Call* call = calls_.find(from.api.correlation[row]);
      if (call == nullptr || to_.api.start_ns[call->row] != from.api.start_ns[row]) {
        break;
      }
      continued.push_back(call->row);
      to_.api.duration_ns[call->row] = from.api.duration_ns[row];
      to_.api.call[call->row] = static_cast<uint16_t>(rows(Target::Calls, from.api.call[row]));
    }
    number_rows(Target::Apis, from.api.size(), rows);
  }

  /// Gives each row of a table its number in the result.
  void number_rows(Target target, std::size_t size, Rows& rows) {
    const std::vector<uint32_t>& continued = continued_[index(target)];
    auto next = static_cast<uint32_t>(to_.rows_of(target));
    for (std::size_t row = 0; row < size; ++row) {
      const bool is_new = row >= continued.size() || continued[row] == kNone;
      rows.add(target, is_new ? next++ : continued[row]);
    }
  }

  template <class Table>
  void append_events(Table& to, const Table& from, const Rows& rows) {
    const std::size_t before = to.size();
    const std::vector<uint32_t>& continued = continued_[index(Table::kInfo.target)];
    if (std::ranges::all_of(continued, [](uint32_t row) { return row == kNone; })) {
      append_rows(to, from, rows);
    } else {
      for (std::size_t row = 0; row < from.size(); ++row) {
        if (row >= continued.size() || continued[row] == kNone) {
          append_row(to, from, row, rows);
        }
      }
    }
    if constexpr (requires {
                    to.region;
                    to.correlation;
                  } &&
                  !std::is_same_v<Table, Apis>) {
      for (std::size_t row = before; row < to.size(); ++row) {
        if (to.region[row] == kNone) {  // launched in the segment before
          const Call* call = calls_.find(to.correlation[row]);
          to.region[row] = call != nullptr ? call->region : kNone;
        }
      }
    }
    if constexpr (Nested<Table>) {
      std::vector<uint32_t>& open = open_[index(Table::kInfo.target)];
      std::ranges::copy_if(continued, std::back_inserter(open),
                           [&](uint32_t row) { return row != kNone && (to.flags[row] & kOpen) != 0; });
      for (std::size_t row = before; row < to.size(); ++row) {
        if ((to.flags[row] & kOpen) != 0) {
          open.push_back(static_cast<uint32_t>(row));
        }
      }
    }
  }

  template <class Table>
  static void append_row(Table& to, const Table& from, std::size_t row, const Rows& rows) {
    Table::each_pair(to, from, [&](const ColumnInfo& info, auto& target, const auto& source) {
      using T = std::remove_cvref_t<decltype(source)>::value_type;
      if constexpr (std::is_integral_v<T>) {
        target.push_back(static_cast<T>(rows(target_of(from, info, row), static_cast<uint64_t>(source[row]))));
      } else {
        target.push_back(source[row]);
      }
    });
  }

  /// Rows of an owner that is open at the end of a segment are in the next one again.
  template <Owned Table>
  void append_owned(Table& to, const Table& from, const Rows& rows,
                    std::unordered_map<uint64_t, std::vector<uint32_t>>& owned) {
    const auto key_of = [](Target owners, uint32_t owner) {
      return (uint64_t{index(Table::kInfo.target)} << 48 | uint64_t{index(owners)} << 32) ^ owner;
    };
    for (std::size_t row = 0; row < from.size(); ++row) {
      const auto [owners, owner] = owner_of(from, row);
      const std::vector<uint32_t>& continued = continued_[index(owners)];
      const uint32_t before = owner < continued.size() ? continued[owner] : kNone;
      auto at = static_cast<uint32_t>(to.size());
      append_row(to, from, row, rows);
      if (before != kNone) {
        for (const uint32_t known : owned_[key_of(owners, before)]) {
          if (OnePerOwner<Table> || are_equal(to, known, to.size() - 1)) {
            to.each_column([&](const ColumnInfo&, auto& column) { column[known] = column[column.size() - 1]; });
            to.truncate(to.size() - 1);
            at = known;
            break;
          }
        }
      }
      const auto here = static_cast<uint32_t>(rows(owners, owner));
      if (is_open(owners, here)) {
        owned[key_of(owners, here)].push_back(at);
      }
    }
  }

  /// Each segment has a row of each communicator, with its calls until then.
  void keep_newest_communicators() {
    Communicators newest;
    for (std::size_t row = 0; row < to_.communicator.size(); ++row) {
      const Communicators::Row values = to_.communicator[row];
      std::size_t at = 0;
      while (at < newest.size() && (newest.id[at] != values.id || newest.epoch[at] != values.epoch)) {
        ++at;
      }
      if (at == newest.size()) {
        newest.append(values);
      }
      newest.calls[at] = std::max(newest.calls[at], values.calls);
    }
    to_.communicator = std::move(newest);
  }

  void end_open_rows() {
    int64_t last_ns = number(to_.find_info("session.stop_ns")).value_or(INT64_MIN);
    to_.each_table([&]<class Table>(const Table& table) {
      if constexpr (Table::kInfo.role == Role::Event && Timed<Table>) {
        for (std::size_t row = table.size() - std::min<std::size_t>(table.size(), 4096); row < table.size(); ++row) {
          last_ns = std::max(last_ns, table.start_ns[row]);
        }
      }
    });
    const auto end = [&](auto& table) {
      for (const uint32_t row : open_[index(table.kInfo.target)]) {
        table.duration_ns[row] = std::max<int64_t>(0, last_ns - table.start_ns[row]);
      }
    };
    end(to_.region);
    end(to_.python_function);
    to_.set_info("session.stop_ns", std::to_string(last_ns));
  }

  bool is_open(Target target, uint32_t row) const {
    return target == Target::Regions && row < to_.region.size() && (to_.region.flags[row] & kOpen) != 0;
  }

  void note_calls(const Store& from, const Rows& rows) {
    calls_.clear();
    for (std::size_t row = 0; row < from.api.size(); ++row) {
      const auto at = static_cast<uint32_t>(rows(Target::Apis, row));
      calls_.set(from.api.correlation[row], {at, to_.api.region[at]});
    }
  }

  Store& to_;
  base::FlatMap<Call> calls_;                                  // of the segment before, by correlation
  std::array<std::vector<uint32_t>, kTargets> open_;           // rows that are open at its end
  std::array<std::vector<uint32_t>, kTargets> continued_;      // for the first rows of a segment, the row before
  std::unordered_map<uint64_t, std::vector<uint32_t>> owned_;  // rows that belong to open rows
};

/// The number in the name of a segment. None for other names.
std::optional<uint64_t> number_of(std::string_view name) {
  if (!name.starts_with(kSegmentPrefix) || !name.ends_with(kSegmentSuffix)) {
    return std::nullopt;
  }
  name.remove_prefix(kSegmentPrefix.size());
  name.remove_suffix(std::min(name.size(), kSegmentSuffix.size()));
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc{} && end == name.data() + name.size() ? std::optional(number) : std::nullopt;
}

std::vector<uint64_t> list_segments(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), &closedir);
  if (directory == nullptr) {
    throw base::Error("cannot open " + folder + ": " + std::strerror(errno));
  }
  std::vector<uint64_t> numbers;
  while (const dirent* entry = readdir(directory.get())) {
    if (const std::optional<uint64_t> number = number_of(entry->d_name)) {
      numbers.push_back(*number);
    }
  }
  std::ranges::sort(numbers);
  return numbers;
}

}  // namespace

std::string segment_name(uint64_t number) {
  constexpr std::size_t kDigits = 8;
  const std::string digits = std::to_string(number);
  return std::string(kSegmentPrefix) + std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits +
         std::string(kSegmentSuffix);
}

std::unique_ptr<Store> read_segments(const std::string& folder, const Store* last) {
  auto all = std::make_unique<Store>();
  Joining joining(*all);
  std::string unread;
  std::optional<uint64_t> first;
  std::size_t read = 0;
  bool has_end = false;
  for (const uint64_t number : list_segments(folder)) {
    has_end = number >= kEndSegment;
    if (has_end && last != nullptr) {
      joining.append(*std::exchange(last, nullptr));
    }
    try {
      joining.append(*read_gscope(folder + "/" + segment_name(number), Damage::Salvage));
    } catch (const base::Error& error) {  // a file that was only created, or deleted meanwhile
      unread.append(unread.empty() ? "" : "\n").append(error.what());
      continue;
    }
    first = number != 0 && number < kEndSegment && !first.has_value() ? number : first;
    ++read;
  }
  if (read == 0) {
    throw base::CorruptTrace(folder, 0, unread.empty() ? "the folder has no segment of a recording" : unread);
  }
  joining.finish(!has_end);
  if (const std::string bad = find_bad_reference(*all); !bad.empty()) {
    throw base::CorruptTrace(folder, 0, bad + "; found when all segments were read");
  }
  all->set_info("file.segments", std::to_string(read));
  all->set_info("file.first_segment", std::to_string(first.value_or(0)));
  if (!unread.empty()) {
    all->set_info("file.unread_segments", unread);
  }
  return all;
}

}  // namespace gpuscope::store
