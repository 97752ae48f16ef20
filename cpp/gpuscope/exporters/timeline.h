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

/// Annotations on the GPU: for each annotation and stream, the time from the first to the last work launched inside it.
/// Rows by start, outer before inner annotations.
struct GpuAnnotations {
  std::vector<int64_t> start_ns;
  std::vector<int64_t> duration_ns;
  std::vector<uint32_t> region;
  std::vector<uint16_t> track;

  std::size_t size() const noexcept { return start_ns.size(); }
};

GpuAnnotations find_gpu_annotations(const store::Store& store, const Links& links);

/// A frame shared by consecutive samples of a thread, with all frames around it.
struct SampledCall {
  uint32_t stack;
  uint32_t depth;  // number of frames around it, including itself
  uint64_t count;  // number of samples
  int64_t cpu_ns;  // on a CPU
};

struct Timeline {
  int64_t base_ns;  // no slice begins earlier
  std::vector<Track> threads;
  std::vector<Track> ranges;  // per thread, ranges without nesting: Flag::kAsync
  std::vector<Track> streams;
  std::vector<Track> syncs;    // synchronization, separate from the work of its stream that it overlaps
  std::vector<Track> samples;  // of Python, one track per thread; rows index `sampled_calls`
  std::vector<SampledCall> sampled_calls;
};

/// Arranges a recording for trace viewers, with `annotations` on the streams, if any. Throws InvalidArgument for a
/// recording with totals but without events.
Timeline lay_out(const store::Store& store, const GpuAnnotations& annotations = {});

struct Window {
  int64_t start_ns;
  int64_t end_ns;
};

/// The recorded time span: at least the time of all events. It equals that time if the recording contains no span, or
/// only the end of a longer one.
Window find_window(const store::Store& store, const Timeline& timeline);

/// A call of a coroutine or generator, from the start of its first region to its end.
struct SuspendedCall {
  uint32_t region;
  int64_t end_ns;
};

/// The suspended calls, by first region. Omits unknown threads.
std::vector<SuspendedCall> find_suspended_calls(const store::Store& store);

/// Bytes over time, drawn by viewers.
struct MemoryCounter {
  struct Point {
    int64_t at_ns;
    uint64_t bytes;
  };
  std::string name;           // "GPU 0 memory, driver"
  uint32_t device;            // its ordinal; store::kNone for host memory
  std::vector<Point> points;  // by time, the first at the beginning of the recording
};

/// Driver memory held by libraries: per device, managed, pinned, and per CUDA pool. Counts allocations made or freed in
/// the recording. Memory that is only freed in it counts from its beginning.
std::vector<MemoryCounter> count_driver_memory(const store::Store& store);

/// A hardware counter over time.
struct HardwareCounter {
  struct Point {
    int64_t at_ns;
    double value;
  };
  std::string name;  // of the metric
  std::string unit;
  uint32_t device;            // its ordinal
  std::vector<Point> points;  // by time: the beginning of each sample, and 0 if none follows
};

/// Passes on the NVML figures of each device, then each metric of each device. Sums are given per second. Values that
/// are not finite are omitted.
void each_hardware_counter(const store::Store& store, const std::function<void(const HardwareCounter&)>& visit);

/// The ordinals of all devices with tracks or counters, in the order of their first track.
std::vector<uint32_t> find_devices(const store::Store& store, const Timeline& timeline,
                                   const std::vector<MemoryCounter>& memory);

}  // namespace gpuscope::exporters
