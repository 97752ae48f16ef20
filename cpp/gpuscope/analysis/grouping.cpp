// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/grouping.h"

#include <algorithm>
#include <numeric>

namespace gpuscope::analysis {
namespace {

constexpr uint32_t kEmpty = UINT32_MAX;
constexpr std::size_t kFirstSlots = 256;

std::size_t hash(const GroupKey& key) noexcept {
  uint64_t mixed = (uint64_t{key.name} << 32 | key.path) * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  mixed = (mixed ^ (mixed >> 32) ^ key.capture) * 0x9E3779B97F4A7C15ULL;
  return mixed >> 32;
}

}  // namespace

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
