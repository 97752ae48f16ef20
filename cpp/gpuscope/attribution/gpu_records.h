// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gpuscope/activity/layout.h"
#include "gpuscope/attribution/bounds.h"
#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/attribution/memory_records.h"

namespace gpuscope::attribution {

/// Turns CUPTI's records into rows, each with the region that launched it. The decode thread's.
class GpuRecords {
 public:
  /// `to_ns`: CUPTI's timestamps on the process's clock.
  using ToNs = std::function<int64_t(uint64_t)>;
  /// `on_api`: gets whole-driver API records, where launches are joined by thread and time.
  using OnApi = std::function<void(const activity::ApiRecord&)>;

  explicit GpuRecords(DecodeState& state) : state_(&state), memory_(state) {}

  /// Empty: the timestamps are on the clock already.
  void set_clock(ToNs to_ns) { to_ns_ = std::move(to_ns); }
  void set_api(OnApi on_api) { on_api_ = std::move(on_api); }
  /// Records of memory name the library that asked for it.
  void set_names_libraries(bool names_libraries) { memory_.set_names_libraries(names_libraries); }

  void take(uint32_t kind, const uint8_t* record);
  /// Tries again what came before its launch was known. `last`: what is still unknown is stored without a region.
  void retry(bool last);
  void start_window();
  /// After a forced flush records without timestamps are those of work that still ran, not lost ones.
  void set_forced(bool forced) { forced_ = forced; }
  /// The rows of graph launches have eviction.
  void apply(const Eviction& eviction);

  /// A graph's last launch brought fewer nodes so far than an earlier one.
  bool has_short_graphs() const noexcept { return short_graphs_ != 0; }
  /// A graph was launched only once, so that nobody knows how many nodes it has.
  bool has_new_graphs() const noexcept { return new_graphs_ != 0; }
  /// A timestamp of CUPTI's on the process's clock.
  int64_t ns(uint64_t timestamp) const { return to_ns_ ? to_ns_(timestamp) : static_cast<int64_t>(timestamp); }
  uint64_t records() const noexcept { return records_; }

 private:
  struct Work {  // what kernels, copies and fills have in common
    uint64_t start, end;
    uint32_t device, context, stream, correlation, graph;
    uint64_t graph_node;
  };
  struct Row {
    int64_t start_ns, duration_ns;
    uint32_t reference;
    uint16_t track, flags;
    bool keep;
  };

  void kernel(const activity::KernelRecord& record);
  void memcpy(const activity::MemcpyRecord& record);
  void memcpy_peer(const activity::MemcpyPeerRecord& record);
  void memset(const activity::MemsetRecord& record);
  void synchronization(const activity::SynchronizationRecord& record);
  void graph_trace(const activity::GraphTraceRecord& record);
  void memory(const activity::MemoryRecord& record);
  void memory_pool(const activity::MemoryPoolRecord& record);

  Row place(const Work& work);
  void count_node(const Work& work);
  void copy(const Work& work, const store::Memcpys::Row& like);
  /// True when the row was folded into its graph launch's.
  bool merge(const Work& work, const Row& row);
  void graph_node(const Work& work, const Row& row, store::Work kind, uint32_t event);
  uint32_t capture_path(uint64_t node);
  bool defer(uint32_t kind, const void* record, std::size_t bytes, uint32_t correlation);

  struct Deferred {
    uint32_t kind;
    std::vector<uint8_t> record;
  };
  struct GraphCount {
    uint32_t most = 0, current = 0, correlation = 0, launches = 0;
  };

  DecodeState* state_;
  MemoryRecords memory_;
  ToNs to_ns_;
  OnApi on_api_;
  bool retrying_ = false;
  bool forced_ = false;
  std::vector<Deferred> deferred_;
  base::FlatMap<uint32_t> merged_;  // correlation id -> row of graph_launch
  base::FlatMap<GraphCount> graphs_;
  uint32_t short_graphs_ = 0;
  uint32_t new_graphs_ = 0;
  uint64_t records_ = 0;
};

}  // namespace gpuscope::attribution
