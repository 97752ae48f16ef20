// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/store.h"

namespace gpuscope::attribution {

/// Running totals of one quantity, with a histogram of its durations.
struct Total {
  uint64_t count = 0;
  uint64_t bytes = 0;
  int64_t total_ns = 0;
  int64_t child_ns = 0;
  int64_t suspended_ns = 0;
  int64_t min_ns = INT64_MAX;
  int64_t max_ns = 0;
  uint32_t first_bin = 0;  // of store::histogram_bin
  std::vector<uint64_t> bins;

  /// Returns the growth in bytes.
  std::size_t add(int64_t duration_ns);
};

/// The data of aggregate mode: one row per call path, and one per kind of work on it. One thread at a time.
class Totals {
 public:
  /// False if refused.
  bool add_region(uint32_t path, int64_t duration_ns, int64_t child_ns, int64_t suspended_ns = 0);
  void add_work(uint32_t path, store::Work kind, uint32_t name, int64_t duration_ns, uint64_t bytes = 0);
  /// Writes the totals as rows and resets them.
  void move_into(store::Store& store);
  std::size_t bytes() const noexcept { return bytes_; }
  /// Whether no new entries are accepted, as the memory is used up.
  void refuse_more(bool refuse) noexcept { refuses_ = refuse; }
  bool refuses() const noexcept { return refuses_; }
  /// The number of refusals since the last call.
  uint64_t take_refused() noexcept { return std::exchange(refused_, 0); }

 private:
  struct Key {
    uint32_t path;
    uint32_t name;
    store::Work kind;
  };
  /// Null if a new entry would be needed and is refused.
  template <class F>
  Total* find_or_make(base::FlatMap<uint32_t>& index, std::vector<Total>& totals, uint64_t key, F&& remember);
  Total* work(const Key& key);

  static constexpr std::size_t kTotalBytes = sizeof(Total) + sizeof(Key) + 4 * sizeof(uint64_t);  // with its index

  base::FlatMap<uint32_t> region_index_;
  base::FlatMap<uint32_t> work_index_;
  std::vector<uint32_t> region_paths_;
  std::vector<Total> regions_;
  std::vector<Key> work_keys_;
  std::vector<Total> works_;
  std::size_t bytes_ = 0;
  bool refuses_ = false;
  uint64_t refused_ = 0;
};

}  // namespace gpuscope::attribution
