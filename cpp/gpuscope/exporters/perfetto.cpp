// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/perfetto.h"

#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/exporters/graph_nodes.h"
#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/exporters/launches.h"
#include "gpuscope/exporters/perfetto_sequence.h"
#include "gpuscope/exporters/timeline.h"
#include "gpuscope/store/labels.h"

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
        launches_(store),
        graph_nodes_(store),
        names_(store),
        sequence_(out_, names_) {}

  void write() {
    write_clocks();
    write_process();
    for (const Strand& strand : timeline_.threads) {
      write_thread(strand);
    }
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
    const std::string_view own_name = store_.strings[store_.thread.name[strand.row]];
    const std::string name = own_name.empty() ? "thread " + std::to_string(system_id) : valid_utf8(own_name);
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

  void write_stream(const Strand& strand, const std::string& suffix) {
    const uint64_t device = device_track(strand);
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

  uint64_t device_track(const Strand& strand) {
    const uint32_t device = store_.track.device[strand.row];
    const uint32_t ordinal = device_ordinal(store_, device);
    uint64_t& track = device_tracks_[ordinal];
    if (track == 0) {
      std::string name = "GPU " + std::to_string(ordinal);
      if (device < store_.device.size()) {
        name += ": " + valid_utf8(store_.strings[store_.device.name[device]]);
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
      close_slices(slice.start_ns);
      const uint32_t name = describe(slice);
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

  /// Fills details_ and returns the name.
  uint32_t describe(const Slice& slice) {
    details_.clear();
    switch (slice.source) {
      case Source::Region:
        add_notes(store_.region.flags[slice.row]);
        return names_.plain(store_.path.name[store_.region.path[slice.row]]);
      case Source::Api:
        details_.flow = launches_.has_work(slice.row) ? store_.api.correlation[slice.row] : 0;
        return names_.plain(store_.call.name[store_.api.call[slice.row]]);
      case Source::Mark:
        return names_.plain(store_.mark.name[slice.row]);
      case Source::Kernel: {
        const auto row = store_.kernel[slice.row];
        add_work(slice, row);
        details_.texts.push_back({configuration_label_, names_.configuration(row.variant)});
        return names_.demangled(store_.variant.name[row.variant]);
      }
      case Source::Memcpy: {
        const auto row = store_.memcpy[slice.row];
        add_work(slice, row);
        details_.numbers.push_back({bytes_label_, row.bytes});
        return copy_name(row.kind, row.source, row.destination);
      }
      case Source::Memset: {
        const auto row = store_.memset[slice.row];
        add_work(slice, row);
        details_.numbers.push_back({bytes_label_, row.bytes});
        return fill_name_;
      }
      case Source::GraphLaunch: {
        const auto row = store_.graph_launch[slice.row];
        add_work(slice, row);
        details_.numbers.push_back({graph_label_, row.graph});
        return graph_name_;
      }
      default:
        return names_.made(std::string(store::sync_name(store::SyncKind{store_.sync.kind[slice.row]})));
    }
  }

  template <class Row>
  void add_work(const Slice& slice, const Row& row) {
    details_.flow = launches_.is_known(row.correlation) ? row.correlation : 0;
    if (row.region != kNone) {
      details_.texts.push_back({region_label_, path_name(store_.region.path[row.region])});
    }
    add_notes(row.flags);
    if (const uint32_t node = graph_nodes_.find(slice.source, slice.row); node != kNone) {
      details_.numbers.push_back({graph_label_, store_.graph_node.graph[node]});
      if (const uint32_t path = store_.graph_node.path[node]; path != kNone) {
        details_.texts.push_back({capture_label_, path_name(path)});
      }
    }
  }

  void add_notes(uint16_t flags) {
    if (flags == 0) {
      return;
    }
    if (const std::string notes = flag_label(flags); !notes.empty()) {
      details_.texts.push_back({notes_label_, names_.made(notes)});
    }
  }

  uint32_t path_name(uint32_t path) const { return names_.plain(store_.path.name[path]); }

  uint32_t copy_name(uint8_t kind, uint8_t source, uint8_t destination) {
    const uint32_t key = (uint32_t{kind} << 16) | (uint32_t{source} << 8) | destination;
    const auto found = copy_names_.find(key);
    return found != copy_names_.end()
               ? found->second
               : copy_names_
                     .emplace(key, names_.made(store::copy_name(store::CopyKind{kind}, store::MemoryKind{source},
                                                                store::MemoryKind{destination})))
                     .first->second;
  }

  const Store& store_;
  Output out_;
  ProtoWriter proto_;
  Timeline timeline_;
  Launches launches_;
  GraphNodes graph_nodes_;
  PerfettoNames names_;
  PerfettoSequence sequence_;
  EventDetails details_;
  std::vector<int64_t> open_until_ns_;
  std::unordered_map<uint32_t, uint64_t> device_tracks_;
  std::unordered_map<uint32_t, uint32_t> copy_names_;
  uint32_t region_label_ = names_.made("region");
  uint32_t configuration_label_ = names_.made("launch");
  uint32_t bytes_label_ = names_.made("bytes");
  uint32_t graph_label_ = names_.made("graph");
  uint32_t capture_label_ = names_.made("captured in");
  uint32_t notes_label_ = names_.made("notes");
  uint32_t fill_name_ = names_.made("Memset");
  uint32_t graph_name_ = names_.made("CUDA graph");
  uint64_t process_ = 1;
  uint64_t process_track_ = 0;
  uint64_t tracks_ = 0;
  uint64_t next_rank_ = 0;
};

}  // namespace

void write_perfetto(const Store& store, Write write) { PerfettoWriter(store, std::move(write)).write(); }

}  // namespace gpuscope::exporters
