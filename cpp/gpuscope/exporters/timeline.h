// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpuscope/exporters/lanes.h"
#include "gpuscope/exporters/links.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// What annotations of the program look like from the GPU: of each and on each stream, the time from the first to the
/// last of the work that was launched within it. Rows by start, an outer annotation before those inside it.
struct GpuAnnotations {
  std::vector<int64_t> start_ns;
  std::vector<int64_t> duration_ns;
  std::vector<uint32_t> region;
  std::vector<uint16_t> track;

  std::size_t size() const noexcept { return start_ns.size(); }
};

GpuAnnotations find_gpu_annotations(const store::Store& store, const Links& links);

/// A slice of samples: a frame that consecutive samples of a thread have in common, with all frames around it.
struct SampledCall {
  uint32_t stack;
  uint32_t depth;  // how many frames are around it, itself included
  uint64_t count;  // how many samples found it
  int64_t cpu_ns;  // how long it was on a CPU
};

struct Timeline {
  int64_t base_ns;  // no slice begins earlier
  std::vector<Track> threads;
  std::vector<Track> ranges;  // of each thread what it started that nests in nothing: Flag::kAsync
  std::vector<Track> streams;
  std::vector<Track> syncs;    // synchronization, apart from the work of its stream that it overlaps
  std::vector<Track> samples;  // of Python, a track a thread; rows are those of `sampled_calls`
  std::vector<SampledCall> sampled_calls;
};

/// Lays a recording out for trace viewers, with `annotations` on the streams where there are any. Throws
/// InvalidArgument for a recording that has totals and no events.
Timeline lay_out(const store::Store& store, const GpuAnnotations& annotations = {});

struct Window {
  int64_t start_ns;
  int64_t end_ns;
};

/// From when to when was recorded: at least the time of all events, which is all of it where the recording does not
/// say more, or is the end of something longer.
Window find_window(const store::Store& store, const Timeline& timeline);

/// A call of a coroutine or generator, from the start of its first region to its end.
struct SuspendedCall {
  uint32_t region;
  int64_t end_ns;
};

/// The calls that were suspended, by their first region. Those of threads that are not known are left out.
std::vector<SuspendedCall> find_suspended_calls(const store::Store& store);

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

/// What the hardware counted over time.
struct HardwareCounter {
  struct Point {
    int64_t at_ns;
    double value;
  };
  std::string name;  // of the metric
  std::string unit;
  uint32_t device;            // its ordinal
  std::vector<Point> points;  // in order of time: where a sample begins, and 0 where none follows
};

/// Hands over what NVML told of each device, then each metric of each, one at a time. Sums are given per second; what
/// is no number is left out.
void each_hardware_counter(const store::Store& store, const std::function<void(const HardwareCounter&)>& visit);

/// The ordinals of all devices that something is drawn of, in the order of their first track.
std::vector<uint32_t> find_devices(const store::Store& store, const Timeline& timeline,
                                   const std::vector<MemoryCounter>& memory);

}  // namespace gpuscope::exporters
