// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpuscope/base/names.h"

namespace gpuscope::bindings {

/// Regions as base::current_region tells them, as a column of numbers and a list of the names that these count; the
/// first is "", no region.
class RegionColumn {
 public:
  uint32_t number_of(uint32_t region) {
    const auto [found, is_new] = numbers_.try_emplace(region, static_cast<uint32_t>(names_.size()));
    if (is_new) {
      names_.push_back(base::Names::process().text(region - 1));
    }
    return found->second;
  }
  const std::vector<std::string>& names() const noexcept { return names_; }

 private:
  std::unordered_map<uint32_t, uint32_t> numbers_{{0, 0}};
  std::vector<std::string> names_{""};
};

}  // namespace gpuscope::bindings
