// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// What a multiprocessor of one kind of GPU holds at most.
struct MultiprocessorLimits {
  uint32_t threads;
  uint32_t blocks;
  uint32_t shared_bytes;           // of all its blocks
  uint32_t reserved_shared_bytes;  // which the system takes of each block's
  uint32_t shared_step_bytes;      // a block's shared memory comes in these steps
};

/// None for compute capabilities that this version does not know.
std::optional<MultiprocessorLimits> multiprocessor_limits(uint32_t major, uint32_t minor);

struct Occupancy {
  double blocks_per_multiprocessor;
  double warps_per_multiprocessor;
  int percent;  // of the threads a multiprocessor holds, while the kernel fills it as well as its grid can
};

/// How a launch fills the GPU, as torch.profiler estimates it. None where a block cannot run on such a multiprocessor.
std::optional<Occupancy> occupancy(const store::Variants::Row& variant, uint32_t multiprocessors,
                                   const MultiprocessorLimits& limits);

}  // namespace gpuscope::exporters
