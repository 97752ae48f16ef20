// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/grouping.h"

#include <algorithm>
#include <numeric>

#include "gpuscope/store/values.h"

namespace gpuscope::analysis {
namespace {

constexpr uint64_t rank_of(uint64_t count, uint64_t percent) noexcept {
  const uint64_t at_least = (count / 100) * percent + ((count % 100) * percent + 99) / 100;
  return at_least == 0 ? 0 : at_least - 1;
}

int64_t quantile(std::span<const BinCount> sorted, uint64_t count, uint64_t percent) noexcept {
  const uint64_t rank = rank_of(count, percent);
  uint64_t seen = 0;
  for (const BinCount& entry : sorted) {
    seen += entry.count;
    if (seen > rank) {
      return store::histogram_middle(entry.bin);
    }
  }
  return 0;
}

constexpr uint32_t kEmpty = UINT32_MAX;
constexpr std::size_t kFirstSlots = 256;

std::size_t hash(const GroupKey& key) noexcept {
  uint64_t mixed = (uint64_t{key.name} << 32 | key.first) * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  mixed = (mixed ^ (mixed >> 32) ^ key.second) * 0x9E3779B97F4A7C15ULL;
  return mixed >> 32;
}

}  // namespace

Durations measure(std::span<int64_t> durations_ns) {
  Durations result;
  result.count = durations_ns.size();
  if (durations_ns.empty()) {
    return result;
  }
  result.min_ns = result.max_ns = durations_ns.front();
  for (const int64_t duration : durations_ns) {
    result.total_ns += duration;
    result.min_ns = std::min(result.min_ns, duration);
    result.max_ns = std::max(result.max_ns, duration);
  }
  // Each selection leaves smaller values before it, so the next one searches only the rest.
  auto from = durations_ns.begin();
  const auto select = [&](uint64_t percent) {
    const auto at = durations_ns.begin() + static_cast<std::ptrdiff_t>(rank_of(durations_ns.size(), percent));
    std::nth_element(from, at, durations_ns.end());
    from = at;
    return *at;
  };
  result.p50_ns = select(50);
  result.p95_ns = select(95);
  result.p99_ns = select(99);
  return result;
}

std::vector<Durations> measure_groups(std::span<const int64_t> durations_ns, std::span<const uint32_t> group,
                                      std::size_t count) {
  std::vector<std::size_t> begin(count + 1);
  for (const uint32_t which : group) {
    ++begin[which + 1];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::size_t> next(begin.begin(), begin.end() - 1);
  std::vector<int64_t> arranged(durations_ns.size());
  for (std::size_t row = 0; row < durations_ns.size(); ++row) {
    arranged[next[group[row]]++] = durations_ns[row];
  }
  std::vector<Durations> result;
  result.reserve(count);
  for (std::size_t which = 0; which < count; ++which) {
    result.push_back(measure(std::span(arranged).subspan(begin[which], begin[which + 1] - begin[which])));
  }
  return result;
}

void fill_quantiles(Durations& known, std::span<BinCount> bins) {
  std::ranges::sort(bins, {}, &BinCount::bin);
  uint64_t count = 0;
  for (const BinCount& entry : bins) {
    count += entry.count;
  }
  const auto read = [&](uint64_t percent) {
    return std::clamp(quantile(bins, count, percent), std::min(known.min_ns, known.max_ns), known.max_ns);
  };
  known.p50_ns = read(50);
  known.p95_ns = read(95);
  known.p99_ns = read(99);
}

void merge(Durations& into, const Durations& other) noexcept {
  if (other.count == 0) {
    return;
  }
  into.min_ns = into.count == 0 ? other.min_ns : std::min(into.min_ns, other.min_ns);
  into.max_ns = into.count == 0 ? other.max_ns : std::max(into.max_ns, other.max_ns);
  into.count += other.count;
  into.total_ns += other.total_ns;
}

Grouping::Grouping(std::size_t rows) : slots_(kFirstSlots, kEmpty) { group_of_row_.reserve(rows); }

uint32_t Grouping::find(const GroupKey& key) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash(key) & mask;
  while (slots_[slot] != kEmpty) {
    if (groups_[slots_[slot]].key == key) {
      return slots_[slot];
    }
    slot = (slot + 1) & mask;
  }
  const auto group = static_cast<uint32_t>(groups_.size());
  slots_[slot] = group;
  groups_.push_back({key, 0, {}});
  counts_.push_back(0);
  if (groups_.size() * 2 > slots_.size()) {
    grow();
  }
  return group;
}

void Grouping::grow() {
  slots_.assign(slots_.size() * 2, kEmpty);
  const std::size_t mask = slots_.size() - 1;
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    std::size_t slot = hash(groups_[group].key) & mask;
    while (slots_[slot] != kEmpty) {
      slot = (slot + 1) & mask;
    }
    slots_[slot] = group;
  }
}

std::span<Group> Grouping::arrange(const int64_t* durations_ns) {
  std::vector<uint32_t> order(groups_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, {}, [&](uint32_t group) { return groups_[group].key; });

  arranged_.resize(group_of_row_.size());
  std::vector<int64_t*> next(groups_.size());
  int64_t* begin = arranged_.data();
  for (const uint32_t group : order) {
    next[group] = begin;
    groups_[group].durations_ns = {begin, counts_[group]};
    begin += counts_[group];
  }
  for (std::size_t row = 0; row < group_of_row_.size(); ++row) {
    *next[group_of_row_[row]]++ = durations_ns[row];
  }
  std::ranges::sort(groups_, {}, &Group::key);
  return groups_;
}

}  // namespace gpuscope::analysis
