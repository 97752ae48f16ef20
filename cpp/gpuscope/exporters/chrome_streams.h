// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gpuscope/exporters/chrome_arguments.h"
#include "gpuscope/exporters/chrome_events.h"
#include "gpuscope/exporters/chrome_fragments.h"
#include "gpuscope/exporters/gpu_annotations.h"
#include "gpuscope/exporters/launches.h"
#include "gpuscope/exporters/region_links.h"

namespace gpuscope::exporters {

/// Writes what ran on streams of GPUs.
class ChromeStreams {
 public:
  ChromeStreams(const store::Store& store, const RegionLinks& links, const GpuAnnotations& annotations,
                const Launches& launches, ChromeFragments& fragments, ChromeArguments& arguments, ChromeEvents& events)
      : store_(store),
        links_(links),
        annotations_(annotations),
        launches_(launches),
        fragments_(fragments),
        arguments_(arguments),
        events_(events) {}

  /// `suffix` follows the stream's name, and gives it a line of its own.
  void write(const Strand& strand, uint64_t device, const std::string& suffix);

 private:
  void write_annotation(const Slice& slice);
  void write_kernel(const Slice& slice);
  void write_copy(const Slice& slice);
  void write_fill(const Slice& slice);
  void write_graph(const Slice& slice);
  void write_sync(const Slice& slice);

  template <class Row>
  void put_work(const Row& row);
  template <class Row>
  void end_work(const Slice& slice, const Row& row);
  void put_bytes(uint64_t bytes, int64_t duration_ns);
  std::string_view region_argument(uint32_t region) const {
    return region == store::kNone ? std::string_view{} : fragments_.region_argument(store_.region.path[region]);
  }

  const store::Store& store_;
  const RegionLinks& links_;
  const GpuAnnotations& annotations_;
  const Launches& launches_;
  ChromeFragments& fragments_;
  ChromeArguments& arguments_;
  ChromeEvents& events_;
};

}  // namespace gpuscope::exporters
