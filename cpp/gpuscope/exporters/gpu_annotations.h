// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpuscope/exporters/region_links.h"
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

GpuAnnotations find_gpu_annotations(const store::Store& store, const RegionLinks& links);

}  // namespace gpuscope::exporters
