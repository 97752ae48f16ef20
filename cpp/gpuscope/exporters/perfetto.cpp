// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/events.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/exporters/export.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/exporters/links.h"
#include "gpuscope/exporters/perfetto_format.h"
#include "gpuscope/exporters/timeline.h"
#include "gpuscope/store/values.h"

namespace gpuscope::exporters {
namespace {

using base::to_utf8;
using store::kNone;
using store::PayloadType;
using store::Store;
using store::Work;
using namespace perfetto;

constexpr uint64_t kRootSequence = 1;  // of the tracks' descriptions
// Arrows from forward to backward operators have higher numbers than those from calls to work.
constexpr uint64_t kFirstBackwardFlow = uint64_t{1} << 32;

// -- names ------------------------------------------------------------------------------------------------------------

std::string triple(uint32_t x, uint32_t y, uint32_t z) {
  std::string text = "[";
  text += std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z);
  return text += ']';
}

std::string configuration_text(const store::Variants::Row& variant) {
  std::string text = "grid " + triple(variant.grid_x, variant.grid_y, variant.grid_z) + ", block " +
                     triple(variant.block_x, variant.block_y, variant.block_z) + ", " +
                     std::to_string(variant.registers) + " registers, " +
                     std::to_string(uint64_t{variant.static_shared_bytes} + variant.dynamic_shared_bytes) +
                     " B shared memory";
  if (uint64_t{variant.cluster_x} * variant.cluster_y * variant.cluster_z > 1) {
    text += ", cluster " + triple(variant.cluster_x, variant.cluster_y, variant.cluster_z);
  }
  return text;
}

/// The texts of events, by number, made on first use.
class Names {
 public:
  explicit Names(const Store& store)
      : store_(store),
        first_demangled_(store.strings.size()),
        first_configuration_(first_demangled_ * 2),
        first_added_(first_configuration_ + static_cast<uint32_t>(store.variant.size())) {}

  uint32_t demangled(uint32_t string) const { return first_demangled_ + string; }
  uint32_t configuration(uint32_t variant) const { return first_configuration_ + variant; }
  uint32_t add(const std::string& text) {
    const auto [at, is_new] = added_.try_emplace(text, first_added_ + static_cast<uint32_t>(added_.size()));
    if (is_new) {
      texts_.emplace(at->second, text);
    }
    return at->second;
  }

  std::string_view text(uint32_t name) {
    const auto found = texts_.find(name);
    return found != texts_.end() ? found->second : texts_.emplace(name, make(name)).first->second;
  }

 private:
  std::string make(uint32_t name) const {
    if (name < first_demangled_) {
      return to_utf8(store_.strings[name]);
    }
    if (name < first_configuration_) {
      return to_utf8(base::demangle(store_.strings[name - first_demangled_]));
    }
    return configuration_text(store_.variant[name - first_configuration_]);
  }

  const Store& store_;
  uint32_t first_demangled_, first_configuration_, first_added_;
  std::unordered_map<uint32_t, std::string> texts_;
  std::unordered_map<std::string, uint32_t> added_;
};

/// Small numbers for names of one packet sequence, in order of first use.
class Interner {
 public:
  /// True if the text is new and must be written with the number `id`.
  bool add(uint32_t name, uint32_t& id) {
    if (name >= slots_.size()) {
      slots_.resize(std::size_t{name} * 2 + 64);
    }
    Slot& slot = slots_[name];
    const bool is_new = slot.sequence != sequence_;
    if (is_new) {
      slot = {sequence_, ++count_};
    }
    id = slot.id;
    return is_new;
  }
  void restart() {
    ++sequence_;
    count_ = 0;
  }

 private:
  struct Slot {
    uint32_t sequence;
    uint32_t id;
  };
  std::vector<Slot> slots_;
  uint32_t sequence_ = 1;
  uint32_t count_ = 0;
};

// -- packets ----------------------------------------------------------------------------------------------------------

/// An event's contents besides its name. Reused for each event.
struct EventDetails {
  struct Number {
    uint32_t label;
    uint64_t value;
  };
  struct Text {
    uint32_t label;
    uint32_t name;
  };
  uint64_t flow = 0;           // an arrow that begins or ends here; 0 for none
  uint64_t backward_flow = 0;  // an arrow from a forward operator; 0 for none
  uint32_t category = kNone;
  std::vector<Number> numbers;
  std::vector<Text> texts;

