// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "gpuscope/activity/layout.h"
#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/attribution/gpu_clocks.h"

namespace gpuscope::attribution {

/// Converts CUPTI's records to rows with their launching region. Only for the decode thread.
///
/// Memory records are no GPU work. The audit does not count them, and a window's end does not wait for them: each is
/// complete when its call returns.
class GpuRecords {
 public:
  /// `to_ns`: converts CUPTI's timestamps to the process's clock.
  using ToNs = std::function<int64_t(uint64_t)>;
  /// `on_api`: gets API records of whole driver calls, if launches are joined by thread and time.
  using OnApi = std::function<void(const activity::ApiRecord&)>;

  explicit GpuRecords(DecodeState& state) : state_(&state) {}

  /// Empty: timestamps already use the process's clock.
  void set_clock(ToNs to_ns) { to_ns_ = std::move(to_ns); }
  /// For records with times of the GPU's own clock. Null for other records.
  void set_gpu_clocks(const GpuClocks* clocks) { gpu_clocks_ = clocks; }
  void set_api(OnApi on_api) { on_api_ = std::move(on_api); }
  /// Memory records have the length of CUDA 12.6 and later, and name the allocating library.
  void set_names_libraries(bool names_libraries) { names_libraries_ = names_libraries; }

  void take(uint32_t kind, const uint8_t* record);
  /// Retries the records that arrived before their launch was known. `last`: records without a launch are stored
  /// without a region.
  void retry(bool last);
  /// Assigns waits before a context's first work to its device, when that is known. At the end of a window.
  void place_waits();
  void start_window();
  /// After a forced flush, records without timestamps are of work that still ran, not lost ones.
  void set_forced(bool forced) { forced_ = forced; }
  /// Renumbers the rows of graph launches.
  void apply(const Eviction& eviction);

  /// Whether a graph's last launch has fewer node records so far than an earlier launch.
  bool has_short_graphs() const noexcept { return short_graphs_ != 0; }
  /// Whether a graph was launched only once: its number of nodes is unknown.
  bool has_new_graphs() const noexcept { return new_graphs_ != 0; }
  /// A CUPTI timestamp on the process's clock.
  int64_t ns(uint64_t timestamp) const { return to_ns_ ? to_ns_(timestamp) : static_cast<int64_t>(timestamp); }
  /// Kernels that read a GPU's clock. `agree`: the reading is within the kernel's record, as it must be.
  struct ClockKernels {
    uint64_t seen = 0, agree = 0;
  };
  const ClockKernels& clock_kernels() const noexcept { return clock_kernels_; }

 private:
  struct WorkRecord {  // common to kernels, copies and fills
    uint64_t start, end;
    uint32_t device, context, stream, correlation, graph;
    uint64_t graph_node;
  };
  struct Row {
    int64_t start_ns, duration_ns;
    Reference reference;
    uint16_t track, flags;
    bool keep;
  };

  void kernel(const activity::KernelRecord& record);
  void memcpy(const activity::MemcpyRecord& record);
  void memcpy_peer(const activity::MemcpyPeerRecord& record);
  void memset(const activity::MemsetRecord& record);
  void synchronization(const activity::SynchronizationRecord& record);
  void overhead(const activity::OverheadRecord& record);
  void graph_trace(const activity::GraphTraceRecord& record);
  void memory(const activity::MemoryRecord& record);
  void memory_pool(const activity::MemoryPoolRecord& record);

  template <class Record>
  static WorkRecord work_of(const Record& record);
  /// `kernel`: its name.
  Row place(const WorkRecord& work, const char* kernel = nullptr);
  bool is_clock_kernel(const WorkRecord& work, const char* kernel);
  Row place_memory(uint64_t timestamp, uint32_t correlation);
  uint16_t track(uint32_t device, uint32_t context, uint32_t stream);
  void count_node(const WorkRecord& work);
  void copy(const WorkRecord& work, const store::Memcpys::Row& like);
  /// True if the row was added to its graph launch's row.
  bool merge(const WorkRecord& work, const Row& row);
  void graph_node(const WorkRecord& work, const Row& row, store::Work kind, uint32_t event);
  uint32_t capture_path(uint64_t node);
  uint32_t library(const activity::MemoryRecord& record);
  /// True if the record is kept for retry because its launch is unknown.
  template <class Record>
  bool defer(const Record& record, std::size_t bytes = sizeof(Record));

  struct Deferred {
    uint32_t kind;
    std::vector<uint8_t> record;
  };
  struct GraphCount {
    uint32_t most = 0, current = 0, correlation = 0, launches = 0;
  };

  DecodeState* state_;
  ToNs to_ns_;
  const GpuClocks* gpu_clocks_ = nullptr;
  ClockKernels clock_kernels_;
  OnApi on_api_;
  bool names_libraries_ = false;
  bool retrying_ = false;
  bool forced_ = false;
  std::vector<Deferred> deferred_;
  base::FlatMap<uint32_t> merged_;             // correlation id -> row of graph_launch
  base::FlatMap<uint32_t> device_of_context_;  // of contexts with GPU work
  bool has_unplaced_waits_ = false;
  base::FlatMap<GraphCount> graphs_;
  uint32_t short_graphs_ = 0;
  uint32_t new_graphs_ = 0;
};

}  // namespace gpuscope::attribution
