// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gpuscope/base/events.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

// The labels of rows in trace viewers, and their ids and names there.

/// The process's id. `otherwise` if the recording does not contain it.
uint64_t process_id(const store::Store& store, uint64_t otherwise);

/// Its command line.
std::string_view process_label(const store::Store& store);

/// A thread's name, or a label with its number.
std::string thread_label(const store::Store& store, uint32_t thread);

/// The name of the device with that ordinal. Empty if the recording does not describe it.
std::string_view device_name(const store::Store& store, uint32_t ordinal);

/// "stream 7", or "context" for a row of `track` that represents all streams of a context.
std::string stream_label(const store::Store& store, uint32_t track);

/// The name of a lane of a track. Lanes count from 0.
std::string lane_label(const std::string& track, uint32_t lane);

/// torch.profiler's category of a region: `user_annotation`, `cpu_op`, or `python_function` for a module.
std::string_view region_category(base::RegionKind kind);

/// The label of a region's slice. For modules the last part of the path is first, "conv1 (ResNet.layer1.0.conv1)", as
/// slices are narrow and a model's paths begin alike. Numbers stay with the part before them: "layers.0".
std::string region_label(base::RegionKind kind, std::string_view name);

/// A row of `stack` in torch's format, "file(line): function" from the innermost frame, joined by ";".
std::string stack_label(const store::Store& store, uint32_t stack);

/// torch's name for a failed allocation.
inline constexpr std::string_view kOutOfMemory = "[OutOfMemory]";

/// The problems in a row's store::Flag bits, such as "no timestamps, incomplete". Empty if there are none.
std::string flag_label(uint16_t flags);

/// The limits of a multiprocessor of one kind of GPU.
struct MultiprocessorLimits {
  uint32_t threads;
  uint32_t blocks;
  uint32_t shared_bytes;           // of all its blocks
  uint32_t reserved_shared_bytes;  // per block, reserved by the system
  uint32_t shared_step_bytes;      // allocation unit of a block's shared memory
};

/// None for unknown compute capabilities.
std::optional<MultiprocessorLimits> multiprocessor_limits(uint32_t major, uint32_t minor);

struct Occupancy {
  double blocks_per_multiprocessor;
  double warps_per_multiprocessor;
  int percent;  // of a multiprocessor's threads, if the kernel fills it as well as its grid can
};

/// How a launch fills the GPU, estimated like torch.profiler. None if a block cannot run on such a multiprocessor.
std::optional<Occupancy> occupancy(const store::Variants::Row& variant, uint32_t multiprocessors,
                                   const MultiprocessorLimits& limits);

}  // namespace gpuscope::exporters
