// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_fragments.h"

#include "gpuscope/base/demangle.h"
#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/store/labels.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::Store;

std::string event_head(std::string_view category, std::string_view name) {
  return "{\"ph\":\"X\",\"cat\":\"" + std::string(category) + "\",\"name\":" + quoted(name);
}

std::string triple(const char* key, uint32_t x, uint32_t y, uint32_t z) {
  return std::string(",\"") + key + "\":[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) +
         "]";
}

}  // namespace

ChromeFragments::ChromeFragments(const Store& store) : store_(store), graph_nodes_(store) {
  for (const uint32_t name : store.path.name) {
    regions_.push_back(event_head("user_annotation", store.strings[name]));
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
    calls_.push_back(event_head(name.starts_with("cuda") ? "cuda_runtime" : "cuda_driver", name));
    std::string arguments = (call.flags & store::kCaptured) != 0 ? ",\"captured into a graph\":true" : "";
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
    kernel_arguments_.push_back(std::move(arguments));
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
