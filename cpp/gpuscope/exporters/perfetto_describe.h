// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "gpuscope/exporters/graph_nodes.h"
#include "gpuscope/exporters/launches.h"
#include "gpuscope/exporters/perfetto_names.h"
#include "gpuscope/exporters/perfetto_sequence.h"
#include "gpuscope/exporters/region_links.h"
#include "gpuscope/exporters/timeline.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// What a Perfetto event is called and tells.
class PerfettoDescriber {
 public:
  PerfettoDescriber(const store::Store& store, PerfettoNames& names);

  /// Replaces `details` and returns the name.
  uint32_t describe(const Slice& slice, EventDetails& details);

 private:
  uint32_t describe_region(uint32_t region, EventDetails& details);
  uint32_t describe_call(uint32_t api, EventDetails& details);
  uint32_t describe_kernel(const Slice& slice, EventDetails& details);
  uint32_t describe_copy(const Slice& slice, EventDetails& details);

  template <class Row>
  void add_work(const Slice& slice, const Row& row, EventDetails& details);
  void add_payloads(uint32_t region, EventDetails& details);
  void add_stack(uint32_t stack, EventDetails& details);
  void add_notes(uint16_t flags, EventDetails& details);
  uint32_t path_name(uint32_t path) const { return names_.plain(store_.path.name[path]); }

  const store::Store& store_;
  PerfettoNames& names_;
  RegionLinks links_;
  Launches launches_;
  GraphNodes graph_nodes_;
  std::array<uint32_t, static_cast<std::size_t>(base::RegionKind::Module) + 1> categories_{};
  std::unordered_map<uint32_t, uint32_t> copy_names_;
  std::unordered_map<uint32_t, uint32_t> stack_names_;
  uint32_t region_label_ = names_.made("region");
  uint32_t configuration_label_ = names_.made("launch");
  uint32_t bytes_label_ = names_.made("bytes");
  uint32_t graph_label_ = names_.made("graph");
  uint32_t capture_label_ = names_.made("captured in");
  uint32_t notes_label_ = names_.made("notes");
  uint32_t sequence_label_ = names_.made("sequence number");
  uint32_t shapes_label_ = names_.made("input shapes");
  uint32_t stack_label_ = names_.made("call stack");
  uint32_t fill_name_ = names_.made("Memset");
  uint32_t graph_name_ = names_.made("CUDA graph");
};

}  // namespace gpuscope::exporters
