// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome.h"

#include <charconv>
#include <string>
#include <unordered_set>
#include <utility>

#include "gpuscope/exporters/chrome_arguments.h"
#include "gpuscope/exporters/chrome_events.h"
#include "gpuscope/exporters/chrome_fragments.h"
#include "gpuscope/exporters/chrome_metadata.h"
#include "gpuscope/exporters/chrome_streams.h"
#include "gpuscope/exporters/chrome_threads.h"
#include "gpuscope/exporters/gpu_annotations.h"
#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/launches.h"
#include "gpuscope/exporters/region_links.h"
#include "gpuscope/exporters/timeline.h"

namespace gpuscope::exporters {
namespace {

using store::Store;

constexpr uint64_t kDeviceSortIndex = 5'000'000;  // torch's: devices stand below processes

class ChromeWriter {
 public:
  ChromeWriter(const Store& store, Write write)
      : store_(store),
        events_(std::move(write)),
        links_(store),
        annotations_(find_gpu_annotations(store, links_)),
        timeline_(lay_out(store, annotations_)),
        launches_(store),
        fragments_(store, links_),
        arguments_(store, links_) {}

  void write() {
    put_head(events_.out(), store_, timeline_.base_ns);
    events_.set_base(timeline_.base_ns);
    write_process();
    ChromeThreads threads(store_, links_, launches_, fragments_, arguments_, events_);
    for (const Strand& strand : timeline_.threads) {
      threads.write(strand, process_);
    }
    for (const Strand& strand : timeline_.ranges) {
      threads.write_ranges(strand, process_);
    }
    write_devices();
    ChromeStreams streams(store_, links_, annotations_, launches_, fragments_, arguments_, events_);
    for (const Strand& strand : timeline_.streams) {
      streams.write(strand, device_of(strand), "");
    }
    for (const Strand& strand : timeline_.waits) {
      streams.write(strand, device_of(strand), " (synchronization)");
    }
    events_.out().put("\n],\n\"traceName\":");
    events_.out().put(quoted(store_.find_info("process.argv")));
    events_.out().put("}\n");
    events_.out().flush();
  }

 private:
  template <class Visit>
  void each_device_strand(Visit&& visit) const {
    for (const auto* strands : {&timeline_.streams, &timeline_.waits}) {
      for (const Strand& strand : *strands) {
        visit(strand);
      }
    }
  }

  void write_process() {
    const std::string_view text = store_.find_info("process.id");
    std::from_chars(text.data(), text.data() + text.size(), process_);
    each_device_strand([&](const Strand& strand) {
      // A container's first processes have the numbers that devices have, and would be drawn as one with them.
      if (device_of(strand) == process_) {
        process_ = kFirstLaneTid;
      }
    });
    const std::string_view name = store_.find_info("process.argv");
    events_.put_name("process_name", process_, 0, name.empty() ? "python" : name);
    events_.put_label(process_, "CPU");
    events_.put_sort_index("process_sort_index", process_, 0, 0);
  }

  void write_devices() {
    std::unordered_set<uint32_t> seen;
    each_device_strand([&](const Strand& strand) {
      const uint32_t ordinal = device_of(strand);
      if (!seen.insert(ordinal).second) {
        return;
      }
      const uint32_t device = store_.track.device[strand.row];
      const std::string_view name = device < store_.device.size() ? store_.strings[store_.device.name[device]] : "";
      events_.put_name("process_name", ordinal, 0, name.empty() ? "GPU" : name);
      events_.put_label(ordinal, "GPU " + std::to_string(ordinal));
      events_.put_sort_index("process_sort_index", ordinal, 0, kDeviceSortIndex + ordinal);
    });
  }

  uint32_t device_of(const Strand& strand) const { return device_ordinal(store_, store_.track.device[strand.row]); }

  const Store& store_;
  ChromeEvents events_;
  RegionLinks links_;
  GpuAnnotations annotations_;
  Timeline timeline_;
  Launches launches_;
  ChromeFragments fragments_;
  ChromeArguments arguments_;
  uint64_t process_ = kFirstLaneTid;
};

}  // namespace

void write_chrome(const Store& store, Write write) { ChromeWriter(store, std::move(write)).write(); }

}  // namespace gpuscope::exporters
