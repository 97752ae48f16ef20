// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/exporters/graph_nodes.h"
#include "gpuscope/exporters/output.h"
#include "gpuscope/exporters/region_links.h"
#include "gpuscope/exporters/timeline.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// The parts of JSON events that many share, each made once: what is left for an event are its numbers.
class ChromeFragments {
 public:
  ChromeFragments(const store::Store& store, const RegionLinks& links);

  // How an event begins, up to its name. An asynchronous region's events have their phase and id before it.
  std::string_view region(uint32_t path) const { return regions_[path]; }
  std::string_view region_name(uint32_t path) const { return std::string_view(regions_[path]).substr(kPhase.size()); }
  std::string_view gpu_annotation(uint32_t path);
  std::string_view call(uint32_t call) const { return calls_[call]; }
  std::string_view kernel(uint32_t variant) const { return kernels_[variant]; }
  std::string_view copy(uint8_t kind, uint8_t source, uint8_t destination);
  /// Up to the value of `correlation`.
  std::string_view track(uint32_t track) const { return tracks_[track]; }
  // Further arguments, each with a comma before it.
  std::string_view call_arguments(uint32_t call) const { return call_arguments_[call]; }
  std::string_view kernel_arguments(uint32_t variant) const { return kernel_arguments_[variant]; }
  std::string_view region_argument(uint32_t path) const {
    return path == store::kNone ? std::string_view{} : region_arguments_[path];
  }
  void put_graph_node(Output& out, Source source, uint32_t row) const;

 private:
  static constexpr std::string_view kPhase = "{\"ph\":\"X\"";
  static std::string event_head(std::string_view category, std::string_view name);
  void add_calls();
  void add_variants();
  void add_tracks();
  void add_captures();
  std::string capture_path(uint32_t path) const;

  const store::Store& store_;
  std::vector<std::string> regions_, calls_, kernels_, tracks_;
  std::vector<std::string> call_arguments_, kernel_arguments_, region_arguments_;
  std::unordered_map<uint32_t, std::string> copies_, gpu_annotations_;
  GraphNodes graph_nodes_;
  std::vector<std::string> capture_arguments_;  // by path; made for those that captured something
};

}  // namespace gpuscope::exporters
