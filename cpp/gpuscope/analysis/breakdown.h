// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuscope::analysis {

/// Half-open spans of time, in ns.
struct Intervals {
  std::span<const int64_t> start_ns;
  std::span<const int64_t> end_ns;

  std::size_t size() const noexcept { return start_ns.size(); }
};

/// Work with a class for each span, in any order. Fastest if sorted by start. Spans that end before they start are
/// ignored.
struct ClassifiedIntervals {
  Intervals work;
  std::span<const uint8_t> classes;
};

/// The division of several windows by class, in ns: one row per class, with one entry per window. Must be zero before.
struct Division {
  /// With a last row for time without a class. Each moment counts for the lowest class that covers it, so a window's
  /// entries add up to its length.
  std::span<int64_t> exclusive_ns;
  /// The time covered by each class, regardless of other classes. Empty: not computed.
  std::span<int64_t> covered_ns;
};

inline constexpr std::size_t kMaxClasses = 64;

/// `windows`: sorted, without overlap. All classes must be below `count`. Throws InvalidArgument otherwise.
void divide_time(const Intervals& windows, std::span<const ClassifiedIntervals> work, std::size_t count,
                 const Division& into);

/// For each moment, the number of edges before it. `equal`: also edges at it. `edges` must be sorted. Fastest for
/// sorted moments. `counts` has the size of `moments`.
void count_before(std::span<const int64_t> edges, std::span<const int64_t> moments, bool equal,
                  std::span<int64_t> counts) noexcept;

/// For each wanted number, its first position among the known ones, or -1. `rows` has the size of `wanted`. Fastest if
/// the known numbers increase.
void find_rows(std::span<const uint32_t> known, std::span<const uint32_t> wanted, std::span<int64_t> rows);

/// The repeating end of a sequence: the longest end made of at least `times` equal parts. `begin`: its start. `period`:
/// the length of a part, 0 if nothing repeats.
struct Repetition {
  std::size_t begin = 0;
  std::size_t period = 0;
};

Repetition find_repetition(std::span<const uint32_t> sequence, std::size_t times);

}  // namespace gpuscope::analysis