  void clear() {
    flow = backward_flow = 0;
    category = kNone;
    numbers.clear();
    texts.clear();
  }
};

/// The events of one track after another. Each track is a packet sequence with defaults: its name, and a clock that
/// counts from packet to packet. About ten bytes per event. Times within a track must not decrease.
class Sequence {
 public:
  Sequence(Output& out, Names& names) : out_(out), proto_(out), names_(names) {}

  void begin_track(uint64_t track, int64_t base_ns) {
    for (Interner* interner : {&event_names_, &categories_, &labels_, &texts_}) {
      interner->restart();
    }
    ++sequence_;
    last_ns_ = base_ns;

    const std::size_t in_packet = proto_.begin(kTracePacket);
    proto_.number(packet::kSequence, sequence_);
    proto_.number(packet::kSequenceFlags, kIncrementalStateCleared);
    const std::size_t in_defaults = proto_.begin(packet::kDefaults);
    proto_.number(defaults::kTimestampClock, kDeltaClock);
    const std::size_t in_event = proto_.begin(defaults::kTrackEvent);
    proto_.number(event::kTrack, track);
    proto_.end(in_event);
    proto_.end(in_defaults);
    const std::size_t in_snapshot = proto_.begin(packet::kClockSnapshot);
    for (const uint64_t clock : {kDeltaClock, kBoottime}) {
      const std::size_t in_clock = proto_.begin(snapshot::kClock);
      proto_.number(snapshot::kClockId, clock);
      proto_.number(snapshot::kTimestamp, static_cast<uint64_t>(base_ns));
      if (clock == kDeltaClock) {
        proto_.number(snapshot::kIsIncremental, 1);
      }
      proto_.end(in_clock);
    }
    proto_.end(in_snapshot);
    proto_.end(in_packet);
    out_.cut();
  }

  void begin_slice(int64_t at_ns, uint32_t name, const EventDetails& details) {
    put(EventType::Begin, at_ns, name, details);
  }

  void put_instant(int64_t at_ns, uint32_t name, const EventDetails& details) {
    put(EventType::Instant, at_ns, name, details);
  }

  void end_slice(int64_t at_ns) {
    put_event(
        at_ns, EventType::End, [] {}, [] {});
  }

  void put_counter(int64_t at_ns, uint64_t value) {
    put_event(
        at_ns, EventType::Counter, [&] { proto_.number(event::kCounterValue, value); }, [] {});
  }

  void put_counter(int64_t at_ns, double value) {
    put_event(
        at_ns, EventType::Counter, [&] { proto_.real(event::kRealValue, value); }, [] {});
  }

 private:
  struct New {
    uint32_t field;
    uint32_t id;
    uint32_t name;
  };

  template <class PutEvent, class PutRest>
  void put_event(int64_t at_ns, EventType type, PutEvent&& put_event, PutRest&& put_rest) {
    const std::size_t in_packet = proto_.begin(kTracePacket);
    proto_.number(packet::kTimestamp, static_cast<uint64_t>(at_ns - last_ns_));
    proto_.number(packet::kSequence, sequence_);
    last_ns_ = at_ns;
    const std::size_t in_event = proto_.begin(packet::kTrackEvent);
    proto_.number(event::kType, static_cast<uint64_t>(type));
    put_event();
    proto_.end(in_event);
    put_rest();
    proto_.end(in_packet);
    out_.cut();
  }

  void put(EventType type, int64_t at_ns, uint32_t name, const EventDetails& details) {
    put_event(
        at_ns, type,
        [&] {
          proto_.number(event::kName, intern(event_names_, interned::kEventNames, name));
          put_details(details);
        },
        [&] { put_new(); });
  }

