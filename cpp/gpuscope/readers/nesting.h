// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuscope::readers {

/// Spans of threads: start, duration and thread number of each.
struct Spans {
  std::span<const int64_t> start_ns;
  std::span<const int64_t> duration_ns;
  std::span<const uint32_t> thread;
};

/// Call paths in order of first appearance, and the regions' paths.
struct Nesting {
  std::vector<uint32_t> around;  // of each span, the innermost region around it; store::kNone for none
  std::vector<uint32_t> path;    // of each region
  std::vector<uint32_t> path_parent;
  std::vector<uint32_t> path_name;
  std::vector<uint32_t> path_kind;
  std::vector<uint32_t> path_depth;
};

/// Nests spans by thread and time. The first name.size() spans are regions, the others are calls.
///
/// A span that begins or ends together with a region is inside it. Of equal spans, the later one is inside the earlier
/// one. Partly overlapping spans are not nested.
Nesting nest(const Spans& spans, std::span<const uint32_t> name, std::span<const uint32_t> kind);

/// Numbers distinct rows in order of first appearance.
class RowNumbers {
 public:
  explicit RowNumbers(std::size_t columns);

  /// The number of each row. All columns have equal length.
  std::vector<uint32_t> number(const std::vector<std::span<const int64_t>>& columns);
  uint32_t number_of(std::span<const int64_t> row);
  /// The distinct rows, by column.
  const std::vector<std::vector<int64_t>>& columns() const noexcept { return columns_; }

 private:
  void grow();

  std::vector<std::vector<int64_t>> columns_;
  std::vector<uint32_t> slots_;  // open addressing, a power of two, at most half full
  std::vector<uint64_t> hashes_;
};

}  // namespace gpuscope::readers
