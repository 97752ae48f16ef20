// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuscope::readers {

/// Spans of threads, of one length each: when each began, how long it was, and the number of its thread.
struct Spans {
  std::span<const int64_t> start_ns;
  std::span<const int64_t> duration_ns;
  std::span<const uint32_t> thread;
};

/// Call paths in the order in which they came up, and those of regions.
struct Nesting {
  std::vector<uint32_t> around;  // of each span the innermost region that it lies in, store::kNone for none
  std::vector<uint32_t> path;    // of each region
  std::vector<uint32_t> path_parent;
  std::vector<uint32_t> path_name;
  std::vector<uint32_t> path_kind;
  std::vector<uint32_t> path_depth;
};

/// Which regions spans lie in, by thread and time. The first name.size() spans are regions, the others are calls.
///
/// What begins or ends with a region lies in it; of equal spans the later lies in the earlier. Of two that overlap in
/// part neither lies in the other.
Nesting nest(const Spans& spans, std::span<const uint32_t> name, std::span<const uint32_t> kind);

/// Numbers distinct rows of so many columns in the order in which they come.
class RowNumbers {
 public:
  explicit RowNumbers(std::size_t columns);

  /// The number of each row; all columns are of one length.
  std::vector<uint32_t> number(const std::vector<std::span<const int64_t>>& columns);
  uint32_t number_of(std::span<const int64_t> row);
  /// The distinct rows, a column each.
  const std::vector<std::vector<int64_t>>& columns() const noexcept { return columns_; }

 private:
  void grow();

  std::vector<std::vector<int64_t>> columns_;
  std::vector<uint32_t> slots_;  // open addressing, a power of two, at most half full
  std::vector<uint64_t> hashes_;
};

}  // namespace gpuscope::readers
