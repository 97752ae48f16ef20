// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/event_log.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/exporters/export.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/exporters/links.h"
#include "gpuscope/exporters/output.h"
#include "gpuscope/exporters/timeline.h"
#include "gpuscope/store/call_names.h"
#include "gpuscope/store/store.h"
#include "gpuscope/store/values.h"

namespace gpuscope::exporters {
namespace {

using base::FunctionKind;
using base::RegionKind;
using store::kNone;
using store::PayloadType;
using store::Store;
using store::Work;

constexpr uint64_t kFirstLaneTid = 1'000'000'000;  // past every thread id and stream number
constexpr uint64_t kDeviceSortIndex = 5'000'000;   // torch's: devices stand below processes

constexpr std::string_view kLaunchArrow = ",\"cat\":\"ac2g\",\"name\":\"ac2g\"";
constexpr std::string_view kBackwardArrow = ",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\"";

// -- the parts of events ----------------------------------------------------------------------------------------------

// Arguments that events have of their own: a payload of that name must not take their place.
constexpr std::array kOwnOfRegions = std::to_array<std::string_view>(
    {"External id", "Ev Idx", "Sequence number", "Fwd thread id", "Record function id", "Input Dims", "Input Strides",
     "Input type", "Concrete Inputs", "Call stack", "notes"});
constexpr std::array kOwnOfWork = std::to_array<std::string_view>(
    {"device", "context", "stream", "correlation", "grid", "block", "registers per thread", "shared memory", "region",
     "graph id", "graph node id", "captured in", "Collective name"});

/// Whether a list among the values of a region is one of texts, or of nothing.
bool is_list_of_texts(std::string_view text) { return text == "[]" || (text.starts_with("[\"") && is_json(text)); }

template <std::size_t kSize>
bool contains(const std::array<std::string_view, kSize>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string triple(const char* key, uint32_t x, uint32_t y, uint32_t z) {
  return std::string(",\"") + key + "\":[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) +
         "]";
}

/// A number with two decimals.
std::string decimal(double value) {
  constexpr double kMax = 1e15;
  const auto hundredths = static_cast<uint64_t>(std::llround(std::min(value, kMax) * 100));
  const std::string rest = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + (rest.size() == 1 ? ".0" : ".") + rest;
}

/// The device that every kernel ran on as far as its launch is concerned; none where a recording has several kinds.
std::optional<store::Devices::Row> only_device_kind(const Store& store) {
  for (std::size_t row = 1; row < store.device.size(); ++row) {
    if (store.device.multiprocessors[row] != store.device.multiprocessors[0] ||
        store.device.capability_major[row] != store.device.capability_major[0] ||
        store.device.capability_minor[row] != store.device.capability_minor[0]) {
      return std::nullopt;
    }
  }
  return store.device.size() != 0 ? std::optional(store.device[0]) : std::nullopt;
}

std::string occupancy_arguments(const Store& store, const store::Variants::Row& variant) {
  const auto device = only_device_kind(store);
  const auto limits = device ? multiprocessor_limits(device->capability_major, device->capability_minor) : std::nullopt;
  const auto found = limits ? occupancy(variant, device->multiprocessors, *limits) : std::nullopt;
  return found ? ",\"blocks per SM\":" + decimal(found->blocks_per_multiprocessor) +
                     ",\"warps per SM\":" + decimal(found->warps_per_multiprocessor) +
                     ",\"est. achieved occupancy %\":" + std::to_string(found->percent)
               : "";
}

/// The text of `key`, made when first asked for.
template <class Make>
std::string_view find_or_make(std::unordered_map<uint32_t, std::string>& texts, uint32_t key, Make&& make) {
  std::string& text = texts[key];
  if (text.empty()) {
    text = make();
  }
  return text;
}

void put_float(Output& out, double value) {
  if (!std::isfinite(value)) {
    out.put(quoted(std::to_string(value)));  // JSON has no such numbers
    return;
  }
  char digits[32];
  out.put(std::string_view(digits, std::to_chars(digits, digits + sizeof digits, value).ptr));
}

/// The parts of JSON events that many events share, each made once: what is left for an event are its numbers. One
/// thread.
class ChromeText {
 public:
  ChromeText(const Store& store, const Links& links) : store_(store), links_(links) {
    for (uint32_t path = 0; path < store.path.size(); ++path) {
      const uint32_t name = store.path.name[path];
      const RegionKind kind = links.path_kind(path);
      regions_.push_back(head(region_category(kind), region_label(kind, store.strings[name])));
      region_arguments_.push_back(",\"region\":" + quoted(store.strings[name]));
    }
    add_calls();
    add_variants();
    add_tracks();
    add_captures();
    add_evaluated();
  }

  /// How an event begins, up to its name.
  static std::string head(std::string_view category, std::string_view name) {
    return std::string(kPhase) + ",\"cat\":\"" + std::string(category) + "\",\"name\":" + quoted(name);
  }

  std::string_view region(uint32_t path) const { return regions_[path]; }
  /// The same without the phase, which asynchronous events have of their own.
  std::string_view region_name(uint32_t path) const { return std::string_view(regions_[path]).substr(kPhase.size()); }
  std::string_view gpu_annotation(uint32_t path) {
    return find_or_make(gpu_annotations_, path,
                        [&] { return head("gpu_user_annotation", store_.strings[store_.path.name[path]]); });
  }

  std::string_view function(uint32_t name) {
    return find_or_make(functions_, name, [&] { return head("python_function", store_.strings[name]); });
  }

  std::string_view call(uint32_t call) const { return calls_[call]; }
  std::string_view kernel(uint32_t variant) const { return kernels_[variant]; }
  std::string_view copy(uint8_t kind, uint8_t source, uint8_t destination) {
    const uint32_t key = (uint32_t{kind} << 16) | (uint32_t{source} << 8) | destination;
    return find_or_make(copies_, key, [&] {
      return head("gpu_memcpy",
                  store::copy_name(store::CopyKind{kind}, store::MemoryKind{source}, store::MemoryKind{destination}));
    });
  }

  /// The first arguments of GPU work, up to the value of `correlation`.
  std::string_view track(uint32_t track) const { return tracks_[track]; }

  // Further arguments under torch.profiler's names, each with a comma before it.
  std::string_view call_arguments(uint32_t call) const { return call_arguments_[call]; }
  std::string_view kernel_arguments(uint32_t variant) const { return kernel_arguments_[variant]; }
  /// Nothing for kNone, as with the next two.
  std::string_view region_argument(uint32_t region) const {
    return region == store::kNone ? std::string_view{} : region_arguments_[store_.region.path[region]];
  }

  void put_payloads(Output& out, uint32_t region) const {
    if (region == kNone) {
      return;
    }
    const uint32_t path = store_.region.path[region];
    if (store_.strings[store_.path.domain[path]] == "NCCL") {
      out.put(",\"Collective name\":");
      out.put(quoted(store_.strings[store_.path.name[path]]));
    }
    const bool is_op = links_.kind(region) == RegionKind::Op;
    links_.each_payload(region, [&](uint32_t row) {
      std::string name(store_.strings[store_.payload.name[row]]);
      const auto type = PayloadType{store_.payload.type[row]};
      const uint64_t value = store_.payload.value[row];
      const bool is_text = type == PayloadType::Text || type == PayloadType::List;
      const std::string_view text =
          is_text && value < store_.strings.size() ? store_.strings[static_cast<uint32_t>(value)] : std::string_view{};
      // As in torch's files, which have no None, complex numbers and lists of numbers, and no stream that is not one's
      // number.
      if (type == PayloadType::None || type == PayloadType::Complex ||
          (type == PayloadType::List && !is_list_of_texts(text)) ||
          (is_op && name == "stream" && type != PayloadType::Signed)) {
        return;
      }
      // An operator's stand at its own event alone.
      if (contains(kOwnOfRegions, name) || (!is_op && contains(kOwnOfWork, name))) {
        name += " (payload)";
      }
      out.put(',');
      out.put(quoted(name));
      out.put(':');
      switch (type) {
        case PayloadType::Signed:
          out.put_number(std::bit_cast<int64_t>(value));
          break;
        case PayloadType::Float:
          put_float(out, std::bit_cast<double>(value));
          break;
        case PayloadType::Text:
          out.put(quoted(is_op && text.find('"') != std::string_view::npos ? "None" : text));  // as in torch's files
          break;
        case PayloadType::List:
          out.put(base::to_utf8(text));
          break;
        case PayloadType::Bool:
          out.put(value != 0 ? "true" : "false");
          break;
        default:
          out.put_number(value);
          break;
      }
    });
  }

  void put_stack(Output& out, uint32_t stack) {
    if (stack != kNone) {
      out.put(find_or_make(stacks_, stack, [&] { return ",\"Call stack\":" + quoted(stack_label(store_, stack)); }));
    }
  }

  /// An operator's sequence number, its forward operator's thread, input shapes and types, and call stack.
  void put_details(Output& out, uint32_t region) {
    const uint32_t row = links_.detail(region);
    const bool is_numbered = row != kNone && store_.detail.sequence[row] >= 0;
    if (const uint32_t numbered = is_numbered ? row : find_evaluated(region); numbered != kNone) {
      out.put_pair(",\"Sequence number\":", store_.detail.sequence[numbered]);
      // The system's number of the thread, as "tid" has it; 0 for a forward operator, as in torch's files.
      const uint32_t forward = store_.detail.forward[numbered];
      out.put_pair(",\"Fwd thread id\":",
                   forward == kNone ? 0 : store_.thread.system_id[store_.region.thread[forward]]);
    }
    if (row == kNone) {
      return;
    }
    if (const uint32_t shapes = store_.detail.shapes[row]; shapes != kNone) {
      out.put(find_or_make(shapes_, shapes, [&] { return ",\"Input Dims\":" + lists_text(shapes); }));
    }
    if (const uint32_t strides = store_.detail.strides[row]; strides != kNone) {
      out.put(find_or_make(strides_, strides, [&] { return ",\"Input Strides\":" + lists_text(strides); }));
    }
    if (const uint32_t types = store_.detail.types[row]; types != kNone) {
      out.put(find_or_make(types_, types, [&] { return ",\"Input type\":" + quoted_list(store_.strings[types]); }));
    }
    if (const uint32_t concrete = store_.detail.concrete_inputs[row]; concrete != kNone) {
      out.put(find_or_make(concrete_inputs_, concrete,
                           [&] { return ",\"Concrete Inputs\":" + quoted_list(store_.strings[concrete]); }));
    }
    put_stack(out, store_.detail.stack[row]);
  }

  void put_graph_node(Output& out, store::Work work, uint32_t row) const {
    const uint32_t at = links_.graph_node(work, row);
    if (at == kNone) {
      return;
    }
    const auto node = store_.graph_node[at];
    out.put_pair(",\"graph id\":", node.graph);
    out.put_pair(",\"graph node id\":", node.node);
    if (node.path != kNone) {
      out.put(capture_arguments_[node.path]);
    }
  }

 private:
  static constexpr std::string_view kPhase = "{\"ph\":\"X\"";

  // What autograd evaluates has the number, its region around that none: torch's files have it at both.
  void add_evaluated() {
    for (uint32_t row = 0; row < store_.detail.size(); ++row) {
      const uint32_t region = store_.detail.region[row];
      const uint32_t outer = region != kNone ? store_.region.parent[region] : kNone;
      if (outer == kNone || store_.detail.sequence[row] < 0) {
        continue;
      }
      const std::string_view name = store_.strings[store_.path.name[store_.region.path[outer]]];
      if (name.starts_with(store::kAutogradPrefix) &&
          name.substr(store::kAutogradPrefix.size()) == store_.strings[store_.path.name[store_.region.path[region]]]) {
        evaluated_.try_emplace(outer, row);
      }
    }
  }

  uint32_t find_evaluated(uint32_t region) const {
    const auto found = evaluated_.find(region);
    return found != evaluated_.end() ? found->second : kNone;
  }

  std::string lists_text(uint32_t string) const {
    const std::string_view text = store_.strings[string];
    return is_json(text) ? std::string(text) : quoted(text);
  }

  void add_calls() {
    for (std::size_t row = 0; row < store_.call.size(); ++row) {
      const auto call = store_.call[row];
      const std::string_view name = store_.strings[call.name];
      const std::string_view runtime = name.starts_with("cuda") ? name : store::runtime_name(name);
      calls_.push_back(runtime.empty() ? head("cuda_driver", name) : head("cuda_runtime", runtime));
      std::string arguments = runtime.empty() || runtime == name ? "" : ",\"driver call\":" + quoted(name);
      arguments += (call.flags & store::kCaptured) != 0 ? ",\"captured into a graph\":true" : "";
      if (call.result != 0) {
        arguments += ",\"result\":" + std::to_string(call.result);
      }
      call_arguments_.push_back(std::move(arguments));
    }
  }

  void add_variants() {
    std::unordered_map<uint32_t, std::string> heads;  // many variants share a name
    for (std::size_t row = 0; row < store_.variant.size(); ++row) {
      const auto variant = store_.variant[row];
      kernels_.emplace_back(find_or_make(heads, variant.name,
                                         [&] { return head("kernel", base::demangle(store_.strings[variant.name])); }));
      std::string arguments = triple("grid", variant.grid_x, variant.grid_y, variant.grid_z) +
                              triple("block", variant.block_x, variant.block_y, variant.block_z) +
                              ",\"registers per thread\":" + std::to_string(variant.registers) + ",\"shared memory\":" +
                              std::to_string(uint64_t{variant.static_shared_bytes} + variant.dynamic_shared_bytes);
      if (uint64_t{variant.cluster_x} * variant.cluster_y * variant.cluster_z > 1) {
        arguments += triple("cluster", variant.cluster_x, variant.cluster_y, variant.cluster_z);
      }
      if (variant.local_bytes != 0) {
        arguments += ",\"local memory\":" + std::to_string(variant.local_bytes);
      }
      kernel_arguments_.push_back(arguments + occupancy_arguments(store_, variant));
    }
  }

  void add_tracks() {
    for (std::size_t row = 0; row < store_.track.size(); ++row) {
      const auto track = store_.track[row];
      const int64_t stream = track.stream == kNone ? -1 : int64_t{track.stream};
      tracks_.push_back(",\"args\":{\"device\":" + std::to_string(track.device) + ",\"context\":" +
                        std::to_string(track.context) + ",\"stream\":" + std::to_string(stream) + ",\"correlation\":");
    }
  }

  void add_captures() {
    capture_arguments_.resize(store_.path.size());
    for (const uint32_t path : store_.graph_node.path) {
      if (path != kNone && capture_arguments_[path].empty()) {
        capture_arguments_[path] = ",\"captured in\":" + quoted(capture_path(path));
      }
    }
  }

  std::string capture_path(uint32_t path) const {
    std::string text(store_.strings[store_.path.name[path]]);
    for (path = store_.path.parent[path]; path != kNone; path = store_.path.parent[path]) {
      text.insert(0, 1, '/').insert(0, store_.strings[store_.path.name[path]]);
    }
    return text;
  }

  const store::Store& store_;
  const Links& links_;
  std::vector<std::string> regions_, calls_, kernels_, tracks_;
  std::vector<std::string> call_arguments_, kernel_arguments_, region_arguments_;
  std::vector<std::string> capture_arguments_;        // by path; made for those that captured something
  std::unordered_map<uint32_t, uint32_t> evaluated_;  // rows of `detail`, by the region of autograd around them
  // Made when first asked for.
  std::unordered_map<uint32_t, std::string> copies_, gpu_annotations_, functions_, shapes_, strides_, types_,
      concrete_inputs_, stacks_;
};

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

/// Which of a job's processes this was, as a JSON object; empty where that is not known.
std::string rank_text(const Store& store) {
  std::string text;
  for (const auto& [key, info] : {std::pair("rank", "process.rank"),
                                  {"world_size", "process.world_size"},
                                  {"local_rank", "process.local_rank"}}) {
    const std::string_view number = store.find_info(info);
    if (is_number(number)) {
      // Holistic Trace Analysis looks for `"rank": ` with its space.
      text +=
          (text.empty() ? "{\"" : ",\"") + std::string(key) + "\": " + std::to_string(std::stoul(std::string(number)));
    } else if (text.empty()) {
      return {};  // without a rank the other numbers say nothing
    }
  }
  return text + "}";
}

/// What stands beside the events: of which recording they are, what it holds, and what was asked for or added by the
/// program, whose keys win.
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
    values.erase(key);  // what readers know the format by
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

/// The time that all others are written relative to: by Kineto's rule the latest multiple of a quarter of a year, which
/// traces of other processes have too; us with three decimals since then are exact in a double.
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
  // -- processes and devices -----------------------------------------------------------------------------------------
  uint32_t device_of(const Track& track) const { return store_.track.device[track.row]; }

  void write_process() {
    const std::vector<uint32_t> devices = find_devices(store_, timeline_, counters_);
    process_ = process_id(store_, kFirstLaneTid);
    // A container's first processes have the numbers that devices have, and would be drawn as one with them.
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

  /// Names the lanes of a track, and says where the slices that follow stand. Viewers order lanes by `sort_index`.
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

  // -- what all events have ------------------------------------------------------------------------------------------
  void next_event() {
    out_.cut();
    out_.put(is_first_ ? "" : ",\n");
    is_first_ = false;
  }

  /// An event that names or orders a process or thread; `arguments` is JSON without its braces.
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

  /// One end of an arrow of that category, at the slice's start; arrows of a category are joined by their ids.
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

  /// The window as Kineto has it: a slice of its own, and marks at its beginning and end that readers look for.
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
    // Readers add a start and a duration as floating-point numbers, whose sum may come out 1 ns later.
    constexpr int64_t kRoundingNs = 2;
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

  /// Ranges that nest in nothing, each as an asynchronous pair of events, which viewers lay out themselves.
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

  /// Calls of coroutines and generators that were suspended, each as such a pair from its start to its end.
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

  // -- streams and counters ------------------------------------------------------------------------------------------
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

  /// Whose work it is, unless the program wanted that left out.
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
      // Bytes a ns are GB a s; written with three decimals, as torch does.
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
  std::vector<std::string> places_;  // of each lane of the track that is being written
  uint64_t process_ = kFirstLaneTid;
  uint64_t next_tid_ = kFirstLaneTid;
  bool is_first_ = true;
};

}  // namespace

void write_chrome(const Store& store, Write write) { ChromeWriter(store, std::move(write)).write(); }

}  // namespace gpuscope::exporters
