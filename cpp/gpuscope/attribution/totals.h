// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/store.h"

namespace gpuscope::attribution {

/// Running totals of one quantity, with its durations counted by size.
struct Total {
  uint64_t count = 0;
  uint64_t bytes = 0;
  int64_t total_ns = 0;
  int64_t child_ns = 0;
  int64_t min_ns = INT64_MAX;
  int64_t max_ns = 0;
  std::vector<uint64_t> bins;

  void add(int64_t duration_ns);
};

/// What aggregate mode keeps: one row a call path and one a kind of work on it. One thread at a time.
class Totals {
 public:
  void add_region(uint32_t path, int64_t duration_ns, int64_t child_ns);
  void add_work(uint32_t path, store::Work kind, uint32_t name, int64_t duration_ns, uint64_t bytes = 0);
  /// Writes the totals as rows and starts again from nothing.
  void move_into(store::Store& store);
  std::size_t bytes() const noexcept;

 private:
  struct Key {
    uint32_t path;
    uint32_t name;
    store::Work kind;
  };
  Total& work(const Key& key);

  base::FlatMap<uint32_t> region_index_;
  base::FlatMap<uint32_t> work_index_;
  std::vector<uint32_t> region_paths_;
  std::vector<Total> regions_;
  std::vector<Key> work_keys_;
  std::vector<Total> works_;
};

}  // namespace gpuscope::attribution
