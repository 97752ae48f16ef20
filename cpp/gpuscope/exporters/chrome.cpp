// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/exporters/chrome_fragments.h"
#include "gpuscope/exporters/chrome_metadata.h"
#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/exporters/launches.h"
#include "gpuscope/exporters/timeline.h"
#include "gpuscope/store/labels.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::Store;

constexpr uint32_t kFirstLaneTid = 1'000'000'000;  // past every thread id and stream number
constexpr uint32_t kDeviceSortIndex = 5'000'000;   // torch's: devices stand below processes

class ChromeWriter {
 public:
  ChromeWriter(const Store& store, Write write)
      : store_(store), out_(std::move(write)), timeline_(lay_out(store)), launches_(store), fragments_(store) {}

  void write() {
    put_head(out_, store_, timeline_.base_ns);
    write_process();
    for (const Strand& strand : timeline_.threads) {
      write_thread(strand);
    }
    write_devices();
    for (const Strand& strand : timeline_.streams) {
      write_stream(strand, "");
    }
    for (const Strand& strand : timeline_.waits) {
      write_stream(strand, " (synchronization)");
    }
    out_.put("\n],\n\"traceName\":");
    out_.put(quoted(store_.find_info("process.argv")));
    out_.put("}\n");
    out_.flush();
  }

 private:
  // -- processes -----------------------------------------------------------------------------------------------------
  void write_process() {
    const std::string_view text = store_.find_info("process.id");
    std::from_chars(text.data(), text.data() + text.size(), process_);
    for (const auto* strands : {&timeline_.streams, &timeline_.waits}) {
      for (const Strand& strand : *strands) {
        // A container's first processes have the numbers that devices have, and would be drawn as one with them.
        if (device_of(strand) == process_) {
          process_ = kFirstLaneTid;
        }
      }
    }
    const std::string_view name = store_.find_info("process.argv");
    put_name("process_name", process_, 0, name.empty() ? "python" : name);
    put_label(process_, "CPU");
    put_sort_index("process_sort_index", process_, 0, 0);
  }

  void write_devices() {
    std::vector<uint32_t> seen;
    for (const auto* strands : {&timeline_.streams, &timeline_.waits}) {
      for (const Strand& strand : *strands) {
        const uint32_t ordinal = device_of(strand);
        if (std::find(seen.begin(), seen.end(), ordinal) != seen.end()) {
          continue;
        }
        seen.push_back(ordinal);
        const uint32_t device = store_.track.device[strand.row];
        const std::string_view name = device < store_.device.size() ? store_.strings[store_.device.name[device]] : "";
        put_name("process_name", ordinal, 0, name.empty() ? "GPU" : name);
        put_label(ordinal, "GPU " + std::to_string(ordinal));
        put_sort_index("process_sort_index", ordinal, 0, kDeviceSortIndex + ordinal);
      }
    }
  }

  uint32_t device_of(const Strand& strand) const { return device_ordinal(store_, store_.track.device[strand.row]); }

  void put_name(std::string_view what, uint64_t process, uint64_t thread, std::string_view name) {
    next_event();
    put_metadata(out_, what, process, thread, "\"name\":" + quoted(name));
  }
  void put_label(uint64_t process, std::string_view label) {
    next_event();
    put_metadata(out_, "process_labels", process, 0, "\"labels\":" + quoted(label));
  }
  void put_sort_index(std::string_view what, uint64_t process, uint64_t thread, uint64_t index) {
    next_event();
    put_metadata(out_, what, process, thread, "\"sort_index\":" + std::to_string(index));
  }

  // -- events --------------------------------------------------------------------------------------------------------
  void write_thread(const Strand& strand) {
    const uint64_t system_id = store_.thread.system_id[strand.row];
    const std::string_view own_name = store_.strings[store_.thread.name[strand.row]];
    const std::string name = own_name.empty() ? "thread " + std::to_string(system_id) : std::string(own_name);
    open_lanes(strand, process_, system_id, name);
    for (const Slice& slice : strand.slices) {
      const std::string_view place = places_[slice.lane];
      switch (slice.source) {
        case Source::Region:
          write_region(slice, place);
          break;
        case Source::Api:
          write_call(slice, place);
          break;
        default:
          write_mark(slice, place);
          break;
      }
    }
  }

