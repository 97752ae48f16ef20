// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpuscope/exporters/chrome_arguments.h"
#include "gpuscope/exporters/chrome_events.h"
#include "gpuscope/exporters/chrome_fragments.h"
#include "gpuscope/exporters/launches.h"
#include "gpuscope/exporters/region_links.h"

namespace gpuscope::exporters {

/// Writes what threads of the program did.
class ChromeThreads {
 public:
  ChromeThreads(const store::Store& store, const RegionLinks& links, const Launches& launches,
                const ChromeFragments& fragments, ChromeArguments& arguments, ChromeEvents& events)
      : store_(store),
        links_(links),
        launches_(launches),
        fragments_(fragments),
        arguments_(arguments),
        events_(events) {}

  void write(const Strand& strand, uint64_t process);
  /// Ranges that nest in nothing, each as an asynchronous pair of events.
  void write_ranges(const Strand& strand, uint64_t process);

 private:
  void write_region(const Slice& slice);
  void write_call(const Slice& slice);
  void write_mark(const Slice& slice);
  void write_allocation(const Slice& slice);
  void put_region_arguments(uint32_t region);

  const store::Store& store_;
  const RegionLinks& links_;
  const Launches& launches_;
  const ChromeFragments& fragments_;
  ChromeArguments& arguments_;
  ChromeEvents& events_;
};

}  // namespace gpuscope::exporters