  void put_details(const EventDetails& details) {
    if (details.category != kNone) {
      proto_.number(event::kCategory, intern(categories_, interned::kCategories, details.category));
    }
    for (const uint64_t flow : {details.flow, details.backward_flow}) {
      if (flow != 0) {
        proto_.number(event::kFlow, flow);
      }
    }
    for (const auto& [label, text] : details.texts) {
      const std::size_t in_annotation = proto_.begin(event::kAnnotation);
      proto_.number(annotation::kName, intern(labels_, interned::kAnnotationNames, label));
      proto_.number(annotation::kText, intern(texts_, interned::kTexts, text));
      proto_.end(in_annotation);
    }
    for (const auto& [label, value] : details.numbers) {
      const std::size_t in_annotation = proto_.begin(event::kAnnotation);
      proto_.number(annotation::kName, intern(labels_, interned::kAnnotationNames, label));
      proto_.number(annotation::kNumber, value);
      proto_.end(in_annotation);
    }
  }

  uint32_t intern(Interner& interner, uint32_t field, uint32_t name) {
    uint32_t id = 0;
    if (interner.add(name, id)) {
      new_.push_back({field, id, name});
    }
    return id;
  }

  /// The texts that first appear in this packet.
  void put_new() {
    if (new_.empty()) {
      return;
    }
    const std::size_t in_data = proto_.begin(packet::kInternedData);
    for (const New& entry : new_) {
      const std::size_t in_entry = proto_.begin(entry.field);
      proto_.number(interned::kId, entry.id);
      proto_.text(interned::kValue, names_.text(entry.name));
      proto_.end(in_entry);
    }
    proto_.end(in_data);
    new_.clear();
  }

  Output& out_;
  ProtoWriter proto_;
  Names& names_;
  Interner event_names_, categories_, labels_, texts_;
  std::vector<New> new_;
  uint32_t sequence_ = kRootSequence;
  int64_t last_ns_ = 0;
};

class PerfettoWriter {
 public:
  PerfettoWriter(const Store& store, Write write)
      : store_(store),
        out_(std::move(write)),
        proto_(out_),
        timeline_(lay_out(store)),
        links_(store),
        names_(store),
        sequence_(out_, names_) {
    for (std::size_t kind = 0; kind < categories_.size(); ++kind) {
      categories_[kind] = names_.add(std::string(region_category(static_cast<base::RegionKind>(kind))));
    }
  }

  void write() {
    write_clocks();
    write_process();
    for (const Track& track : timeline_.threads) {
      write_thread(track);
    }
    for (const auto& [tracks, what] :
         {std::pair(&timeline_.ranges, " (ranges)"), {&timeline_.samples, " (Python samples)"}}) {
      for (const Track& track : *tracks) {
        const std::string name = to_utf8(thread_label(store_, track.row)) + what;
        each_lane(track, [&](uint32_t lane, const std::vector<Slice>& slices) {
          write_events(describe_track(process_track_, lane_label(name, lane), [] {}), slices);
        });
      }
    }
    write_allocations();
    for (const MemoryCounter& counter : count_driver_memory(store_)) {
      begin_counter(counter.device, counter.name);
      for (const MemoryCounter::Point& point : counter.points) {
        sequence_.put_counter(std::max(point.at_ns, timeline_.base_ns), point.bytes);
      }
    }
    each_hardware_counter(store_, [this](const HardwareCounter& counter) {
      begin_counter(counter.device, to_utf8(counter.name), to_utf8(counter.unit));
      for (const HardwareCounter::Point& point : counter.points) {
        sequence_.put_counter(std::max(point.at_ns, timeline_.base_ns), point.value);
      }
    });
    for (const Track& track : timeline_.streams) {
      write_stream(track, "");
    }
    for (const Track& track : timeline_.syncs) {
      write_stream(track, " (synchronization)");
    }
    out_.flush();
  }

 private:
  // -- tracks ---------------------------------------------------------------------------------------------------------
  // The viewer's time line is the time since the epoch, the only clock of recordings.
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
    process_track_ = describe_track(0, {}, [&] {
      const std::size_t in_process = proto_.begin(descriptor::kProcess);
      proto_.number(process::kPid, process_);
      proto_.text(process::kName, to_utf8(process_label(store_)));
      proto_.end(in_process);
    });
  }