  void write_stream(const Strand& strand, const std::string& suffix) {
    const uint32_t stream = store_.track.stream[strand.row];
    const std::string name = (stream == kNone ? "context" : "stream " + std::to_string(stream)) + suffix;
    open_lanes(strand, device_of(strand), suffix.empty() && stream != kNone ? stream : next_tid_++, name);
    for (const Slice& slice : strand.slices) {
      const std::string_view place = places_[slice.lane];
      switch (slice.source) {
        case Source::Kernel:
          write_kernel(slice, place);
          break;
        case Source::Memcpy:
          write_copy(slice, place);
          break;
        case Source::Memset:
          write_fill(slice, place);
          break;
        case Source::GraphLaunch:
          write_graph(slice, place);
          break;
        default:
          write_sync(slice, place);
          break;
      }
    }
  }

  /// Names the lanes of a strand and prepares what each event in them repeats.
  void open_lanes(const Strand& strand, uint64_t process, uint64_t first_tid, const std::string& name) {
    places_.clear();
    for (uint32_t lane = 0; lane < strand.lanes; ++lane) {
      const uint64_t tid = lane == 0 ? first_tid : next_tid_++;
      const std::string suffix = lane == 0 ? "" : " (lane " + std::to_string(lane + 1) + ")";
      put_name("thread_name", process, tid, name + suffix);
      put_sort_index("thread_sort_index", process, tid, next_sort_index_++);
      places_.push_back(",\"pid\":" + std::to_string(process) + ",\"tid\":" + std::to_string(tid) + ",\"ts\":");
    }
  }

  void write_region(const Slice& slice, std::string_view place) {
    begin(fragments_.region(store_.region.path[slice.row]), place, slice);
    const std::string notes = flag_label(store_.region.flags[slice.row]);
    if (!notes.empty()) {
      out_.put(",\"args\":{\"notes\":\"");
      out_.put(notes);
      out_.put("\"}");
    }
    out_.put('}');
  }

  void write_call(const Slice& slice, std::string_view place) {
    const uint32_t correlation = store_.api.correlation[slice.row];
    begin(fragments_.call(store_.api.call[slice.row]), place, slice);
    put_pair(",\"args\":{\"correlation\":", correlation);
    out_.put(fragments_.call_arguments(store_.api.call[slice.row]));
    out_.put("}}");
    if (launches_.has_work(slice.row)) {
      put_arrow("s", "", correlation, place, slice.start_ns);
    }
  }

  void write_mark(const Slice& slice, std::string_view place) {
    next_event();
    out_.put("{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"mark\",\"name\":");
    out_.put(quoted(store_.strings[store_.mark.name[slice.row]]));
    out_.put(place);
    out_.put_micros(slice.start_ns - timeline_.base_ns);
    out_.put('}');
  }

  void write_kernel(const Slice& slice, std::string_view place) {
    const auto row = store_.kernel[slice.row];
    begin(fragments_.kernel(row.variant), place, slice);
    put_work(row);
    out_.put(fragments_.kernel_arguments(row.variant));
    end_work(slice, row, place);
  }

  void write_copy(const Slice& slice, std::string_view place) {
    const auto row = store_.memcpy[slice.row];
    begin(fragments_.copy(row.kind, row.source, row.destination), place, slice);
    put_work(row);
    put_bytes(row.bytes, row.duration_ns);
    if (row.peer != 255) {
      put_pair(",\"peer device\":", row.peer);
    }
    end_work(slice, row, place);
  }

  void write_fill(const Slice& slice, std::string_view place) {
    const auto row = store_.memset[slice.row];
    begin("{\"ph\":\"X\",\"cat\":\"gpu_memset\",\"name\":\"Memset\"", place, slice);
    put_work(row);
    put_bytes(row.bytes, row.duration_ns);
    put_pair(",\"value\":", row.value);
    end_work(slice, row, place);
  }

