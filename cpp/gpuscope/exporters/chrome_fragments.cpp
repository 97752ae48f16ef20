// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_fragments.h"

#include <algorithm>
#include <optional>

#include "gpuscope/base/demangle.h"
#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/exporters/occupancy.h"
#include "gpuscope/exporters/runtime_names.h"
#include "gpuscope/store/labels.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::Store;

std::string triple(const char* key, uint32_t x, uint32_t y, uint32_t z) {
  return std::string(",\"") + key + "\":[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) +
         "]";
}

/// A number with two decimals.
std::string decimal(double value) {
  constexpr double kMost = 1e15;
  const auto hundredths = static_cast<uint64_t>(std::min(value, kMost) * 100 + 0.5);
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

}  // namespace

std::string ChromeFragments::event_head(std::string_view category, std::string_view name) {
  return std::string(kPhase) + ",\"cat\":\"" + std::string(category) + "\",\"name\":" + quoted(name);
}

ChromeFragments::ChromeFragments(const Store& store, const RegionLinks& links) : store_(store), graph_nodes_(store) {
  for (uint32_t path = 0; path < store.path.size(); ++path) {
    const uint32_t name = store.path.name[path];
    regions_.push_back(event_head(region_category(links.path_kind(path)), store.strings[name]));
    region_arguments_.push_back(",\"region\":" + quoted(store.strings[name]));
  }
  add_calls();
  add_variants();
  add_tracks();
  add_captures();
}

void ChromeFragments::add_calls() {
  for (std::size_t row = 0; row < store_.call.size(); ++row) {
    const auto call = store_.call[row];
    const std::string_view name = store_.strings[call.name];
    const std::string_view runtime = name.starts_with("cuda") ? name : runtime_name(name);
    calls_.push_back(runtime.empty() ? event_head("cuda_driver", name) : event_head("cuda_runtime", runtime));
    std::string arguments = runtime.empty() || runtime == name ? "" : ",\"driver call\":" + quoted(name);
    arguments += (call.flags & store::kCaptured) != 0 ? ",\"captured into a graph\":true" : "";
    if (call.result != 0) {
      arguments += ",\"result\":" + std::to_string(call.result);
    }
    call_arguments_.push_back(std::move(arguments));
  }
}

void ChromeFragments::add_variants() {
  std::unordered_map<uint32_t, std::string> heads;  // many variants share a name
  for (std::size_t row = 0; row < store_.variant.size(); ++row) {
    const auto variant = store_.variant[row];
    std::string& head = heads[variant.name];
    if (head.empty()) {
      head = event_head("kernel", base::demangle(store_.strings[variant.name]));
    }
    kernels_.push_back(head);
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

void ChromeFragments::add_tracks() {
  for (std::size_t row = 0; row < store_.track.size(); ++row) {
    const auto track = store_.track[row];
    const int64_t stream = track.stream == kNone ? -1 : int64_t{track.stream};
    tracks_.push_back(",\"args\":{\"device\":" + std::to_string(device_ordinal(store_, track.device)) +
                      ",\"context\":" + std::to_string(track.context) + ",\"stream\":" + std::to_string(stream) +
                      ",\"correlation\":");
  }
}

void ChromeFragments::add_captures() {
  capture_arguments_.resize(store_.path.size());
  for (const uint32_t path : store_.graph_node.path) {
    if (path != kNone && capture_arguments_[path].empty()) {
      capture_arguments_[path] = ",\"captured in\":" + quoted(capture_path(path));
    }
  }
}

std::string_view ChromeFragments::gpu_annotation(uint32_t path) {
  std::string& head = gpu_annotations_[path];
  if (head.empty()) {
    head = event_head("gpu_user_annotation", store_.strings[store_.path.name[path]]);
  }
  return head;
}

std::string_view ChromeFragments::copy(uint8_t kind, uint8_t source, uint8_t destination) {
  const uint32_t key = (uint32_t{kind} << 16) | (uint32_t{source} << 8) | destination;
  std::string& head = copies_[key];
  if (head.empty()) {
    head = event_head("gpu_memcpy", store::copy_name(store::CopyKind{kind}, store::MemoryKind{source},
                                                     store::MemoryKind{destination}));
  }
  return head;
}

void ChromeFragments::put_graph_node(Output& out, Source source, uint32_t row) const {
  const uint32_t at = graph_nodes_.find(source, row);
  if (at == kNone) {
    return;
  }
  const auto node = store_.graph_node[at];
  out.put(",\"graph id\":");
  out.put_number(node.graph);
  out.put(",\"graph node id\":");
  out.put_number(node.node);
  if (node.path != kNone) {
    out.put(capture_arguments_[node.path]);
  }
}

std::string ChromeFragments::capture_path(uint32_t path) const {
  std::string text(store_.strings[store_.path.name[path]]);
  for (path = store_.path.parent[path]; path != kNone; path = store_.path.parent[path]) {
    text = std::string(store_.strings[store_.path.name[path]]) + "/" + text;
  }
  return text;
}

}  // namespace gpuscope::exporters