  void write_thread(const Track& track) {
    const std::string name = to_utf8(thread_label(store_, track.row));
    uint64_t thread_track = 0;
    each_lane(track, [&](uint32_t lane, const std::vector<Slice>& slices) {
      if (lane == 0) {
        thread_track = describe_track(process_track_, {}, [&] {
          const std::size_t in_thread = proto_.begin(descriptor::kThread);
          proto_.number(thread::kPid, process_);
          proto_.number(thread::kTid, store_.thread.system_id[track.row] & INT32_MAX);
          proto_.text(thread::kName, name);
          proto_.end(in_thread);
        });
        write_events(thread_track, slices);
      } else {
        write_events(describe_track(thread_track, lane_label(name, lane), [] {}), slices);
      }
    });
  }

  void write_stream(const Track& track, const std::string& suffix) {
    const uint64_t parent = device_track(store_.track.device[track.row]);
    const std::string name = stream_label(store_, track.row) + suffix;
    each_lane(track, [&](uint32_t lane, const std::vector<Slice>& slices) {
      const uint64_t lane_track =
          describe_track(parent, lane_label(name, lane), [&] { proto_.number(descriptor::kRank, next_rank_++); });
      write_events(lane_track, slices);
    });
  }

  /// The used and the reserved memory of each allocator.
  void write_allocations() {
    std::map<uint32_t, std::vector<uint32_t>> rows;  // by ordinal
    for (uint32_t row = 0; row < store_.allocation.size(); ++row) {
      rows[store_.allocation.ordinal[row]].push_back(row);
    }
    for (auto& [ordinal, found] : rows) {
      std::stable_sort(found.begin(), found.end(), [&](uint32_t a, uint32_t b) {
        return store_.allocation.start_ns[a] < store_.allocation.start_ns[b];
      });
      for (const auto& [what, bytes] : {std::pair("memory allocated", &store_.allocation.allocated_bytes),
                                        {"memory reserved", &store_.allocation.reserved_bytes}}) {
        begin_counter(ordinal, ordinal == kNone ? std::string("host ") + what : what);
        for (const uint32_t row : found) {
          sequence_.put_counter(std::max(store_.allocation.start_ns[row], timeline_.base_ns), (*bytes)[row]);
        }
      }
    }
  }

  /// A counter of a device, or of the host for kNone. The default unit is bytes.
  void begin_counter(uint32_t ordinal, const std::string& name, const std::string& unit = {}) {
    const uint64_t parent = ordinal == kNone ? process_track_ : device_track(ordinal);
    const uint64_t track = describe_track(parent, name, [&] {
      proto_.number(descriptor::kRank, next_rank_++);
      const std::size_t in_counter = proto_.begin(descriptor::kCounter);
      unit.empty() ? proto_.number(counter::kUnit, counter::kBytes) : proto_.text(counter::kUnitName, unit);
      proto_.end(in_counter);
    });
    sequence_.begin_track(track, timeline_.base_ns);
  }

