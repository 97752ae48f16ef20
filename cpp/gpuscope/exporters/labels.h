// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gpuscope/base/event_log.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

// What trace viewers show for rows, and the numbers and names that they go by there.

/// The process's id; `otherwise` in a recording that does not know it.
uint64_t process_id(const store::Store& store, uint64_t otherwise);

/// Its command line.
std::string_view process_label(const store::Store& store);

/// A thread's own name, or one that has its number.
std::string thread_label(const store::Store& store, uint32_t thread);

/// The name of the device of that ordinal; empty for one that the recording does not describe.
std::string_view device_name(const store::Store& store, uint32_t ordinal);

/// "stream 7", or "context" for a row of `track` that stands for all streams of one.
std::string stream_label(const store::Store& store, uint32_t track);

/// The name of one of the lanes of a track, counted from 0.
std::string lane_label(const std::string& track, uint32_t lane);

/// The category torch.profiler gives a region: `user_annotation`, `cpu_op`, or `python_function` for a module.
std::string_view region_category(base::RegionKind kind);

/// What a slice of a region says. Of a module the last part of its path first, "conv1 (ResNet.layer1.0.conv1)": slices
/// are narrow, and the paths of a model begin alike. A number goes with the part before it, as "layers.0".
std::string region_label(base::RegionKind kind, std::string_view name);

/// A row of `stack` as torch writes it, "file(line): function" from the innermost frame on, joined by ";".
std::string stack_label(const store::Store& store, uint32_t stack);

/// torch's name for an allocation that failed.
inline constexpr std::string_view kOutOfMemory = "[OutOfMemory]";

/// What a row's store::Flag bits say against it, as "no timestamps, incomplete"; empty when there is nothing.
std::string flag_label(uint16_t flags);

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