  void write_graph(const Slice& slice, std::string_view place) {
    const auto row = store_.graph_launch[slice.row];
    begin("{\"ph\":\"X\",\"cat\":\"graph\",\"name\":\"CUDA graph\"", place, slice);
    put_work(row);
    put_pair(",\"graph id\":", row.graph);
    end_work(slice, row, place);
  }

  void write_sync(const Slice& slice, std::string_view place) {
    const auto row = store_.sync[slice.row];
    begin("{\"ph\":\"X\",\"cat\":\"cuda_sync\",\"name\":" + quoted(store::sync_name(store::SyncKind{row.kind})), place,
          slice);
    out_.put(fragments_.track(row.track));
    out_.put_number(row.correlation);
    out_.put(",\"cuda_sync_kind\":");
    out_.put(quoted(store::sync_name(store::SyncKind{row.kind})));
    out_.put(fragments_.region_argument(region_path(row.region)));
    out_.put("}}");
  }

  // -- parts of events -----------------------------------------------------------------------------------------------
  void begin(std::string_view head, std::string_view place, const Slice& slice) {
    next_event();
    out_.put(head);
    out_.put(place);
    out_.put_micros(slice.start_ns - timeline_.base_ns);
    out_.put(",\"dur\":");
    out_.put_micros(slice.end_ns - slice.start_ns);
  }

  template <class Row>
  void put_work(const Row& row) {
    out_.put(fragments_.track(row.track));
    out_.put_number(row.correlation);
  }

  template <class Row>
  void end_work(const Slice& slice, const Row& row, std::string_view place) {
    out_.put(fragments_.region_argument(region_path(row.region)));
    fragments_.put_graph_node(out_, slice.source, slice.row);
    if (row.flags != 0) {
      const std::string notes = flag_label(row.flags);
      out_.put(notes.empty() ? "" : ",\"notes\":\"" + notes + "\"");
    }
    out_.put("}}");
    if (launches_.is_known(row.correlation)) {
      put_arrow("f", ",\"bp\":\"e\"", row.correlation, place, slice.start_ns);
    }
  }

  void put_bytes(uint64_t bytes, int64_t duration_ns) {
    constexpr double kMost = 1e15;  // a damaged size must not overflow
    put_pair(",\"bytes\":", bytes);
    if (duration_ns > 0) {
      // Bytes a ns are GB a s; written with three decimals, as torch does.
      const double thousandths = 1000.0 * static_cast<double>(bytes) / static_cast<double>(duration_ns);
      out_.put(",\"memory bandwidth (GB/s)\":");
      out_.put_micros(static_cast<int64_t>(std::min(thousandths, kMost)));
    }
  }

  void put_arrow(std::string_view phase, std::string_view binding, uint32_t id, std::string_view place, int64_t at_ns) {
    next_event();
    out_.put("{\"ph\":\"");
    out_.put(phase);
    put_pair("\",\"id\":", id);
    out_.put(place);
    out_.put_micros(at_ns - timeline_.base_ns);
    out_.put(",\"cat\":\"ac2g\",\"name\":\"ac2g\"");
    out_.put(binding);
    out_.put('}');
  }

  uint32_t region_path(uint32_t region) const { return region == kNone ? kNone : store_.region.path[region]; }

  void put_pair(std::string_view key, std::integral auto value) {
    out_.put(key);
    out_.put_number(value);
  }

  void next_event() {
    out_.cut();
    out_.put(first_ ? "" : ",\n");
    first_ = false;
  }

  const Store& store_;
  Output out_;
  Timeline timeline_;
  Launches launches_;
  ChromeFragments fragments_;
  std::vector<std::string> places_;
  uint64_t process_ = kFirstLaneTid;
  uint64_t next_tid_ = kFirstLaneTid;
  uint32_t next_sort_index_ = 0;
  bool first_ = true;
};

}  // namespace

void write_chrome(const Store& store, Write write) { ChromeWriter(store, std::move(write)).write(); }

}  // namespace gpuscope::exporters
