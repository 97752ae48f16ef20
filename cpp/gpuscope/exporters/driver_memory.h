// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Bytes over time, which viewers draw.
struct MemoryCounter {
  struct Point {
    int64_t at_ns;
    uint64_t bytes;
  };
  std::string name;           // "GPU 0 memory, driver"
  uint32_t device;            // its ordinal; store::kNone for memory of the host
  std::vector<Point> points;  // in order of time, the first at the beginning of all
};

/// What libraries held of the driver's memory: of each device, managed, pinned, and in each CUDA pool. Counted are the
/// allocations that the recording saw made or freed; those only freed in it count from its beginning.
std::vector<MemoryCounter> count_driver_memory(const store::Store& store);

}  // namespace gpuscope::exporters
