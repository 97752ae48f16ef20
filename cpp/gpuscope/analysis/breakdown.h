// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuscope::analysis {

/// From its start to before its end, in ns.
struct Interval {
  int64_t start_ns;
  int64_t end_ns;
};

/// What fills each of several windows, in ns. Row by row, a window each.
struct Division {
  /// A column a class and a last one for what no class fills: each moment counts for the lowest class that fills it, so
  /// that a row adds up to its window.
  std::vector<int64_t> exclusive_ns;
  /// A column a class: all moments that it fills, whatever else fills them too.
  std::vector<int64_t> covered_ns;
};

inline constexpr std::size_t kMaxClasses = 64;

/// `windows` in order, none into the next; `work` in any order, with the class of each in `classes`, below `count`.
/// Work that ends before it starts fills nothing. Throws InvalidArgument for what is not so.
Division divide_time(std::span<const Interval> windows, std::span<const Interval> work,
                     std::span<const uint8_t> classes, std::size_t count);

/// Where a sequence begins to repeat, and after how many entries: its longest end that consists of at least so many
/// equal parts. A period of 0: there is none.
struct Repetition {
  std::size_t begin = 0;
  std::size_t period = 0;
};

Repetition find_repetition(std::span<const uint32_t> sequence, std::size_t times);

}  // namespace gpuscope::analysis
