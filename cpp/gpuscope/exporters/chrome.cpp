// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/events.h"
#include "gpuscope/exporters/chrome_text.h"
#include "gpuscope/exporters/export.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/exporters/links.h"
#include "gpuscope/exporters/output.h"
#include "gpuscope/exporters/timeline.h"
#include "gpuscope/store/store.h"
#include "gpuscope/store/values.h"

namespace gpuscope::exporters {
namespace {

using base::FunctionKind;
using base::RegionKind;
using store::kNone;
using store::Store;
using store::Work;

constexpr uint64_t kFirstLaneTid = 1'000'000'000;  // above every thread id and stream number
constexpr uint64_t kDeviceSortIndex = 5'000'000;   // torch's: sorts devices after processes

// Readers add start and duration as floating-point numbers. The sum may be 1 ns too large.
constexpr int64_t kRoundingNs = 2;

constexpr std::string_view kLaunchArrow = ",\"cat\":\"ac2g\",\"name\":\"ac2g\"";
constexpr std::string_view kBackwardArrow = ",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\"";

// -- the head of the file ---------------------------------------------------------------------------------------------

void put_device(Output& out, const Store& store, const store::Devices::Row& device) {
  out.put_pair("{\"id\":", device.ordinal);
  out.put(",\"name\":");
  out.put(quoted(store.strings[device.name]));
  out.put_pair(",\"totalGlobalMem\":", device.memory_bytes);
  out.put_pair(",\"computeMajor\":", device.capability_major);
  out.put_pair(",\"computeMinor\":", device.capability_minor);
  out.put_pair(",\"numSms\":", device.multiprocessors);
  if (const auto limits = multiprocessor_limits(device.capability_major, device.capability_minor)) {
    out.put_pair(",\"maxThreadsPerMultiprocessor\":", limits->threads);
    out.put_pair(",\"sharedMemPerMultiprocessor\":", limits->shared_bytes);
    out.put(",\"regsPerMultiprocessor\":65536,\"maxThreadsPerBlock\":1024,\"warpSize\":32");
  }

  out.put('}');
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The process's rank in its job, as a JSON object. Empty if unknown.
std::string rank_text(const Store& store) {
  std::string text;
  for (const auto& [key, info] : {std::pair("rank", "process.rank"),
                                  {"world_size", "process.world_size"},
                                  {"local_rank", "process.local_rank"}}) {
    const std::string_view number = store.find_info(info);
    if (is_number(number)) {
      // Holistic Trace Analysis searches for `"rank": ` with the space.
      text +=
          (text.empty() ? "{\"" : ",\"") + std::string(key) + "\": " + std::to_string(std::stoul(std::string(number)));
    } else if (text.empty()) {
      return {};  // without a rank the other numbers are useless
    }
  }
  return text + "}";
}

/// The metadata: facts about the recording, its contents, and keys that the program requested or added. The program's
/// keys take precedence.
std::map<std::string, std::string> find_metadata(const Store& store) {
  std::map<std::string, std::string> values;
  const auto& shapes = store.detail.shapes;
  const auto& kinds = store.path.kind;
  const auto add_option = [&](const char* name, bool is_seen) {
    if (is_seen) {
      values[name] = "1";
    }
  };
  add_option("record_shapes", std::any_of(shapes.begin(), shapes.end(), [](uint32_t shape) { return shape != kNone; }));
  add_option("profile_memory", store.allocation.size() != 0);
  add_option("with_stack", store.stack.size() != 0);
  add_option("with_modules",
             std::find(kinds.begin(), kinds.end(), static_cast<uint32_t>(RegionKind::Module)) != kinds.end());
  for (const auto& [key, info] : {std::pair("host_name", "process.host"), {"trace_id", "trace.id"}}) {
    if (const std::string_view text = store.find_info(info); !text.empty()) {
      values[key] = quoted(text);
    }
  }
  if (std::string rank = rank_text(store); !rank.empty()) {
    values["distributedInfo"] = std::move(rank);
  }
  constexpr std::string_view kAdded = "metadata.";
  for (std::size_t row = 0; row < store.info.size(); ++row) {
    const std::string_view key = store.strings[store.info.key[row]];
    const std::string_view value = store.strings[store.info.value[row]];
    if (key.starts_with(kAdded) && is_json(value)) {
      values[std::string(key.substr(kAdded.size()))] = value;
    }
  }
  for (const char* key : {"schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds", "gpuscope",
                          "traceEvents", "traceName"}) {
    values.erase(key);  // reserved keys of the format
  }
  return values;
}

void put_head(Output& out, const Store& store, int64_t base_ns) {
  out.put("{\"schemaVersion\":1,\n\"deviceProperties\":[");
  for (std::size_t row = 0; row < store.device.size(); ++row) {
    out.put(row == 0 ? "\n" : ",\n");
    put_device(out, store, store.device[row]);
  }
  out.put("],\n");
  for (const auto& [key, value] : find_metadata(store)) {
    out.put(quoted(key) + ":" + value + ",\n");
  }
  out.put("\"displayTimeUnit\":\"ms\",\n");
  out.put_pair("\"baseTimeNanoseconds\":", base_ns);
  out.put(",\n\"gpuscope\":{");
  for (std::size_t row = 0; row < store.info.size(); ++row) {
    out.put(row == 0 ? "" : ",");
    out.put(quoted(store.strings[store.info.key[row]]));
    out.put(':');
    out.put(quoted(store.strings[store.info.value[row]]));
  }
  out.put("},\n\"traceEvents\":[\n");
}

// -- times ------------------------------------------------------------------------------------------------------------

/// The base of all written times. Kineto's rule, so that traces of other processes share it: the latest multiple of a
/// quarter of a year. Times in us since then, with three decimals, are exact in a double.
int64_t kineto_base(int64_t start_ns) {
  constexpr int64_t kQuarterNs = int64_t{7'889'238} * 1'000'000'000;
  return start_ns > 0 ? start_ns - start_ns % kQuarterNs : start_ns;
}

class ChromeWriter {
 public:
  ChromeWriter(const Store& store, Write write)
      : store_(store),
        out_(std::move(write)),
        links_(store),
        annotations_(find_gpu_annotations(store, links_)),
        timeline_(lay_out(store, annotations_)),
        window_(find_window(store, timeline_)),
        base_ns_(kineto_base(window_.start_ns)),
        counters_(count_driver_memory(store)),
        text_(store, links_) {}

  void write() {
    put_head(out_, store_, base_ns_);
    write_process();
    for (const Track& track : timeline_.threads) {
      write_thread(track);
    }
    for (const Track& track : timeline_.ranges) {
      write_ranges(track);
    }
    write_calls();
    for (const Track& track : timeline_.samples) {
      write_samples(track);
    }
    write_devices();
    for (const Track& track : timeline_.streams) {
      write_stream(track);
    }
    for (const Track& track : timeline_.syncs) {
      open_lanes(track, device_of(track), next_tid_++, stream_label(store_, track.row) + " (synchronization)",
                 store_.track.stream[track.row]);
      for (const Slice& slice : track.slices) {
        write_sync(slice);
      }
    }
    for (const MemoryCounter& counter : counters_) {
      write_counter(counter);
    }
    each_hardware_counter(store_, [this](const HardwareCounter& counter) { write_counter(counter); });
    if (window_.end_ns > window_.start_ns) {
      write_window();
    }
    out_.put("\n],\n\"traceName\":");
    out_.put(quoted(store_.find_info("process.argv")));
    out_.put("}\n");
    out_.flush();
  }

 private:
  // -- processes and devices ------------------------------------------------------------------------------------------
  uint32_t device_of(const Track& track) const { return store_.track.device[track.row]; }

  void write_process() {
    const std::vector<uint32_t> devices = find_devices(store_, timeline_, counters_);
    process_ = process_id(store_, kFirstLaneTid);
    // A container's first processes have small ids, and viewers would merge them with devices of the same number.
    if (std::find(devices.begin(), devices.end(), process_) != devices.end()) {
      process_ = kFirstLaneTid;
    }
    put_process(process_, process_label(store_), "CPU", process_);
  }

  void write_devices() {
    for (const uint32_t ordinal : find_devices(store_, timeline_, counters_)) {
      const std::string_view name = device_name(store_, ordinal);
      put_process(ordinal, name.empty() ? "GPU" : name, "GPU " + std::to_string(ordinal), kDeviceSortIndex + ordinal);
    }
  }

  void put_process(uint64_t process, std::string_view name, std::string_view label, uint64_t sort_index) {
    put_metadata("process_name", process, 0, "\"name\":" + quoted(name));
    put_metadata("process_labels", process, 0, "\"labels\":" + quoted(label));
    put_metadata("process_sort_index", process, 0, "\"sort_index\":" + std::to_string(sort_index));
  }

  /// Names the lanes of a track, and sets the position of the slices that follow. Viewers sort lanes by `sort_index`.
  void open_lanes(const Track& track, uint64_t process, uint64_t first_tid, const std::string& name,
                  uint64_t sort_index) {
    places_.clear();
    for (uint32_t lane = 0; lane < track.lanes; ++lane) {
      const uint64_t tid = lane == 0 ? first_tid : next_tid_++;
      put_metadata("thread_name", process, tid, "\"name\":" + quoted(lane_label(name, lane)));
      put_metadata("thread_sort_index", process, tid, "\"sort_index\":" + std::to_string(sort_index));
      places_.push_back(",\"pid\":" + std::to_string(process) + ",\"tid\":" + std::to_string(tid) + ",\"ts\":");
    }
  }

  // -- common to all events -------------------------------------------------------------------------------------------
  void next_event() {
    out_.cut();
    out_.put(is_first_ ? "" : ",\n");
    is_first_ = false;
  }

  /// An event that names or sorts a process or thread. `arguments`: JSON without its braces.
  void put_metadata(std::string_view what, uint64_t process, uint64_t thread, std::string_view arguments) {
    next_event();
    out_.put("{\"ph\":\"M\",\"name\":\"");
    out_.put(what);
    out_.put_pair("\",\"pid\":", process);
    out_.put_pair(",\"tid\":", thread);
    out_.put(",\"ts\":");
    out_.put_micros(window_.start_ns - base_ns_);
    out_.put(",\"args\":{");
    out_.put(arguments);
    out_.put("}}");
  }

  /// A slice, from its head up to its duration.
  void begin_slice(std::string_view head, const Slice& slice) {
    next_event();
    out_.put(head);
    put_time(slice, slice.start_ns);
    out_.put(",\"dur\":");
    out_.put_micros(slice.end_ns - slice.start_ns);
  }

  void put_time(const Slice& slice, int64_t at_ns) {
    out_.put(places_[slice.lane]);
    out_.put_micros(at_ns - base_ns_);
  }

  /// One end of an arrow of that category, at the slice's start. Ids join the ends.
  void put_arrow(bool is_end, std::string_view category, uint64_t id, const Slice& slice) {
    next_event();
    out_.put_pair(is_end ? "{\"ph\":\"f\",\"bp\":\"e\",\"id\":" : "{\"ph\":\"s\",\"id\":", id);
    put_time(slice, slice.start_ns);
    out_.put(category);
    out_.put('}');
  }

  void put_notes(uint16_t flags) {
    if (flags != 0) {
      const std::string notes = flag_label(flags);
      out_.put(notes.empty() ? "" : ",\"notes\":\"" + notes + "\"");
    }
  }

  /// The window as Kineto writes it: a slice, and marks at its beginning and end for readers.
  void write_window() {
    const auto put_at = [&](int64_t at_ns, std::string_view event) {
      next_event();
      out_.put(event);
      out_.put(",\"ts\":");
      out_.put_micros(at_ns - base_ns_);
    };
    put_at(window_.start_ns, R"json({"ph":"X","cat":"Trace","name":"PyTorch Profiler (0)","args":{"Op count":0})json"
                             R"json(,"pid":"Spans","tid":"PyTorch Profiler")json");
    out_.put(",\"dur\":");
    out_.put_micros(window_.end_ns - window_.start_ns);
    out_.put('}');
    put_at(window_.start_ns,
           R"({"ph":"M","name":"process_sort_index","pid":"Spans","tid":0,"args":{"sort_index":536870912})");
    out_.put('}');
    put_at(window_.start_ns, R"({"ph":"i","s":"g","name":"Iteration Start: PyTorch Profiler","pid":"Traces")"
                             R"(,"tid":"Trace PyTorch Profiler")");
    out_.put('}');
    put_at(window_.end_ns + kRoundingNs, R"({"ph":"i","s":"g","name":"Record Window End","pid":"","tid":"")");
    out_.put('}');
  }

  // -- threads -------------------------------------------------------------------------------------------------------
  void write_thread(const Track& track) {
    const uint64_t tid = store_.thread.system_id[track.row];
    const std::string_view name = store_.strings[store_.thread.name[track.row]];
    const std::string number = "thread " + std::to_string(tid);
    open_lanes(track, process_, tid, name.empty() ? number : number + " (" + std::string(name) + ")", tid);
    for (const Slice& slice : track.slices) {
      switch (slice.source) {
        case Source::PythonFunction:
          write_function(slice);
          break;
        case Source::Region:
          write_region(slice);
          break;
        case Source::Api:
          write_call(slice);
          break;
        case Source::Allocation:
          write_allocation(slice);
          break;
        case Source::FailedAllocation:
          write_failed_allocation(slice);
          break;
        default:
          write_mark(slice);
          break;
      }
    }
  }

  /// Ranges without nesting, each as an asynchronous pair of events. Viewers arrange these themselves.
  void write_ranges(const Track& track) {
    open_lanes({track.row, 1, {}}, process_, next_tid_++, thread_label(store_, track.row) + " (ranges)",
               store_.thread.system_id[track.row]);
    for (Slice slice : track.slices) {
      slice.lane = 0;
      const std::string_view name = text_.region_name(store_.region.path[slice.row]);
      next_event();
      out_.put_pair("{\"ph\":\"b\",\"id\":", slice.row + 1);
      out_.put(name);
      put_time(slice, slice.start_ns);
      put_region_arguments(slice.row);
      out_.put('}');
      next_event();
      out_.put_pair("{\"ph\":\"e\",\"id\":", slice.row + 1);
      out_.put(name);
      put_time(slice, slice.end_ns);
      out_.put('}');
    }
  }

  /// Suspended calls of coroutines and generators, each as an asynchronous pair from start to end.
  void write_calls() {
    for (const SuspendedCall& call : find_suspended_calls(store_)) {
      for (const bool ends : {false, true}) {
        next_event();
        out_.put_pair(ends ? "{\"ph\":\"e\",\"id\":" : "{\"ph\":\"b\",\"id\":", uint64_t{call.region} + 1);
        out_.put(text_.region_name(store_.region.path[call.region]));
        out_.put_pair(",\"pid\":", process_);
        out_.put_pair(",\"tid\":", store_.thread.system_id[store_.region.thread[call.region]]);
        out_.put(",\"ts\":");
        out_.put_micros((ends ? call.end_ns : store_.region.start_ns[call.region]) - base_ns_);
        out_.put('}');
      }
    }
  }

  void write_samples(const Track& track) {
    open_lanes(track, process_, next_tid_++, thread_label(store_, track.row) + " (Python samples)",
               store_.thread.system_id[track.row]);
    for (Slice slice : track.slices) {
      const SampledCall& call = timeline_.sampled_calls[slice.row];
      // Slices touch. Inner slices end earlier than outer ones, so that they nest after rounding.
      slice.end_ns = std::max(slice.start_ns, slice.end_ns - kRoundingNs * call.depth);
      begin_slice(text_.sampled_function(store_.stack.function[call.stack]), slice);
      out_.put(",\"args\":{\"file\":");
      out_.put(quoted(store_.strings[store_.stack.file[call.stack]]));
      out_.put_pair(",\"line\":", store_.stack.line[call.stack]);
      out_.put_pair(",\"samples\":", call.count);
      out_.put(",\"on CPU us\":");
      out_.put_micros(call.cpu_ns);
      out_.put("}}");
    }
  }

  void write_region(Slice slice) {
    const uint32_t region = slice.row;
    if (const auto step = step_starts_.find(region); step != step_starts_.end()) {
      slice.start_ns = step->second;
    }
    const uint32_t detail = links_.detail(region);
    const std::string_view head = text_.region(store_.region.path[region]);
    if (const uint32_t overload = detail != kNone ? store_.detail.overload[detail] : kNone; overload != kNone) {
      const std::string name = std::string(head.substr(0, head.size() - 1)) + ".";
      begin_slice(name + quoted(store_.strings[overload]).substr(1), slice);
    } else {
      begin_slice(head, slice);
    }
    put_region_arguments(region);
    out_.put('}');
    if (const uint32_t flow = links_.backward_flow(region); flow != 0) {
      put_arrow(false, kBackwardArrow, flow, slice);
    }
    const uint32_t forward = detail != kNone ? store_.detail.forward[detail] : kNone;
    if (const uint32_t flow = forward != kNone ? links_.backward_flow(forward) : 0; flow != 0) {
      put_arrow(true, kBackwardArrow, flow, slice);
    }
  }

  void put_region_arguments(uint32_t region) {
    out_.put_pair(",\"args\":{\"External id\":", uint64_t{region} + 1);
    if (links_.kind(region) == RegionKind::Module) {
      const uint32_t outer = links_.outer_module(region);
      const uint64_t first = uint64_t{store_.python_function.size()} + 1;  // after those of functions
      out_.put_pair(",\"Python id\":", first + region);
      out_.put(",\"Python parent id\":");
      out_.put(outer == kNone ? "null" : std::to_string(first + outer));
    } else {
      out_.put_pair(",\"Ev Idx\":", region);
      const uint32_t detail = links_.detail(region);  // "rf_id" in an execution trace; 0 without one
      out_.put_pair(",\"Record function id\":", detail != kNone ? store_.detail.op[detail] : 0);
    }
    text_.put_details(out_, region);
    text_.put_payloads(out_, region);
    put_notes(store_.region.flags[region]);
    out_.put('}');
  }

  void write_function(const Slice& slice) {
    const auto row = store_.python_function[slice.row];
    begin_slice(text_.function(row.name), slice);
    const uint64_t event = uint64_t{store_.region.size()} + slice.row;  // after those of regions
    if (FunctionKind{row.kind} == FunctionKind::Garbage) {
      out_.put_pair(",\"args\":{\"Ev Idx\":", event);
      out_.put("}}");
      return;
    }
    uint32_t caller = row.parent;
    while (caller != kNone && FunctionKind{store_.python_function.kind[caller]} == FunctionKind::Garbage) {
      caller = store_.python_function.parent[caller];  // which has no number
    }
    out_.put(",\"args\":{\"Python parent id\":");
    out_.put(caller == kNone ? "null" : std::to_string(uint64_t{caller} + 1));
    out_.put_pair(",\"Python id\":", uint64_t{slice.row} + 1);
    if (row.module != kNone) {
      out_.put_pair(",\"Python module id\":", row.module);
    }
    out_.put_pair(",\"Ev Idx\":", event);
    out_.put("}}");
  }

  void write_call(const Slice& slice) {
    const auto row = store_.api[slice.row];
    begin_slice(text_.call(row.call), slice);
    out_.put_pair(",\"args\":{\"correlation\":", row.correlation);
    put_external_id(row.region);
    out_.put(text_.call_arguments(row.call));
    text_.put_stack(out_, links_.call_stack(slice.row));
    out_.put("}}");
    if (links_.has_work(slice.row)) {
      put_arrow(false, kLaunchArrow, row.correlation, slice);
    }
  }

  void write_mark(const Slice& slice) {
    next_event();
    out_.put("{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"mark\",\"name\":");
    out_.put(quoted(store_.strings[store_.mark.name[slice.row]]));
    put_time(slice, slice.start_ns);
    out_.put('}');
  }

  void write_allocation(const Slice& slice) {
    const auto row = store_.allocation[slice.row];
    put_allocation("[memory]", slice, row);
    out_.put_pair(",\"Addr\":", row.address);
    out_.put("}}");
  }

  void write_failed_allocation(const Slice& slice) {
    put_allocation(kOutOfMemory, slice, store_.failed_allocation[slice.row]);
    out_.put("}}");
  }

  template <class Row>
  void put_allocation(std::string_view name, const Slice& slice, const Row& row) {
    constexpr int kCpu = 0;  // c10::DeviceType's numbers
    constexpr int kCuda = 1;
    const bool on_host = row.ordinal == kNone;
    next_event();
    out_.put("{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"cpu_instant_event\",\"name\":");
    out_.put(quoted(name));
    put_time(slice, slice.start_ns);
    out_.put_pair(",\"args\":{\"Total Reserved\":", row.reserved_bytes);
    out_.put_pair(",\"Total Allocated\":", row.allocated_bytes);
    out_.put_pair(",\"Bytes\":", row.bytes);
    out_.put_pair(",\"Device Id\":", on_host ? int64_t{-1} : int64_t{row.ordinal});
    out_.put_pair(",\"Device Type\":", on_host ? kCpu : kCuda);
  }

  // -- streams and counters -------------------------------------------------------------------------------------------
  void write_stream(const Track& track) {
    const uint32_t stream = store_.track.stream[track.row];
    open_lanes(track, device_of(track), stream != kNone ? stream : next_tid_++, stream_label(store_, track.row),
               stream);
    for (const Slice& slice : track.slices) {
      switch (slice.source) {
        case Source::Annotation:
          write_annotation(slice);
          break;
        case Source::Kernel:
          write_kernel(slice);
          break;
        case Source::Memcpy:
          write_copy(slice);
          break;
        case Source::Memset:
          write_fill(slice);
          break;
        default:
          write_graph(slice);
          break;
      }
    }
  }

  void write_annotation(const Slice& slice) {
    const uint32_t region = annotations_.region[slice.row];
    begin_slice(text_.gpu_annotation(store_.region.path[region]), slice);
    out_.put_pair(",\"args\":{\"External id\":", uint64_t{region} + 1);
    out_.put("}}");
  }

  void write_kernel(const Slice& slice) {
    const auto row = store_.kernel[slice.row];
    begin_work(text_.kernel(row.variant), slice, row);
    out_.put(text_.kernel_arguments(row.variant));
    text_.put_payloads(out_, links_.payload_owner(row.region));
    end_work(Work::Kernel, slice, row);
  }

  void write_copy(const Slice& slice) {
    const auto row = store_.memcpy[slice.row];
    begin_work(text_.copy(row.kind, row.source, row.destination), slice, row);
    put_bytes(row.bytes, row.duration_ns);
    if (row.peer != 255) {
      out_.put_pair(",\"peer device\":", row.peer);
    }
    end_work(Work::Memcpy, slice, row);
  }

  void write_fill(const Slice& slice) {
    const auto row = store_.memset[slice.row];
    begin_work(fill_head_, slice, row);
    put_bytes(row.bytes, row.duration_ns);
    out_.put_pair(",\"value\":", row.value);
    end_work(Work::Memset, slice, row);
  }

  void write_graph(const Slice& slice) {
    const auto row = store_.graph_launch[slice.row];
    begin_work(graph_head_, slice, row);
    out_.put_pair(",\"graph id\":", row.graph);
    end_work(Work::GraphLaunch, slice, row);
  }

  void write_sync(const Slice& slice) {
    const auto row = store_.sync[slice.row];
    const std::string_view kind = store::sync_name(store::SyncKind{row.kind});
    begin_work(ChromeText::head("cuda_sync", kind), slice, row);
    out_.put(",\"cuda_sync_kind\":");
    out_.put(quoted(kind));
    out_.put(text_.region_argument(row.region));
    out_.put("}}");
  }

  template <class Row>
  void begin_work(std::string_view head, const Slice& slice, const Row& row) {
    begin_slice(head, slice);
    out_.put(text_.track(row.track));
    out_.put_number(row.correlation);
    put_external_id(row.region);
  }

  /// The owner of the work, unless the program disabled it.
  void put_external_id(uint32_t region) {
    if (region != kNone && has_external_ids_) {
      out_.put_pair(",\"External id\":", uint64_t{links_.owner(region)} + 1);
    }
  }

  template <class Row>
  void end_work(Work work, const Slice& slice, const Row& row) {
    out_.put(text_.region_argument(row.region));
    text_.put_graph_node(out_, work, slice.row);
    put_notes(row.flags);
    out_.put("}}");
    if (links_.has_call(row.correlation)) {
      put_arrow(true, kLaunchArrow, row.correlation, slice);
    }
  }

  void put_bytes(uint64_t bytes, int64_t duration_ns) {
    constexpr double kMax = 1e15;  // a damaged size must not overflow
    out_.put_pair(",\"bytes\":", bytes);
    if (duration_ns > 0) {
      // Bytes per ns are GB per s. Three decimals, as in torch.
      const double thousandths = 1000.0 * static_cast<double>(bytes) / static_cast<double>(duration_ns);
      out_.put(",\"memory bandwidth (GB/s)\":");
      out_.put_micros(static_cast<int64_t>(std::min(thousandths, kMax)));
    }
  }

  void write_counter(const MemoryCounter& counter) {
    const uint64_t process = counter.device == kNone ? process_ : counter.device;
    const std::string head =
        "{\"ph\":\"C\",\"name\":" + quoted(counter.name) + ",\"pid\":" + std::to_string(process) + ",\"tid\":0,\"ts\":";
    for (const MemoryCounter::Point& point : counter.points) {
      next_event();
      out_.put(head);
      out_.put_micros(std::max(point.at_ns, timeline_.base_ns) - base_ns_);
      out_.put_pair(",\"args\":{\"bytes\":", point.bytes);
      out_.put("}}");
    }
  }

  void write_counter(const HardwareCounter& counter) {
    const std::string head = "{\"ph\":\"C\",\"name\":" + quoted(counter.name) +
                             ",\"pid\":" + std::to_string(counter.device) + ",\"tid\":0,\"ts\":";
    const std::string key = ",\"args\":{" + quoted(counter.unit.empty() ? "value" : counter.unit) + ":";
    for (const HardwareCounter::Point& point : counter.points) {
      next_event();
      out_.put(head);
      out_.put_micros(std::max(point.at_ns, timeline_.base_ns) - base_ns_);
      out_.put(key);
      out_.put_real(point.value);
      out_.put("}}");
    }
  }

  const Store& store_;
  Output out_;
  Links links_;
  GpuAnnotations annotations_;
  Timeline timeline_;
  Window window_;
  int64_t base_ns_;
  std::vector<MemoryCounter> counters_;
  ChromeText text_;
  const bool has_external_ids_ = store_.find_info(kExternalIds) != "off";
  const std::string fill_head_ = ChromeText::head("gpu_memset", store::kMemsetName);
  const std::string graph_head_ = ChromeText::head("graph", store::kGraphName);
  const std::unordered_map<uint32_t, int64_t> step_starts_ = adjust_steps(store_);
  std::vector<std::string> places_;  // of each lane of the current track
  uint64_t process_ = kFirstLaneTid;
  uint64_t next_tid_ = kFirstLaneTid;
  bool is_first_ = true;
};

}  // namespace

void write_chrome(const Store& store, Write write) { ChromeWriter(store, std::move(write)).write(); }

}  // namespace gpuscope::exporters
