// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "gpuscope/analysis/summary.h"

namespace gpuscope::analysis {
namespace {

using store::kNone;

/// The sizes of each input: "[2,3][]" for "[[2, 3], [[4]]]". Empty brackets for lists of tensors and other values.
/// Empty if the text is no list.
std::string flat_shapes(std::string_view text) {
  std::string flat;
  std::string sizes;
  uint32_t depth = 0;
  bool has_input = false;
  bool is_shape = false;
  for (const char character : text) {
    if (character == ' ') {
      continue;
    }
    if (depth == 1 && (character == ',' || character == ']')) {
      if (has_input) {
        flat.append("[").append(is_shape ? sizes : "").append("]");
      }
      if (character == ']') {
        return flat;
      }
      has_input = is_shape = false;
      continue;
    }
    if (character == '[') {
      is_shape = depth == 1 && !has_input;
      has_input = depth > 0;
      sizes.clear();
      ++depth;
    } else if (depth == 0) {
      break;
    } else if (character == ']') {
      --depth;
    } else if (depth == 2 && (character == ',' || (character >= '0' && character <= '9'))) {
      sizes += character;
    } else {
      has_input = true;
      is_shape = false;
    }
  }
  return {};
}

/// A text of each region's details. kNone for none.
std::vector<uint32_t> texts_of_regions(const store::Store& store, std::span<const uint32_t> column) {
  std::vector<uint32_t> texts(store.region.size(), kNone);
  for (std::size_t row = 0; row < store.detail.size(); ++row) {
    if (store.detail.region[row] < texts.size()) {
      texts[store.detail.region[row]] = column[row];
    }
  }
  return texts;
}

/// Numbers for operator inputs by shapes, by overload, or by both. 0 for none.
class InputNumbers {
 public:
  InputNumbers(const store::Store& store, const RegionKeys& keys) : store_(store) {
    const std::size_t rows = store.detail.size();
    shapes_ = keys.shapes ? texts_of_regions(store, {store.detail.shapes.data(), rows}) : shapes_;
    overloads_ = keys.overloads ? texts_of_regions(store, {store.detail.overload.data(), rows}) : overloads_;
  }

  uint32_t of_region(std::size_t region) {
    const uint32_t shapes = shapes_.empty() ? 0 : of_shapes(shapes_[region]);
    if (overloads_.empty()) {
      return shapes;
    }
    return by_both_.try_emplace({shapes, overloads_[region]}, by_both_.size()).first->second;
  }

 private:
  /// One number for all texts with the same sizes.
  uint32_t of_shapes(uint32_t string) {
    if (string == kNone) {
      return 0;
    }
    const auto [known, added] = by_string_.try_emplace(string, 0);
    if (added) {
      known->second = by_sizes_.try_emplace(flat_shapes(store_.strings[string]), by_sizes_.size()).first->second;
    }
    return known->second;
  }

  const store::Store& store_;
  std::vector<uint32_t> shapes_, overloads_;  // by region; empty if not part of the key
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> by_both_{{{0, kNone}, 0}};
  std::unordered_map<uint32_t, uint32_t> by_string_;
  std::unordered_map<std::string, uint32_t> by_sizes_{{"", 0}};
};

/// Numbers for the innermost frames of call stacks. 0 for none.
class StackNumbers {
 public:
  StackNumbers(const store::Stacks& stacks, uint32_t frames)
      : stacks_(stacks), frames_(frames), number_of_(stacks.size(), kNone) {}

  uint32_t of(uint32_t stack) {
    if (stack >= number_of_.size()) {
      return 0;
    }
    if (number_of_[stack] == kNone) {
      std::vector<uint32_t> frames;
      for (uint32_t row = stack, left = frames_; left > 0; --left) {
        frames.insert(frames.end(), {stacks_.function[row], stacks_.file[row], stacks_.line[row]});
        if (stacks_.parent[row] >= row) {  // a caller's row precedes its callees'
          break;
        }
        row = stacks_.parent[row];
      }
      number_of_[stack] = by_frames_.try_emplace(std::move(frames), by_frames_.size()).first->second;
    }
    return number_of_[stack];
  }

 private:
  const store::Stacks& stacks_;
  uint32_t frames_;
  std::vector<uint32_t> number_of_;
  std::map<std::vector<uint32_t>, uint32_t> by_frames_{{{}, 0}};
};

}  // namespace

RegionGroups group_regions(const store::Store& store, const Instances& instances, std::span<const uint32_t> path_names,
                           const RegionKeys& keys) {
  const store::Regions& regions = store.region;
  const std::size_t count = regions.size();
  const CallPaths paths(store);
  InputNumbers inputs(store, keys);
  StackNumbers stacks(store.stack, keys.stack_frames);
  Grouping grouping(count);
  std::vector<NameStat> totals;
  for (std::size_t row = 0; row < count; ++row) {
    const uint32_t path = paths.valid(regions.path[row]);
    const uint32_t name = path == kNone ? kNone : path_names[path];
    const uint32_t group =
        grouping.add({name, inputs.of_region(row), keys.stack_frames > 0 ? stacks.of(instances.stack[row]) : 0});
    if (group == totals.size()) {
      totals.push_back({.kind = Kind::Region,
                        .name = name,
                        .region_kind = path == kNone ? 0 : paths.kind(path),
                        .first_row = static_cast<uint32_t>(row)});
    }
  }

  const std::span<const uint32_t> own_group = grouping.group_of_row();
  const auto uncounted = static_cast<uint32_t>(totals.size());  // collects rows that are counted as another
  RegionGroups result;
  result.group_of_row.resize(count);
  std::vector<uint32_t> group_of_duration(count);
  for (std::size_t row = 0; row < count; ++row) {
    result.group_of_row[row] = own_group[instances.counted_as[row]];
  }
  // Groups may split regions of one name.
  const bool by_name = !keys.shapes && keys.stack_frames == 0 && !keys.overloads;
  const std::vector<bool> outermost = by_name
                                          ? std::vector<bool>(instances.outermost.begin(), instances.outermost.end())
                                          : find_outermost({regions.parent.data(), count}, result.group_of_row);
  for (std::size_t row = 0; row < count; ++row) {
    const uint32_t counted_as = instances.counted_as[row];
    const uint32_t group = result.group_of_row[row];
    group_of_duration[row] = counted_as == row ? group : uncounted;
    NameStat& total = totals[group];
    total.self_cpu_ns += instances.self_cpu_ns[row];
    total.self_device_ns += instances.self_device_ns[row];
    total.self_cpu_bytes += instances.self_cpu_bytes[row];
    total.self_device_bytes += instances.self_device_bytes[row];
    total.is_top_level |= regions.parent[row] >= count;
    if (outermost[row]) {
      total.cpu_ns += regions.duration_ns[row];
      total.suspended_ns += instances.suspended(row);
      total.device_ns += instances.device_ns[row];
      total.cpu_bytes += instances.cpu_bytes[row];
      total.device_bytes += instances.device_bytes[row];
    }
  }

  const std::vector<Durations> durations =
      measure_groups(instances.durations(regions), group_of_duration, totals.size() + 1);
  std::vector<uint32_t> place(totals.size(), kNone);
  for (std::size_t group = 0; group < totals.size(); ++group) {
    if (totals[group].name != kNone && durations[group].count > 0) {
      place[group] = static_cast<uint32_t>(result.totals.size());
      totals[group].durations = durations[group];
      result.totals.push_back(totals[group]);
    }
  }
  for (uint32_t& group : result.group_of_row) {
    group = place[group];
  }
  return result;
}

}  // namespace gpuscope::analysis
