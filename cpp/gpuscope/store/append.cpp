// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/append.h"

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/store/references.h"

namespace gpuscope::store {
namespace {

constexpr std::size_t kTargets = static_cast<std::size_t>(Target::Infos) + 1;
// Columns that refer to tracks, threads and calls are this wide; the last row stands for all that find no room.
constexpr std::size_t kMostNarrow = std::size_t{UINT16_MAX} + 1;

constexpr bool is_narrow(Target target) noexcept {
  return target == Target::Tracks || target == Target::Threads || target == Target::Calls;
}

/// From row numbers of one store to those of the other.
class Rows {
 public:
  uint64_t operator()(Target target, uint64_t row) const {
    const auto index = static_cast<std::size_t>(target);
    if (target == Target::Nothing || row == kNone) {
      return row;
    }
    return row < known_[index].size() ? known_[index][row] : row + moved_[index];
  }
  /// The rows of an event table all move alike.
  void move(Target target, std::size_t by) { moved_[static_cast<std::size_t>(target)] = by; }
  void add(Target target, uint32_t row) { known_[static_cast<std::size_t>(target)].push_back(row); }

 private:
  std::array<std::vector<uint32_t>, kTargets> known_;
  std::array<uint64_t, kTargets> moved_{};
};

template <class Table, class F>
void each_pair(Table& to, const Table& from, F&& visit) {
  to.each_column([&](std::string_view name, auto& target) {
    from.each_column([&](std::string_view other, const auto& source) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(target)>, std::remove_cvref_t<decltype(source)>>) {
        if (name == other) {
          visit(name, target, source);
        }
      }
    });
  });
}

template <class Table>
void append_events(std::string_view table, Table& to, const Table& from, const Rows& rows) {
  each_pair(to, from, [&](std::string_view column, auto& target, const auto& source) {
    using T = typename std::remove_cvref_t<decltype(source)>::value_type;
    const Reference reference = reference_of(table, column);
    if (reference.target == Target::Nothing) {
      target.append(source.span());
      return;
    }
    for (const T value : source) {
      target.push_back(static_cast<T>(rows(reference.target, static_cast<uint64_t>(value))));
    }
  });
}

/// A dictionary's rows, each as the numbers that it is made of.
template <class Table>
class Entries {
 public:
  Entries(std::string_view name, const Table& table) : size_(table.size()) {
    table.each_column([&](std::string_view column, const auto& values) {
      references_.push_back(reference_of(name, column));
      columns_.emplace_back(values.begin(), values.end());
    });
  }
  std::size_t size() const { return size_; }
  template <class F>
  std::vector<uint64_t> row(std::size_t row, F&& mapped) const {
    std::vector<uint64_t> numbers;
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      numbers.push_back(mapped(references_[column].target, columns_[column][row]));
    }
    return numbers;
  }

 private:
  std::size_t size_;
  std::vector<Reference> references_;
  std::vector<std::vector<uint64_t>> columns_;
};

std::string key_of(const std::vector<uint64_t>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint64_t)};
}

/// Rows refer to rows of the same table that stand before them, or to dictionaries that were appended before.
template <class Table>
void append_dictionary(Target target, std::string_view name, Table& to, const Table& from, Rows& rows) {
  std::unordered_map<std::string, uint32_t> known;
  const Entries before(name, std::as_const(to));
  for (uint32_t row = 0; row < before.size(); ++row) {
    known.emplace(key_of(before.row(row, [](Target, uint64_t value) { return value; })), row);
  }
  const Entries entries(name, from);
  for (std::size_t row = 0; row < entries.size(); ++row) {
    const std::vector<uint64_t> numbers = entries.row(row, rows);
    const auto [found, is_new] = known.try_emplace(key_of(numbers), static_cast<uint32_t>(to.size()));
    if (is_new && is_narrow(target) && to.size() >= kMostNarrow) {
      found->second = static_cast<uint32_t>(kMostNarrow - 1);
    } else if (is_new) {
      auto number = numbers.begin();
      to.each_column([&](const char*, auto& column) {
        using T = typename std::remove_cvref_t<decltype(column)>::value_type;
        column.push_back(static_cast<T>(*number++));
      });
    }
    rows.add(target, found->second);
  }
}