  uint64_t device_track(uint32_t ordinal) {
    uint64_t& track = device_tracks_[ordinal];
    if (track == 0) {
      const std::string_view device = device_name(store_, ordinal);
      const std::string name = "GPU " + std::to_string(ordinal) + (device.empty() ? "" : ": " + to_utf8(device));
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
  static void each_lane(const Track& track, Visit&& visit) {
    if (track.lanes == 1) {
      visit(0U, track.slices);
      return;
    }
    std::vector<std::vector<Slice>> lanes(track.lanes);
    for (const Slice& slice : track.slices) {
      lanes[slice.lane].push_back(slice);
    }
    for (uint32_t lane = 0; lane < track.lanes; ++lane) {
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
      details_.clear();
      const uint32_t name = describe(slice);
      if (slice.source == Source::Mark || slice.source == Source::FailedAllocation) {
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

  /// Fills `details_` and returns the name.
  uint32_t describe(const Slice& slice) {
    switch (slice.source) {
      case Source::PythonFunction:
        details_.category = categories_[static_cast<std::size_t>(base::RegionKind::Module)];
        return store_.python_function.name[slice.row];
      case Source::Region:
        return describe_region(slice.row);
      case Source::Api:
        details_.flow = links_.has_work(slice.row) ? store_.api.correlation[slice.row] : 0;
        add_stack(links_.call_stack(slice.row));
        return store_.call.name[store_.api.call[slice.row]];
      case Source::Mark:
        return store_.mark.name[slice.row];
      case Source::FailedAllocation:
        details_.numbers.push_back({bytes_label_, static_cast<uint64_t>(store_.failed_allocation.bytes[slice.row])});
        return names_.add(std::string(kOutOfMemory));
      case Source::Kernel:
        return describe_kernel(slice.row);
      case Source::Memcpy:
        return describe_copy(slice.row);
      case Source::Memset: {
        const auto row = store_.memset[slice.row];
        add_work(Work::Memset, slice.row, row);
        details_.numbers.push_back({bytes_label_, row.bytes});
        return fill_name_;
      }
      case Source::GraphLaunch: {
        const auto row = store_.graph_launch[slice.row];
        add_work(Work::GraphLaunch, slice.row, row);
        details_.numbers.push_back({graph_label_, row.graph});
        return graph_name_;
      }
      case Source::PythonSample: {
        const SampledCall& call = timeline_.sampled_calls[slice.row];
        const auto frame = store_.stack[call.stack];
        details_.category = sample_category_;
        details_.texts.push_back({file_label_, frame.file});
        details_.numbers = {{line_label_, frame.line},
                            {samples_label_, call.count},
                            {on_cpu_label_, static_cast<uint64_t>(call.cpu_ns)}};
        return frame.function;
      }
      default:
        return names_.add(std::string(store::sync_name(store::SyncKind{store_.sync.kind[slice.row]})));
    }
  }

  uint32_t describe_region(uint32_t region) {
    const uint32_t path = store_.region.path[region];
    details_.category = categories_[static_cast<std::size_t>(links_.path_kind(path))];
    if (links_.backward_flow(region) != 0) {
      details_.flow = kFirstBackwardFlow + region;
    }
    if (const uint32_t row = links_.detail(region); row != kNone) {
      const uint32_t forward = store_.detail.forward[row];
      if (forward != kNone && links_.backward_flow(forward) != 0) {
        details_.backward_flow = kFirstBackwardFlow + forward;
      }
      if (store_.detail.sequence[row] >= 0) {
        details_.numbers.push_back({sequence_label_, static_cast<uint64_t>(store_.detail.sequence[row])});
      }
      if (store_.detail.shapes[row] != kNone) {
        details_.texts.push_back({shapes_label_, store_.detail.shapes[row]});
      }
      add_stack(store_.detail.stack[row]);
    }
    add_payloads(region);
    add_notes(store_.region.flags[region]);
    return region_name(path);
  }

  uint32_t describe_kernel(uint32_t kernel) {
    const auto row = store_.kernel[kernel];
    add_work(Work::Kernel, kernel, row);
    details_.texts.push_back({configuration_label_, names_.configuration(row.variant)});
    if (const uint32_t range = links_.payload_owner(row.region); range != kNone) {
      add_payloads(range);
    }
    return names_.demangled(store_.variant.name[row.variant]);
  }

  uint32_t describe_copy(uint32_t copy) {
    const auto row = store_.memcpy[copy];
    add_work(Work::Memcpy, copy, row);
    details_.numbers.push_back({bytes_label_, row.bytes});
    const uint32_t key = (uint32_t{row.kind} << 16) | (uint32_t{row.source} << 8) | row.destination;
    const auto [at, is_new] = copy_names_.try_emplace(key, 0);
    if (is_new) {
      at->second = names_.add(store::copy_name(store::CopyKind{row.kind}, store::MemoryKind{row.source},
                                               store::MemoryKind{row.destination}));
    }
    return at->second;
  }

  template <class Row>
  void add_work(Work work, uint32_t at, const Row& row) {
    details_.flow = links_.has_call(row.correlation) ? row.correlation : 0;
    if (row.region != kNone) {
      details_.texts.push_back({region_label_, path_name(store_.region.path[row.region])});
    }
    add_notes(row.flags);
    if (const uint32_t node = links_.graph_node(work, at); node != kNone) {
      details_.numbers.push_back({graph_label_, store_.graph_node.graph[node]});
      if (const uint32_t path = store_.graph_node.path[node]; path != kNone) {
        details_.texts.push_back({capture_label_, path_name(path)});
      }
    }
  }

  void add_payloads(uint32_t region) {
    links_.each_payload(region, [&](uint32_t row) {
      const uint32_t label = store_.payload.name[row];
      const uint64_t value = store_.payload.value[row];
      switch (PayloadType{store_.payload.type[row]}) {
        case PayloadType::Signed:
          details_.texts.push_back({label, names_.add(std::to_string(std::bit_cast<int64_t>(value)))});
          break;
        case PayloadType::Float:
          details_.texts.push_back({label, names_.add(std::to_string(std::bit_cast<double>(value)))});
          break;
        case PayloadType::Bool:
          details_.texts.push_back({label, names_.add(value != 0 ? "true" : "false")});
          break;
        case PayloadType::None:
          details_.texts.push_back({label, names_.add("None")});
          break;
        case PayloadType::Text:
        case PayloadType::List:
        case PayloadType::Complex:
          if (value < store_.strings.size()) {
            details_.texts.push_back({label, static_cast<uint32_t>(value)});
          }
          break;
        default:
          details_.numbers.push_back({label, value});
          break;
      }
    });
  }

  void add_stack(uint32_t stack) {
    if (stack == kNone) {
      return;
    }
    const auto [at, is_new] = stack_names_.try_emplace(stack, 0);
    if (is_new) {
      at->second = names_.add(stack_label(store_, stack));
    }
    details_.texts.push_back({stack_label_, at->second});
  }

  void add_notes(uint16_t flags) {
    if (flags == 0) {
      return;
    }
    if (const std::string notes = flag_label(flags); !notes.empty()) {
      details_.texts.push_back({notes_label_, names_.add(notes)});
    }
  }

  uint32_t region_name(uint32_t path) {
    if (links_.path_kind(path) != base::RegionKind::Module) {
      return path_name(path);
    }
    const auto [at, is_new] = module_names_.try_emplace(path, 0);
    if (is_new) {
      at->second = names_.add(region_label(base::RegionKind::Module, store_.strings[path_name(path)]));
    }
    return at->second;
  }

  uint32_t path_name(uint32_t path) const { return store_.path.name[path]; }

  const Store& store_;
  Output out_;
  ProtoWriter proto_;
  Timeline timeline_;
  Links links_;
  Names names_;
  Sequence sequence_;
  EventDetails details_;
  std::vector<int64_t> open_until_ns_;
  std::unordered_map<uint32_t, uint64_t> device_tracks_;  // by ordinal
  std::unordered_map<uint32_t, uint32_t> copy_names_, stack_names_, module_names_;
  std::array<uint32_t, static_cast<std::size_t>(base::RegionKind::Module) + 1> categories_{};
  const uint32_t region_label_ = names_.add("region");
  const uint32_t configuration_label_ = names_.add("launch");
  const uint32_t bytes_label_ = names_.add("bytes");
  const uint32_t graph_label_ = names_.add("graph");
  const uint32_t capture_label_ = names_.add("captured in");
  const uint32_t notes_label_ = names_.add("notes");
  const uint32_t sequence_label_ = names_.add("sequence number");
  const uint32_t shapes_label_ = names_.add("input shapes");
  const uint32_t stack_label_ = names_.add("call stack");
  const uint32_t sample_category_ = names_.add("python_sample");
  const uint32_t file_label_ = names_.add("file");
  const uint32_t line_label_ = names_.add("line");
  const uint32_t samples_label_ = names_.add("samples");
  const uint32_t on_cpu_label_ = names_.add("on CPU ns");
  const uint32_t fill_name_ = names_.add("Memset");
  const uint32_t graph_name_ = names_.add(std::string(store::kGraphName));
  const uint64_t process_ = process_id(store_, 1);
  uint64_t process_track_ = 0;
  uint64_t tracks_ = 0;
  uint64_t next_rank_ = 0;
};

}  // namespace

void write_perfetto(const Store& store, Write write) { PerfettoWriter(store, std::move(write)).write(); }

}  // namespace gpuscope::exporters
