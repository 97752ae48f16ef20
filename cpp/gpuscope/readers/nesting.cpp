// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/readers/nesting.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/values.h"

namespace gpuscope::readers {
namespace {

constexpr std::size_t kFirstSlots = 64;

}  // namespace

Nesting nest(const Spans& spans, std::span<const uint32_t> name, std::span<const uint32_t> kind) {
  const std::size_t rows = spans.start_ns.size();
  std::vector<uint32_t> order(rows);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t one, uint32_t other) {
    return std::tuple(spans.thread[one], spans.start_ns[one], -spans.duration_ns[one], one) <
           std::tuple(spans.thread[other], spans.start_ns[other], -spans.duration_ns[other], other);
  });
  Nesting found;
  found.around.assign(rows, store::kNone);
  found.path.assign(name.size(), store::kNone);
  RowNumbers paths(3);
  std::vector<uint32_t> inside;
  const auto end_of = [&](uint32_t row) { return spans.start_ns[row] + spans.duration_ns[row]; };
  for (const uint32_t row : order) {
    const auto has_ended = [&](uint32_t region) {
      return spans.thread[region] != spans.thread[row] || end_of(region) < spans.start_ns[row] ||
             (end_of(region) == spans.start_ns[row] && spans.duration_ns[region] != 0);
    };
    while (!inside.empty() && has_ended(inside.back())) {
      inside.pop_back();
    }
    // Nested, so the ends are sorted: finds the last one that does not end before this span.
    const auto around_row = std::partition_point(inside.begin(), inside.end(),
                                                 [&](uint32_t region) { return end_of(region) >= end_of(row); });
    const auto depth = static_cast<std::size_t>(around_row - inside.begin());
    const uint32_t around = depth == 0 ? store::kNone : inside[depth - 1];
    found.around[row] = around;
    if (row >= name.size()) {
      continue;  // a call may outlast a region that still contains others
    }
    inside.resize(depth);  // the innermost region is now this one, even for spans inside regions that it outlasts
    const int64_t parent = around == store::kNone ? int64_t{store::kNone} : found.path[around];
    found.path[row] = paths.number_of(std::array<int64_t, 3>{parent, name[row], kind[row]});
    inside.push_back(row);
  }
  const auto narrow = [&](std::size_t column) {
    const std::vector<int64_t>& values = paths.columns()[column];
    return std::vector<uint32_t>(values.begin(), values.end());
  };
  found.path_parent = narrow(0);
  found.path_name = narrow(1);
  found.path_kind = narrow(2);
  for (const uint32_t parent : found.path_parent) {
    found.path_depth.push_back(parent == store::kNone ? 0 : found.path_depth[parent] + 1);
  }
  return found;
}

RowNumbers::RowNumbers(std::size_t columns) : columns_(columns), slots_(kFirstSlots, store::kNone) {}

std::vector<uint32_t> RowNumbers::number(const std::vector<std::span<const int64_t>>& columns) {
  const std::size_t rows = columns.empty() ? 0 : columns.front().size();
  std::vector<uint32_t> numbers(rows);
  std::vector<int64_t> values(columns.size());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns.size(); ++column) {
      values[column] = columns[column][row];
    }
    numbers[row] = number_of(values);
  }
  return numbers;
}

uint32_t RowNumbers::number_of(std::span<const int64_t> row) {
  uint64_t hash = 0;
  for (const int64_t value : row) {
    hash = base::mix(hash ^ static_cast<uint64_t>(value));
  }
  const auto is_known = [&](uint32_t number) {
    return hashes_[number] == hash &&
           std::equal(row.begin(), row.end(), columns_.begin(),
                      [&](int64_t value, const std::vector<int64_t>& known) { return value == known[number]; });
  };
  std::size_t at = hash & (slots_.size() - 1);
  while (slots_[at] != store::kNone && !is_known(slots_[at])) {
    at = (at + 1) & (slots_.size() - 1);
  }
  if (slots_[at] != store::kNone) {
    return slots_[at];
  }
  const auto number = static_cast<uint32_t>(hashes_.size());
  slots_[at] = number;
  hashes_.push_back(hash);
  for (std::size_t column = 0; column < row.size(); ++column) {
    columns_[column].push_back(row[column]);
  }
  if (hashes_.size() * 2 > slots_.size()) {
    grow();
  }
  return number;
}

void RowNumbers::grow() {
  slots_.assign(slots_.size() * 2, store::kNone);
  for (uint32_t number = 0; number < hashes_.size(); ++number) {
    std::size_t at = hashes_[number] & (slots_.size() - 1);
    while (slots_[at] != store::kNone) {
      at = (at + 1) & (slots_.size() - 1);
    }
    slots_[at] = number;
  }
}

}  // namespace gpuscope::readers
