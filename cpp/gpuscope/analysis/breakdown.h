// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuscope::analysis {

/// Spans of time, each from its start to before its end, in ns.
struct Intervals {
  std::span<const int64_t> start_ns;
  std::span<const int64_t> end_ns;

  std::size_t size() const noexcept { return start_ns.size(); }
};

/// Work in any order, with the class of each; what ends before it starts fills nothing. Quickest where it is in order.
struct ClassifiedIntervals {
  Intervals work;
  std::span<const uint8_t> classes;
};

/// What fills each of several windows, in ns: a row a class, one after the other, of an entry a window. All zero
/// before.
struct Division {
  /// With a last row for what no class fills: each moment counts for the lowest class that fills it, so that what a
  /// window has in all rows adds up to it.
  std::span<int64_t> exclusive_ns;
  /// All moments that a class fills, whatever else fills them too. Empty: not asked for.
  std::span<int64_t> covered_ns;
};

inline constexpr std::size_t kMaxClasses = 64;

/// `windows` in order, none into the next; the classes of all `work` below `count`. Throws InvalidArgument for what is
/// not so.
void divide_time(const Intervals& windows, std::span<const ClassifiedIntervals> work, std::size_t count,
                 const Division& into);

/// How many of the edges, which are in order, are before each moment; with `equal` also those at it. Quickest for
/// moments in order. As many counts as moments.
void count_before(std::span<const int64_t> edges, std::span<const int64_t> moments, bool equal,
                  std::span<int64_t> counts) noexcept;

/// Where each of the wanted numbers is among the known ones, the first place of several; -1 where it is not. As many
/// rows as wanted ones. Quickest for known ones that were counted up.
void find_rows(std::span<const uint32_t> known, std::span<const uint32_t> wanted, std::span<int64_t> rows);

/// Where a sequence begins to repeat, and after how many entries: its longest end that consists of at least so many
/// equal parts. A period of 0: there is none.
struct Repetition {
  std::size_t begin = 0;
  std::size_t period = 0;
};

Repetition find_repetition(std::span<const uint32_t> sequence, std::size_t times);

}  // namespace gpuscope::analysis
