// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuscope::analysis {

/// What rows are told apart by; in sorting order, so that the groups of one name lie side by side.
struct GroupKey {
  uint32_t name;
  uint32_t path;
  uint32_t capture;
  auto operator<=>(const GroupKey&) const = default;
};

struct Group {
  GroupKey key;
  uint64_t bytes;
  std::span<int64_t> durations_ns;
};

/// Gathers the durations of equal rows: `add` once a row, then `arrange`. One thread.
class Grouping {
 public:
  explicit Grouping(std::size_t rows);

  void add(const GroupKey& key, uint64_t bytes = 0) {
    if (key != last_key_ || groups_.empty()) [[unlikely]] {
      last_ = find(key);
      last_key_ = key;
    }
    groups_[last_].bytes += bytes;
    ++counts_[last_];
    group_of_row_.push_back(last_);
  }
  /// The groups by key, each with the durations of its rows, one directly behind the other. Call once, with one
  /// duration for every row that was added.
  std::span<Group> arrange(const int64_t* durations_ns);

 private:
  uint32_t find(const GroupKey& key);
  void grow();

  std::vector<Group> groups_;
  std::vector<uint64_t> counts_;
  std::vector<uint32_t> slots_;  // open addressing; a power of two, at most half full
  std::vector<uint32_t> group_of_row_;
  std::vector<int64_t> arranged_;
  GroupKey last_key_{};
  uint32_t last_ = 0;
};

}  // namespace gpuscope::analysis
