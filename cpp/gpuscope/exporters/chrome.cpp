// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpuscope/exporters/chrome_arguments.h"
#include "gpuscope/exporters/chrome_events.h"
#include "gpuscope/exporters/chrome_fragments.h"
#include "gpuscope/exporters/chrome_metadata.h"
#include "gpuscope/exporters/chrome_streams.h"
#include "gpuscope/exporters/chrome_threads.h"
#include "gpuscope/exporters/driver_memory.h"
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
        memory_(count_driver_memory(store)),
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
    for (const MemoryCounter& counter : memory_) {
      write_counter(counter);
    }
    events_.out().put("\n],\n\"traceName\":");
    events_.out().put(quoted(store_.find_info("process.argv")));
    events_.out().put("}\n");
    events_.out().flush();
  }

 private:
  template <class Visit>
  void each_device(Visit&& visit) const {
    for (const auto* strands : {&timeline_.streams, &timeline_.waits}) {
      for (const Strand& strand : *strands) {
        visit(device_of(strand));
      }
    }
    for (const MemoryCounter& counter : memory_) {
      if (counter.device != store::kNone) {
        visit(counter.device);
      }
    }
  }

  void write_process() {
    const std::string_view text = store_.find_info("process.id");
    std::from_chars(text.data(), text.data() + text.size(), process_);
    each_device([&](uint32_t ordinal) {
      // A container's first processes have the numbers that devices have, and would be drawn as one with them.
      if (ordinal == process_) {
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
    each_device([&](uint32_t ordinal) {
      if (!seen.insert(ordinal).second) {
        return;
      }
      const auto& ordinals = store_.device.ordinal;
      const auto row =
          static_cast<std::size_t>(std::find(ordinals.begin(), ordinals.end(), ordinal) - ordinals.begin());
      const std::string_view name = row < store_.device.size() ? store_.strings[store_.device.name[row]] : "";
      events_.put_name("process_name", ordinal, 0, name.empty() ? "GPU" : name);
      events_.put_label(ordinal, "GPU " + std::to_string(ordinal));
      events_.put_sort_index("process_sort_index", ordinal, 0, kDeviceSortIndex + ordinal);
    });
  }

  void write_counter(const MemoryCounter& counter) {
    const uint64_t process = counter.device == store::kNone ? process_ : counter.device;
    const std::string head =
        "{\"ph\":\"C\",\"name\":" + quoted(counter.name) + ",\"pid\":" + std::to_string(process) + ",\"tid\":0,\"ts\":";
    for (const MemoryCounter::Point& point : counter.points) {
      events_.next();
      events_.out().put(head);
      events_.out().put_micros(std::max(point.at_ns, timeline_.base_ns) - timeline_.base_ns);
      events_.put_pair(",\"args\":{\"bytes\":", point.bytes);
      events_.out().put("}}");
    }
  }

  uint32_t device_of(const Strand& strand) const { return device_ordinal(store_, store_.track.device[strand.row]); }

  const Store& store_;
  ChromeEvents events_;
  RegionLinks links_;
  GpuAnnotations annotations_;
  Timeline timeline_;
  std::vector<MemoryCounter> memory_;
  Launches launches_;
  ChromeFragments fragments_;
  ChromeArguments arguments_;
  uint64_t process_ = kFirstLaneTid;
};

}  // namespace

void write_chrome(const Store& store, Write write) { ChromeWriter(store, std::move(write)).write(); }

}  // namespace gpuscope::exporters
