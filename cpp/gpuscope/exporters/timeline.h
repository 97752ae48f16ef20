// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/exporters/gpu_annotations.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// The table a slice is a row of.
enum class Source : uint8_t {
  Region,
  Api,
  Mark,
  Allocation,
  Annotation,  // of GpuAnnotations
  Kernel,
  Memcpy,
  Memset,
  GraphLaunch,
  Sync
};

inline constexpr uint32_t kMaxLane = (1U << 24) - 1;

struct Slice {
  int64_t start_ns;
  int64_t end_ns;
  uint32_t row;
  uint32_t lane : 24;
  Source source : 8;
};

/// What one thread or one stream did: slices by start, each before those inside it. In one lane no two overlap unless
/// one lies within the other (threads) or at all (streams); trace viewers drop what breaks this.
struct Strand {
  uint32_t row;  // of the thread or track table, the first with this id
  uint32_t lanes;
  std::vector<Slice> slices;
};

struct Timeline {
  int64_t base_ns;  // no slice begins earlier
  std::vector<Strand> threads;
  std::vector<Strand> streams;
  std::vector<Strand> ranges;  // of each thread what it started that nests in nothing: Flag::kAsync
  std::vector<Strand> waits;   // synchronization, apart from the work of its stream that it overlaps
};

/// The number users know a device by.
uint32_t device_ordinal(const store::Store& store, uint32_t device);

/// Lays a recording out for trace viewers, with `annotations` on the streams where there are any. Throws
/// InvalidArgument for a recording that has totals and no events.
Timeline lay_out(const store::Store& store, const GpuAnnotations& annotations = {});

}  // namespace gpuscope::exporters
