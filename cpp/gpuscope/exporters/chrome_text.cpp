// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_text.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "gpuscope/base/events.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/store/call_names.h"
#include "gpuscope/store/values.h"

namespace gpuscope::exporters {
namespace {

using base::RegionKind;
using store::kNone;
using store::PayloadType;
using store::Store;

// Reserved argument names: a payload with such a name is renamed.
constexpr std::array kOwnOfRegions = std::to_array<std::string_view>(
    {"External id", "Ev Idx", "Sequence number", "Fwd thread id", "Record function id", "Input Dims", "Input Strides",
     "Input type", "Concrete Inputs", "Call stack", "notes"});
constexpr std::array kOwnOfWork = std::to_array<std::string_view>(
    {"device", "context", "stream", "correlation", "grid", "block", "registers per thread", "shared memory", "region",
     "graph id", "graph node id", "captured in", "Collective name"});

/// Whether the text is a list of texts, or empty.
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

/// The kind of device of all kernels, for their launch limits. None if the recording has several kinds.
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

/// The text of `key`, made on first use.
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
    out.put(quoted(std::to_string(value)));  // JSON has no infinity or NaN
    return;
  }
  char digits[32];
  out.put(std::string_view(digits, std::to_chars(digits, digits + sizeof digits, value).ptr));
}

}  // namespace

ChromeText::ChromeText(const Store& store, const Links& links) : store_(store), links_(links) {
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

std::string ChromeText::head(std::string_view category, std::string_view name) {
  return std::string(kPhase) + ",\"cat\":\"" + std::string(category) + "\",\"name\":" + quoted(name);
}

std::string_view ChromeText::gpu_annotation(uint32_t path) {
  return find_or_make(gpu_annotations_, path,
                      [&] { return head("gpu_user_annotation", store_.strings[store_.path.name[path]]); });
}

std::string_view ChromeText::function(uint32_t name) {
  return find_or_make(functions_, name, [&] { return head("python_function", store_.strings[name]); });
}

std::string_view ChromeText::sampled_function(uint32_t name) {
  return find_or_make(sampled_functions_, name, [&] { return head("python_sample", store_.strings[name]); });
}

std::string_view ChromeText::copy(uint8_t kind, uint8_t source, uint8_t destination) {
  const uint32_t key = (uint32_t{kind} << 16) | (uint32_t{source} << 8) | destination;
  return find_or_make(copies_, key, [&] {
    return head("gpu_memcpy",
                store::copy_name(store::CopyKind{kind}, store::MemoryKind{source}, store::MemoryKind{destination}));
  });
}

void ChromeText::put_payloads(Output& out, uint32_t region) const {
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
    // As in torch's files: they have no None, complex numbers or lists of numbers, and `stream` only as a number.
    if (type == PayloadType::None || type == PayloadType::Complex ||
        (type == PayloadType::List && !is_list_of_texts(text)) ||
        (is_op && name == "stream" && type != PayloadType::Signed)) {
      return;
    }
    // Names of operators' arguments are reserved only at operators.
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

void ChromeText::put_stack(Output& out, uint32_t stack) {
  if (stack != kNone) {
    out.put(find_or_make(stacks_, stack, [&] { return ",\"Call stack\":" + quoted(stack_label(store_, stack)); }));
  }
}

void ChromeText::put_details(Output& out, uint32_t region) {
  const uint32_t row = links_.detail(region);
  const bool is_numbered = row != kNone && store_.detail.sequence[row] >= 0;
  if (const uint32_t numbered = is_numbered ? row : find_evaluated(region); numbered != kNone) {
    out.put_pair(",\"Sequence number\":", store_.detail.sequence[numbered]);
    // The thread's system number, as in "tid". 0 for a forward operator, as in torch's files.
    const uint32_t forward = store_.detail.forward[numbered];
    out.put_pair(",\"Fwd thread id\":", forward == kNone ? 0 : store_.thread.system_id[store_.region.thread[forward]]);
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

void ChromeText::put_graph_node(Output& out, store::Work work, uint32_t row) const {
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

// Only the evaluated operator has the number, not the autograd region around it. torch's files have it at both.
void ChromeText::add_evaluated() {
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

uint32_t ChromeText::find_evaluated(uint32_t region) const {
  const auto found = evaluated_.find(region);
  return found != evaluated_.end() ? found->second : kNone;
}

std::string ChromeText::lists_text(uint32_t string) const {
  const std::string_view text = store_.strings[string];
  return is_json(text) ? std::string(text) : quoted(text);
}

void ChromeText::add_calls() {
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

void ChromeText::add_variants() {
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

void ChromeText::add_tracks() {
  for (std::size_t row = 0; row < store_.track.size(); ++row) {
    const auto track = store_.track[row];
    const int64_t stream = track.stream == kNone ? -1 : int64_t{track.stream};
    tracks_.push_back(",\"args\":{\"device\":" + std::to_string(track.device) + ",\"context\":" +
                      std::to_string(track.context) + ",\"stream\":" + std::to_string(stream) + ",\"correlation\":");
  }
}

void ChromeText::add_captures() {
  capture_arguments_.resize(store_.path.size());
  for (const uint32_t path : store_.graph_node.path) {
    if (path != kNone && capture_arguments_[path].empty()) {
      capture_arguments_[path] = ",\"captured in\":" + quoted(capture_path(path));
    }
  }
}

std::string ChromeText::capture_path(uint32_t path) const {
  std::string text(store_.strings[store_.path.name[path]]);
  for (path = store_.path.parent[path]; path != kNone; path = store_.path.parent[path]) {
    text.insert(0, 1, '/').insert(0, store_.strings[store_.path.name[path]]);
  }
  return text;
}

}  // namespace gpuscope::exporters
