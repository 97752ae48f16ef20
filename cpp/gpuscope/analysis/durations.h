// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuscope::analysis {

/// What a set of durations comes to. A quantile is the smallest duration that at least that share does not exceed.
struct Durations {
  uint64_t count = 0;
  int64_t total_ns = 0;
  int64_t min_ns = 0;
  int64_t max_ns = 0;
  int64_t p50_ns = 0;
  int64_t p95_ns = 0;
  int64_t p99_ns = 0;
};

/// Exact; leaves the values in another order.
Durations measure(std::span<int64_t> durations_ns);

/// The durations of each group: `group[row]` says which of `count` a row belongs to.
std::vector<Durations> measure_groups(std::span<const int64_t> durations_ns, std::span<const uint32_t> group,
                                      std::size_t count);

struct BinCount {
  uint32_t bin;  // of store::histogram_bin
  uint64_t count;
};

/// Fills in the quantiles of `known` from its histogram, within its min and max; leaves the bins sorted.
void fill_quantiles(Durations& known, std::span<BinCount> bins);

/// Count, total, min and max of two disjoint sets; quantiles are left to fill_quantiles.
void merge(Durations& into, const Durations& other) noexcept;

}  // namespace gpuscope::analysis
