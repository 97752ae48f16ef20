// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// How functions of Python, regions and driver calls lie in each other by their times; kNone for "in none of these".
struct FunctionNesting {
  // One entry a row of the table of functions; times in ns.
  std::vector<int64_t> self_cpu_ns;   // without functions, regions and calls inside
  std::vector<int64_t> total_cpu_ns;  // 0 of those that lie in another of their name
  std::vector<uint32_t> caller;       // the function directly around
  std::vector<uint32_t> region;       // or the region, which then lies in the caller
  // The function directly around each region and each driver call; none where a region is.
  std::vector<uint32_t> region_caller;
  std::vector<uint32_t> call_caller;
};

FunctionNesting nest_functions(const store::Store& store);

}  // namespace gpuscope::analysis
