// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/exporters/links.h"
#include "gpuscope/exporters/output.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// The shared parts of JSON events, each formatted once. Only the numbers are left to each event. One thread.
class ChromeText {
 public:
  ChromeText(const store::Store& store, const Links& links);

  /// The beginning of an event, up to its name.
  static std::string head(std::string_view category, std::string_view name);

  std::string_view region(uint32_t path) const { return regions_[path]; }
  /// Without the phase, which asynchronous events write themselves.
  std::string_view region_name(uint32_t path) const { return std::string_view(regions_[path]).substr(kPhase.size()); }
  std::string_view gpu_annotation(uint32_t path);
  std::string_view function(uint32_t name);
  std::string_view sampled_function(uint32_t name);
  std::string_view call(uint32_t call) const { return calls_[call]; }
  std::string_view kernel(uint32_t variant) const { return kernels_[variant]; }
  std::string_view copy(uint8_t kind, uint8_t source, uint8_t destination);

  /// The first arguments of GPU work, up to the value of `correlation`.
  std::string_view track(uint32_t track) const { return tracks_[track]; }

  // Further arguments with torch.profiler's names, each after a comma.
  std::string_view call_arguments(uint32_t call) const { return call_arguments_[call]; }
  std::string_view kernel_arguments(uint32_t variant) const { return kernel_arguments_[variant]; }
  /// Empty for kNone, like the next two.
  std::string_view region_argument(uint32_t region) const {
    return region == store::kNone ? std::string_view{} : region_arguments_[store_.region.path[region]];
  }
  void put_payloads(Output& out, uint32_t region) const;
  void put_stack(Output& out, uint32_t stack);
  /// An operator's sequence number, its forward operator's thread, input shapes and types, and call stack.
  void put_details(Output& out, uint32_t region);
  void put_graph_node(Output& out, store::Work work, uint32_t row) const;

 private:
  static constexpr std::string_view kPhase = "{\"ph\":\"X\"";

  void add_evaluated();
  void add_calls();
  void add_variants();
  void add_tracks();
  void add_captures();
  uint32_t find_evaluated(uint32_t region) const;
  std::string lists_text(uint32_t string) const;
  std::string capture_path(uint32_t path) const;

  const store::Store& store_;
  const Links& links_;
  std::vector<std::string> regions_, calls_, kernels_, tracks_;
  std::vector<std::string> call_arguments_, kernel_arguments_, region_arguments_;
  std::vector<std::string> capture_arguments_;        // by path, for paths with captures
  std::unordered_map<uint32_t, uint32_t> evaluated_;  // rows of `detail`, by the surrounding autograd region
  // Made on first use.
  std::unordered_map<uint32_t, std::string> copies_, gpu_annotations_, functions_, sampled_functions_, shapes_,
      strides_, types_, concrete_inputs_, stacks_;
};

}  // namespace gpuscope::exporters
