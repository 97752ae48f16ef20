// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuscope::analysis {

/// Statistics of a set of durations. A quantile is the smallest duration that at least that share does not exceed.
struct Durations {
  uint64_t count = 0;
  int64_t total_ns = 0;
  int64_t min_ns = 0;
  int64_t max_ns = 0;
  int64_t p50_ns = 0;
  int64_t p95_ns = 0;
  int64_t p99_ns = 0;
};

/// Exact. Reorders the values.
Durations measure(std::span<int64_t> durations_ns);

/// The durations of each group. `group[row]` is the group of a row, below `count`.
std::vector<Durations> measure_groups(std::span<const int64_t> durations_ns, std::span<const uint32_t> group,
                                      std::size_t count);

struct BinCount {
  uint32_t bin;  // of store::histogram_bin
  uint64_t count;
};

/// Computes the quantiles of `known` from its histogram, within its min and max. Sorts the bins.
void fill_quantiles(Durations& known, std::span<BinCount> bins);

/// Merges count, total, min and max of two disjoint sets. Quantiles need fill_quantiles.
void merge(Durations& into, const Durations& other) noexcept;

/// The key of a group, in sorting order: groups of one name are adjacent.
struct GroupKey {
  uint32_t name;
  uint32_t first;   // of work the path, of regions the input shapes
  uint32_t second;  // of work the capture, of regions the call stack
  auto operator<=>(const GroupKey&) const = default;
};

struct Group {
  GroupKey key;
  uint64_t bytes;
  std::span<int64_t> durations_ns;
};

/// Groups rows by their keys: `add` once per row, then `arrange` to get durations. One thread.
class Grouping {
 public:
  explicit Grouping(std::size_t rows);

  /// The number of the row's group. Groups are numbered in order of first appearance.
  uint32_t add(const GroupKey& key, uint64_t bytes = 0) {
    if (key != last_key_ || groups_.empty()) [[unlikely]] {
      last_ = find(key);
      last_key_ = key;
    }
    groups_[last_].bytes += bytes;
    ++counts_[last_];
    group_of_row_.push_back(last_);
    return last_;
  }
  /// The group of each added row.
  std::span<const uint32_t> group_of_row() const noexcept { return group_of_row_; }
  /// The groups by key, each with the durations of its rows, stored one after another. Call once, with one duration per
  /// added row.
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
