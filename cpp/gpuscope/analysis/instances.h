// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// What each region came to: one entry a row of the region table, times in ns, memory in bytes.
///
/// Self leaves out what regions and driver calls inside have. Start/end ranges (kAsync) overlap whatever runs beside
/// them: they have no self time, no GPU work and no memory.
struct Instances {
  std::vector<int64_t> self_cpu_ns;
  std::vector<int64_t> device_ns;
  std::vector<int64_t> self_device_ns;
  std::vector<int64_t> cpu_bytes;  // taken from the host's allocator less what was given back
  std::vector<int64_t> self_cpu_bytes;
  std::vector<int64_t> device_bytes;  // likewise from the GPUs'
  std::vector<int64_t> self_device_bytes;
  std::vector<uint8_t> outermost;  // no region that it lies in has its name
};

Instances measure_instances(const store::Store& store);

/// For each region, how long its own thread was in the regions and driver calls directly inside it.
std::vector<int64_t> time_inside(const store::Store& store);

}  // namespace gpuscope::analysis
