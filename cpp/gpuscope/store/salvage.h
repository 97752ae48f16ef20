// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::store {

/// Which rows of one table of a file, or strings, were read; by their numbers in the file. One thread.
class RowsRead {
 public:
  /// The rows from `first` on were read behind those before, whose numbers are smaller.
  void add(uint32_t first, uint32_t rows);
  /// Where a row stands among those that were read; kNone for one that was not.
  uint32_t find(uint64_t number) const noexcept;
  /// One more than the largest number that was read.
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

/// What was read of a damaged file: rows by the table, and the strings, with the id that each has now.
struct PartsRead {
  std::array<RowsRead, kTargets> rows;
  std::vector<uint32_t> strings;
};

inline constexpr std::string_view kLostText = "(lost)";

/// Makes a recording of the rows of a damaged file, whose references are still numbers of the file.
///
/// A row that is about a lost one, or has to refer to it, is dropped. Other references to lost rows become none, lost
/// names kLostText, and histograms that lack bins are forgotten. Returns how many references became none.
std::size_t rejoin(Store& store, const PartsRead& read);

}  // namespace gpuscope::store
