// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/perfetto.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/exporters/driver_memory.h"
#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/exporters/perfetto_describe.h"
#include "gpuscope/exporters/perfetto_sequence.h"
#include "gpuscope/exporters/timeline.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::Store;
using namespace perfetto;

constexpr uint64_t kRootSequence = 1;

class PerfettoWriter {
 public:
  PerfettoWriter(const Store& store, Write write)
      : store_(store),
        out_(std::move(write)),
        proto_(out_),
        timeline_(lay_out(store)),
        names_(store),
        describer_(store, names_),
        sequence_(out_, names_) {}

  void write() {
    write_clocks();
    write_process();
    for (const Strand& strand : timeline_.threads) {
      write_thread(strand);
    }
    for (const Strand& strand : timeline_.ranges) {
      write_ranges(strand);
    }
    write_memory();
    write_driver_memory();
    for (const Strand& strand : timeline_.streams) {
      write_stream(strand, "");
    }
    for (const Strand& strand : timeline_.waits) {
      write_stream(strand, " (synchronization)");
    }
    out_.flush();
  }

 private:
  // -- tracks --------------------------------------------------------------------------------------------------------
  // The viewer's time line is the time since the epoch, as it is the one clock that recordings keep.
  void write_clocks() {
    const std::size_t in_packet = proto_.begin(kTracePacket);
    proto_.number(packet::kSequence, kRootSequence);
    const std::size_t in_snapshot = proto_.begin(packet::kClockSnapshot);
    for (const uint64_t clock : {kBoottime, kRealtime}) {
      const std::size_t in_clock = proto_.begin(snapshot::kClock);
      proto_.number(snapshot::kClockId, clock);
      proto_.number(snapshot::kTimestamp, static_cast<uint64_t>(timeline_.base_ns));
      proto_.end(in_clock);
    }
    proto_.end(in_snapshot);
    proto_.end(in_packet);
  }

  void write_process() {
    const std::string_view text = store_.find_info("process.id");
    std::from_chars(text.data(), text.data() + text.size(), process_);
    const std::string_view name = store_.find_info("process.argv");
    process_track_ = describe_track(0, {}, [&] {
      const std::size_t in_process = proto_.begin(descriptor::kProcess);
      proto_.number(process::kPid, process_);
      proto_.text(process::kName, valid_utf8(name.empty() ? "python" : name));
      proto_.end(in_process);
    });
  }

  void write_thread(const Strand& strand) {
    const uint64_t system_id = store_.thread.system_id[strand.row];
    const std::string name = valid_utf8(thread_label(store_, strand.row));
    uint64_t thread_track = 0;
    each_lane(strand, [&](uint32_t lane, const std::vector<Slice>& slices) {
      if (lane == 0) {
        thread_track = describe_track(process_track_, {}, [&] {
          const std::size_t in_thread = proto_.begin(descriptor::kThread);
          proto_.number(thread::kPid, process_);
          proto_.number(thread::kTid, system_id & INT32_MAX);
          proto_.text(thread::kName, name);
          proto_.end(in_thread);
        });
        write_events(thread_track, slices);
      } else {
        write_events(describe_track(thread_track, lane_name(name, lane), [] {}), slices);
      }
    });
  }

  void write_ranges(const Strand& strand) {
    const std::string name = valid_utf8(thread_label(store_, strand.row)) + " (ranges)";
    each_lane(strand, [&](uint32_t lane, const std::vector<Slice>& slices) {
      write_events(describe_track(process_track_, lane_name(name, lane), [] {}), slices);
    });
  }

  /// How much of each memory was given out, and how much its allocator held.
  void write_memory() {
    std::map<uint32_t, std::vector<uint32_t>> rows;
    for (uint32_t row = 0; row < store_.allocation.size(); ++row) {
      rows[store_.allocation.ordinal[row]].push_back(row);
    }
    for (auto& [ordinal, found] : rows) {
      std::stable_sort(found.begin(), found.end(), [&](uint32_t a, uint32_t b) {
        return store_.allocation.start_ns[a] < store_.allocation.start_ns[b];
      });
      const bool on_host = ordinal == kNone;
      const uint64_t parent = on_host ? process_track_ : device_track(ordinal);
      const std::string name = on_host ? "host memory " : "memory ";
      write_counter(parent, name + "allocated", found, store_.allocation.allocated_bytes);
      write_counter(parent, name + "reserved", found, store_.allocation.reserved_bytes);
    }
  }

  void write_driver_memory() {
    for (const MemoryCounter& counter : count_driver_memory(store_)) {
      begin_counter(counter.device == kNone ? process_track_ : device_track(counter.device), counter.name);
      for (const MemoryCounter::Point& point : counter.points) {
        sequence_.put_counter(std::max(point.at_ns, timeline_.base_ns), point.bytes);
      }
    }
  }