/// The bins of totals that were joined are counted together.
class Histogram {
 public:
  explicit Histogram(Histograms& table) : table_(table) {
    for (uint32_t row = 0; row < table.size(); ++row) {
      rows_.emplace(key(table.histogram[row], table.bin[row]), row);
      next_ = std::max(next_, table.histogram[row] + 1);
    }
  }
  /// The histogram of a total that had `mine`, or none when it is new, and is joined by one that has `theirs`.
  uint32_t join(uint32_t mine, uint32_t theirs, bool is_new) {
    if (theirs == kNone || (mine == kNone && !is_new)) {
      return kNone;  // of a part the whole cannot be told
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

/// Sums rows that are about the same; `subject` says what a row is about.
template <class Table, class F>
void append_totals(std::string_view name, Table& to, const Table& from, const Rows& rows, Histogram& histograms,
                   F&& subject) {
  std::unordered_map<std::string, uint32_t> known;
  for (uint32_t row = 0; row < to.size(); ++row) {
    known.emplace(key_of(subject(std::as_const(to), row)), row);
  }
  Table mapped;
  append_events(name, mapped, from, rows);
  for (uint32_t row = 0; row < mapped.size(); ++row) {
    const auto [found, is_new] =
        known.try_emplace(key_of(subject(std::as_const(mapped), row)), static_cast<uint32_t>(to.size()));
    const uint32_t at = found->second;
    if (is_new) {
      to.append(mapped[row]);
    }
    to.histogram[at] = histograms.join(to.histogram[at], mapped.histogram[row], is_new);
    if (!is_new) {
      each_pair(to, std::as_const(mapped), [&](std::string_view column, auto& target, const auto& source) {
        if constexpr (sizeof(source[row]) == sizeof(uint64_t)) {  // the others say what the row is about
          target[at] = column == "min_ns"   ? std::min(target[at], source[row])
                       : column == "max_ns" ? std::max(target[at], source[row])
                                            : target[at] + source[row];
        }
      });
    }
  }
}

}  // namespace

void append(Store& to, const Store& from) {
  Rows rows;
  for (uint32_t id = 0; id < from.strings.size(); ++id) {
    rows.add(Target::Strings, to.strings.intern(from.strings[id]));
  }
#define GPUSCOPE_MOVE(Type, table, LIST) rows.move(Target::Type, to.table.size());
  GPUSCOPE_TABLES(GPUSCOPE_MOVE)
#undef GPUSCOPE_MOVE
  rows.move(Target::Histograms, 0);  // joined with their totals

  append_dictionary(Target::Paths, "path", to.path, from.path, rows);
  append_dictionary(Target::Stacks, "stack", to.stack, from.stack, rows);
  append_dictionary(Target::Variants, "variant", to.variant, from.variant, rows);
  append_dictionary(Target::Tracks, "track", to.track, from.track, rows);
  append_dictionary(Target::Threads, "thread", to.thread, from.thread, rows);
  append_dictionary(Target::Calls, "call", to.call, from.call, rows);
  append_dictionary(Target::Devices, "device", to.device, from.device, rows);

  const std::size_t payloads = to.payload.size();
  const std::size_t nodes = to.graph_node.size();
  const auto add = [&](std::string_view name, auto& events, const auto& more) {
    append_events(name, events, more, rows);
  };
  const std::array<uint64_t, 4> moved = {0, to.kernel.size(), to.memcpy.size(), to.memset.size()};  // by Work
  add("kernel", to.kernel, from.kernel);
  add("graph_node", to.graph_node, from.graph_node);
  add("graph_launch", to.graph_launch, from.graph_launch);
  add("memcpy", to.memcpy, from.memcpy);
  add("memset", to.memset, from.memset);
  add("sync", to.sync, from.sync);
  add("api", to.api, from.api);
  add("region", to.region, from.region);
  add("region_gpu", to.region_gpu, from.region_gpu);
  add("mark", to.mark, from.mark);
  add("detail", to.detail, from.detail);
  add("payload", to.payload, from.payload);
  add("allocation", to.allocation, from.allocation);
  add("device_memory", to.device_memory, from.device_memory);
  add("memory_pool", to.memory_pool, from.memory_pool);
  add("call_stack", to.call_stack, from.call_stack);
  for (std::size_t row = nodes; row < to.graph_node.size(); ++row) {
    to.graph_node.event[row] += static_cast<uint32_t>(moved[std::min<std::size_t>(to.graph_node.kind[row], 3)]);
  }
  for (std::size_t row = payloads; row < to.payload.size(); ++row) {
    if (static_cast<PayloadType>(to.payload.type[row]) == PayloadType::Text) {
      to.payload.value[row] = rows(Target::Strings, to.payload.value[row]);
    }
  }

  Histogram histograms(to.histogram);
  append_totals("region_total", to.region_total, from.region_total, rows, histograms,
                [](const RegionTotals& table, uint32_t row) { return std::vector<uint64_t>{table.path[row]}; });
  append_totals("work_total", to.work_total, from.work_total, rows, histograms,
                [](const WorkTotals& table, uint32_t row) {
                  return std::vector<uint64_t>{table.path[row], table.name[row], table.kind[row]};
                });
  histograms.append(from.histogram);
  append_info(to, from);
}

}  // namespace gpuscope::store
