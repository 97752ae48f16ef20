// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::store {

/// The rows of one table of a file, or strings, that were read, by their numbers in the file. One thread.
class RowsRead {
 public:
  /// Adds the rows from `first` on. Their numbers must be larger than those of earlier rows.
  void add(uint32_t first, uint32_t rows);
  /// The position of a row among the rows read. kNone for others.
  uint32_t find(uint64_t number) const noexcept;
  /// One more than the largest row number read.
  uint64_t end() const noexcept { return runs_.empty() ? 0 : uint64_t{runs_.back().first} + runs_.back().rows; }
  /// How many were read.
  std::size_t size() const noexcept { return runs_.empty() ? 0 : runs_.back().place + std::size_t{runs_.back().rows}; }

 private:
  struct Run {
    uint32_t first;
    uint32_t rows;
    uint32_t place;
  };
  std::vector<Run> runs_;
};

/// The readable parts of a damaged file: rows by table, and strings with their new ids.
struct PartsRead {
  std::array<RowsRead, kTargets> rows;
  std::vector<uint32_t> strings;
};

inline constexpr std::string_view kLostText = "(lost)";

/// Makes a recording from the rows of a damaged file. Their references are still the file's row numbers.
///
/// Rows that belong to a lost row, or must refer to one, are dropped. Other references to lost rows become none, lost
/// names become kLostText, and histograms with lost bins are removed. Returns the number of references that became
/// none.
std::size_t rejoin(Store& store, const PartsRead& read);

}  // namespace gpuscope::store