  void write_counter(uint64_t parent, const std::string& name, const std::vector<uint32_t>& rows,
                     const store::Column<uint64_t>& values) {
    begin_counter(parent, name);
    for (const uint32_t row : rows) {
      sequence_.put_counter(std::max(store_.allocation.start_ns[row], timeline_.base_ns), values[row]);
    }
  }

  void begin_counter(uint64_t parent, const std::string& name) {
    const uint64_t track = describe_track(parent, name, [&] {
      proto_.number(descriptor::kRank, next_rank_++);
      const std::size_t in_counter = proto_.begin(descriptor::kCounter);
      proto_.number(counter::kUnit, counter::kBytes);
      proto_.end(in_counter);
    });
    sequence_.begin_track(track, timeline_.base_ns);
  }

  void write_stream(const Strand& strand, const std::string& suffix) {
    const uint64_t device = device_track(device_ordinal(store_, store_.track.device[strand.row]));
    const uint32_t stream = store_.track.stream[strand.row];
    const std::string name = (stream == kNone ? "context" : "stream " + std::to_string(stream)) + suffix;
    each_lane(strand, [&](uint32_t lane, const std::vector<Slice>& slices) {
      const uint64_t track =
          describe_track(device, lane_name(name, lane), [&] { proto_.number(descriptor::kRank, next_rank_++); });
      write_events(track, slices);
    });
  }

  static std::string lane_name(const std::string& name, uint32_t lane) {
    return lane == 0 ? name : name + " (lane " + std::to_string(lane + 1) + ")";
  }

  uint64_t device_track(uint32_t ordinal) {
    uint64_t& track = device_tracks_[ordinal];
    if (track == 0) {
      std::string name = "GPU " + std::to_string(ordinal);
      for (std::size_t device = 0; device < store_.device.size(); ++device) {
        if (store_.device.ordinal[device] == ordinal) {
          name += ": " + valid_utf8(store_.strings[store_.device.name[device]]);
          break;
        }
      }
      track = describe_track(0, name, [&] { proto_.number(descriptor::kChildOrdering, kExplicitOrder); });
    }
    return track;
  }

  template <class PutRest>
  uint64_t describe_track(uint64_t parent, std::string_view name, PutRest&& put_rest) {
    const uint64_t track = ++tracks_;
    const std::size_t in_packet = proto_.begin(kTracePacket);
    proto_.number(packet::kSequence, kRootSequence);
    const std::size_t in_descriptor = proto_.begin(packet::kTrackDescriptor);
    proto_.number(descriptor::kUuid, track);
    if (parent != 0) {
      proto_.number(descriptor::kParent, parent);
    }
    if (!name.empty()) {
      proto_.text(descriptor::kName, name);
    }
    put_rest();
    proto_.end(in_descriptor);
    proto_.end(in_packet);
    return track;
  }

  template <class Visit>
  static void each_lane(const Strand& strand, Visit&& visit) {
    if (strand.lanes == 1) {
      visit(0U, strand.slices);
      return;
    }
    std::vector<std::vector<Slice>> lanes(strand.lanes);
    for (const Slice& slice : strand.slices) {
      lanes[slice.lane].push_back(slice);
    }
    for (uint32_t lane = 0; lane < strand.lanes; ++lane) {
      visit(lane, lanes[lane]);
    }
  }

  // -- events --------------------------------------------------------------------------------------------------------
  void write_events(uint64_t track, const std::vector<Slice>& slices) {
    sequence_.begin_track(track, timeline_.base_ns);
    open_until_ns_.clear();
    for (const Slice& slice : slices) {
      if (slice.source == Source::Allocation) {
        continue;  // they have counters
      }
      close_slices(slice.start_ns);
      const uint32_t name = describer_.describe(slice, details_);
      if (slice.source == Source::Mark) {
        sequence_.put_instant(slice.start_ns, name, details_);
      } else {
        sequence_.begin_slice(slice.start_ns, name, details_);
        open_until_ns_.push_back(slice.end_ns);
      }
    }
    close_slices(INT64_MAX);
  }

  void close_slices(int64_t up_to_ns) {
    while (!open_until_ns_.empty() && open_until_ns_.back() <= up_to_ns) {
      sequence_.end_slice(open_until_ns_.back());
      open_until_ns_.pop_back();
    }
  }

  const Store& store_;
  Output out_;
  ProtoWriter proto_;
  Timeline timeline_;
  PerfettoNames names_;
  PerfettoDescriber describer_;
  PerfettoSequence sequence_;
  EventDetails details_;
  std::vector<int64_t> open_until_ns_;
  std::unordered_map<uint32_t, uint64_t> device_tracks_;
  uint64_t process_ = 1;
  uint64_t process_track_ = 0;
  uint64_t tracks_ = 0;
  uint64_t next_rank_ = 0;
};

}  // namespace

void write_perfetto(const Store& store, Write write) { PerfettoWriter(store, std::move(write)).write(); }

}  // namespace gpuscope::exporters
