// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/gpu_records.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "gpuscope/store/values.h"
#include "gpuscope/timing/device_clock.h"

namespace gpuscope::attribution {
namespace {

using store::kNone;

// Records with an unknown launch: room for 200,000 launches in flight.
constexpr std::size_t kMaxDeferred = 200'000;
constexpr std::size_t kMaxMerged = 1 << 16;
constexpr std::size_t kMaxGraphs = 1 << 16;
constexpr int kMaxCloneDepth = 8;

template <class Record>
const Record& as(const uint8_t* record) {
  return *reinterpret_cast<const Record*>(record);
}

}  // namespace

void GpuRecords::take(uint32_t kind, const uint8_t* record) {
  switch (kind) {
    case activity::kConcurrentKernel:
      return kernel(as<activity::KernelRecord>(record));
    case activity::kMemcpy:
      return memcpy(as<activity::MemcpyRecord>(record));
    case activity::kMemcpyPeer:
      return memcpy_peer(as<activity::MemcpyPeerRecord>(record));
    case activity::kMemset:
      return memset(as<activity::MemsetRecord>(record));
    case activity::kSynchronization:
      return synchronization(as<activity::SynchronizationRecord>(record));
    case activity::kOverhead:
      return overhead(as<activity::OverheadRecord>(record));
    case activity::kGraphTrace:
      return graph_trace(as<activity::GraphTraceRecord>(record));
    case activity::kMemory:
      return memory(as<activity::MemoryRecord>(record));
    case activity::kMemoryPool:
      return memory_pool(as<activity::MemoryPoolRecord>(record));
    case activity::kDriver:
    case activity::kRuntime:
      if (on_api_) {
        on_api_(as<activity::ApiRecord>(record));
      }
      return;
    default:
      return;  // another CUPTI client enabled this record kind
  }
}

template <class Record>
bool GpuRecords::defer(const Record& record, std::size_t bytes) {
  if (!state_->settings.by_time || retrying_ || deferred_.size() >= kMaxDeferred ||
      state_->correlations.find(record.correlation) != Correlations::kUnknown) {
    return false;
  }
  const auto* first = reinterpret_cast<const uint8_t*>(&record);
  deferred_.push_back({record.kind, {first, first + bytes}});
  return true;
}

void GpuRecords::retry(bool last) {
  std::vector<Deferred> waiting;
  waiting.swap(deferred_);
  retrying_ = last;
  for (const Deferred& each : waiting) {
    take(each.kind, each.record.data());
  }
  retrying_ = false;
}

void GpuRecords::start_window() {
  merged_.clear();
  graphs_.each([](uint64_t, GraphCount& graph) {
    graph.current = graph.most;
    graph.launches = 2;
  });
  short_graphs_ = new_graphs_ = 0;
}

void GpuRecords::apply(const Eviction& eviction) {
  merged_.each([&](uint64_t, uint32_t& row) { row = eviction.graph_launch(row); });
}

uint16_t GpuRecords::track(uint32_t device, uint32_t context, uint32_t stream) {
  device_of_context_.set(context, device);
  return state_->dictionaries.track(device, context, stream);
}

void GpuRecords::place_waits() {
  if (!std::exchange(has_unplaced_waits_, false)) {
    return;
  }
  store::Syncs& waits = state_->store->sync;
  for (std::size_t row = 0; row < waits.size(); ++row) {
    const store::Tracks::Row at = state_->dictionaries.track(waits.track[row]);
    if (const uint32_t* device = device_of_context_.find(at.context); device != nullptr && *device != at.device) {
      waits.track[row] = state_->dictionaries.track(*device, at.context, at.stream);
    }
  }
}

template <class Record>
GpuRecords::WorkRecord GpuRecords::work_of(const Record& record) {
  return {record.start,  record.end,         record.device, record.context,
          record.stream, record.correlation, record.graph,  record.graph_node};
}

// Launched by this package, without a logged launch.
bool GpuRecords::is_clock_kernel(const WorkRecord& work, const char* kernel) {
  if (gpu_clocks_ == nullptr || kernel == nullptr || std::string_view(kernel) != timing::DeviceClock::kKernel) {
    return false;
  }
  ++clock_kernels_.seen;
  clock_kernels_.agree += gpu_clocks_->was_read_between(work.device, work.start, work.end);
  return true;
}

GpuRecords::Row GpuRecords::place(const WorkRecord& work, const char* kernel) {
  Counters& counters = state_->counters;
  const auto to_ns = [&](uint64_t timestamp) {
    return gpu_clocks_ != nullptr ? gpu_clocks_->to_ns(work.device, timestamp) : ns(timestamp);
  };
  Row row{to_ns(work.start), 0, kNone, 0, 0, true};
  const bool has_no_clock = gpu_clocks_ != nullptr && !gpu_clocks_->knows(work.device);
  if (work.start == 0 && work.end == 0) {
    row.flags |= store::kZeroTime | (forced_ ? store::kIncomplete : 0);
    row.start_ns = 0;
  } else if (has_no_clock) {
    row.flags |= store::kZeroTime;
    row.start_ns = 0;
    row.duration_ns = static_cast<int64_t>(std::max(work.end, work.start) - work.start);
  } else if (work.end == 0) {
    row.flags |= store::kIncomplete;
  } else if (work.end < work.start) {
    row.flags |= store::kBackwardTime;
  } else {
    row.duration_ns = to_ns(work.end) - row.start_ns;
  }
  const auto [value, awaited] = state_->correlations.take(work.correlation);
  if (value == Correlations::kOutside) {
    row.keep = false;
    return row;
  }
  if (value == Correlations::kUnknown && is_clock_kernel(work, kernel)) {
    row.keep = false;
    return row;
  }
  if (value == Correlations::kUnknown) {
    row.keep = work.start != 0 && state_->window.keeps_calls(row.start_ns);
    row.flags |= store::kNoLaunch;
  } else if (value != Correlations::kNowhere) {
    row.reference = Correlations::decode(value);
  }
  if (!row.keep) {
    return row;
  }
  counters.matched += awaited == Correlations::Awaits::Kernel;
  counters.matched_copies += awaited == Correlations::Awaits::Copy;
  counters.matched_graphs += awaited == Correlations::Awaits::Graph;
  ++counters.gpu_records;
  counters.refused += state_->full;
  counters.zero_time += (row.flags & (store::kZeroTime | store::kIncomplete)) == store::kZeroTime;
  counters.incomplete += (row.flags & store::kIncomplete) != 0;
  counters.backward_time += (row.flags & store::kBackwardTime) != 0;
  counters.unattributed += (row.flags & store::kNoLaunch) != 0;
  if (work.graph_node != 0) {
    row.flags |= store::kInGraph;
    ++counters.graph_nodes;
    count_node(work);
  }
  row.track = track(work.device, work.context, work.stream);
  return row;
}

void GpuRecords::count_node(const WorkRecord& work) {
  if (graphs_.size() >= kMaxGraphs) {
    graphs_.clear();
    short_graphs_ = new_graphs_ = 0;
  }
  GraphCount& graph = graphs_.find_or_make(work.graph, [] { return GraphCount{}; });
  short_graphs_ -= graph.current < graph.most;
  new_graphs_ -= graph.launches == 1;
  if (graph.launches == 0 || graph.correlation != work.correlation) {
    graph.correlation = work.correlation;
    graph.current = 0;
    ++graph.launches;
  }
  graph.most = std::max(graph.most, ++graph.current);
  short_graphs_ += graph.current < graph.most;
  new_graphs_ += graph.launches == 1;
}

bool GpuRecords::merge(const WorkRecord& work, const Row& row) {
  if (work.graph_node == 0 || !state_->settings.merge_graphs || !state_->keeps_rows()) {
    return false;
  }
  if (merged_.size() >= kMaxMerged) {
    merged_.clear();
  }
  store::GraphLaunches& launches = state_->store->graph_launch;
  const auto flags = static_cast<uint16_t>(row.flags & ~store::kInGraph);
  bool fresh = false;
  const uint32_t at = merged_.find_or_make(work.correlation, [&] {
    fresh = true;
    return launches.append(
        {row.start_ns, row.duration_ns, work.correlation, work.graph, row.reference, row.track, flags});
  });
  if (fresh || at == kNone) {
    return true;
  }
  int64_t& start_ns = launches.start_ns[at];
  int64_t& duration_ns = launches.duration_ns[at];
  const bool had_time = (launches.flags[at] & store::kZeroTime) == 0;
  const bool has_time = (flags & store::kZeroTime) == 0;
  if (had_time == has_time) {
    const int64_t end_ns = std::max(start_ns + duration_ns, row.start_ns + row.duration_ns);
    start_ns = std::min(start_ns, row.start_ns);
    duration_ns = end_ns - start_ns;
  } else if (has_time) {
    start_ns = row.start_ns;
    duration_ns = row.duration_ns;
  }
  launches.flags[at] |= flags;
  if (had_time || has_time) {  // the launch takes its time from the nodes that have one
    launches.flags[at] &= static_cast<uint16_t>(~store::kZeroTime);
  }
  return true;
}

uint32_t GpuRecords::capture_path(uint64_t node) {
  // Instantiating a graph clones its nodes, and CUPTI reports the original later. Only the first node of the chain was
  // captured.
  for (int depth = 0; depth < kMaxCloneDepth; ++depth) {
    const uint64_t* origin = state_->node_origins.find(node);
    if (origin == nullptr) {
      break;
    }
    node = *origin;
  }
  const uint32_t* path = state_->node_paths.find(node);
  return path != nullptr ? *path : kNone;
}

void GpuRecords::graph_node(const WorkRecord& work, const Row& row, store::Work kind, uint32_t event) {
  if (work.graph_node != 0) {
    state_->store->graph_node.append(
        {event, work.graph, work.graph_node, capture_path(work.graph_node), static_cast<uint16_t>(kind), row.flags});
  }
}

void GpuRecords::kernel(const activity::KernelRecord& record) {
  if (defer(record)) {
    return;
  }
  const WorkRecord work = work_of(record);
  const Row row = place(work, record.name);
  if (!row.keep) {
    return;
  }
  state_->counters.kernels += work.graph_node == 0;
  if (state_->settings.no_kernels) {
    return;
  }
  const uint32_t name = state_->dictionaries.pinned(record.name);
  state_->counters.unnamed += state_->dictionaries.is_unnamed(name);
  if (state_->aggregates()) {
    return state_->totals.add_work(row.reference, store::Work::Kernel, name, row.duration_ns);
  }
  if (merge(work, row) || !state_->keeps_rows()) {
    return;
  }
  const auto u32 = [](int32_t value) { return static_cast<uint32_t>(value); };
  const uint32_t variant = state_->dictionaries.variant(
      {name, u32(record.grid[0]), u32(record.grid[1]), u32(record.grid[2]), u32(record.block[0]), u32(record.block[1]),
       u32(record.block[2]), record.cluster[0], record.cluster[1], record.cluster[2], u32(record.static_shared_bytes),
       u32(record.dynamic_shared_bytes), record.local_bytes_per_thread, record.registers_per_thread});
  const uint32_t event = state_->store->kernel.append(
      {row.start_ns, row.duration_ns, record.correlation, variant, row.reference, row.track, row.flags});
  graph_node(work, row, store::Work::Kernel, event);
}

void GpuRecords::copy(const WorkRecord& work, const store::Memcpys::Row& like) {
  const Row row = place(work);
  if (!row.keep || state_->settings.no_copies) {
    return;
  }
  if (state_->aggregates()) {
    const std::string name = store::copy_name(store::CopyKind{like.kind}, store::MemoryKind{like.source},
                                              store::MemoryKind{like.destination});
    return state_->totals.add_work(row.reference, store::Work::Memcpy, state_->dictionaries.string(name),
                                   row.duration_ns, like.bytes);
  }
  if (merge(work, row) || !state_->keeps_rows()) {
    return;
  }
  store::Memcpys::Row filled = like;
  filled.start_ns = row.start_ns;
  filled.duration_ns = row.duration_ns;
  filled.region = row.reference;
  filled.track = row.track;
  filled.flags = row.flags;
  graph_node(work, row, store::Work::Memcpy, state_->store->memcpy.append(filled));
}

void GpuRecords::memcpy(const activity::MemcpyRecord& record) {
  if (defer(record)) {
    return;
  }
  constexpr uint8_t kNoPeer = 255;
  copy(work_of(record), {0, 0, record.bytes, record.correlation, kNone, 0, 0, record.copy_kind, record.source,
                         record.destination, kNoPeer});
}

void GpuRecords::memcpy_peer(const activity::MemcpyPeerRecord& record) {
  if (defer(record)) {
    return;
  }
  const uint32_t peer = record.device == record.source_device ? record.destination_device : record.source_device;
  copy(work_of(record), {0, 0, record.bytes, record.correlation, kNone, 0, 0, record.copy_kind, record.source,
                         record.destination, static_cast<uint8_t>(peer)});
}

void GpuRecords::memset(const activity::MemsetRecord& record) {
  if (defer(record)) {
    return;
  }
  const WorkRecord work = work_of(record);
  const Row row = place(work);
  if (!row.keep || state_->settings.no_fills) {
    return;
  }
  if (state_->aggregates()) {
    return state_->totals.add_work(row.reference, store::Work::Memset, state_->dictionaries.string(store::kMemsetName),
                                   row.duration_ns, record.bytes);
  }
  if (merge(work, row) || !state_->keeps_rows()) {
    return;
  }
  const uint32_t event = state_->store->memset.append({row.start_ns, row.duration_ns, record.bytes, record.value,
                                                       record.correlation, row.reference, row.track, row.flags});
  graph_node(work, row, store::Work::Memset, event);
}

void GpuRecords::synchronization(const activity::SynchronizationRecord& record) {
  const int64_t start_ns = ns(record.start);
  const uint32_t value = state_->correlations.find(record.correlation);
  if (value == Correlations::kOutside || !state_->window.keeps_calls(start_ns)) {
    return;
  }
  const bool placed = value != Correlations::kUnknown && value != Correlations::kNowhere;
  const uint32_t reference = placed ? Correlations::decode(value) : kNone;
  const int64_t duration_ns = std::max<int64_t>(0, ns(record.end) - start_ns);
  if (state_->keeps_rows()) {
    // The record names no device. The context's device is known after its first work.
    const uint32_t* device = device_of_context_.find(record.context);
    has_unplaced_waits_ |= device == nullptr;
    const uint16_t at = state_->dictionaries.track(device != nullptr ? *device : 0, record.context, record.stream);
    state_->store->sync.append(
        {start_ns, duration_ns, record.correlation, reference, at, static_cast<uint16_t>(record.type)});
  } else {
    state_->counters.refused += state_->full;
  }
}

void GpuRecords::overhead(const activity::OverheadRecord& record) {
  const int64_t start_ns = ns(record.start);
  if (record.start == 0 || record.end < record.start || !state_->window.keeps_calls(start_ns)) {
    return;
  }
  if (state_->keeps_rows()) {
    const uint32_t thread = record.object_kind == activity::kThreadObject ? record.thread : 0;
    state_->store->overhead.append({start_ns, ns(record.end) - start_ns, record.overhead_kind, thread});
  } else {
    state_->counters.refused += state_->full;
  }
}

void GpuRecords::graph_trace(const activity::GraphTraceRecord& record) {
  if (defer(record)) {
    return;
  }
  const Row row = place(
      {record.start, record.end, record.device, record.context, record.stream, record.correlation, record.graph, 0});
  if (!row.keep || state_->settings.no_kernels) {
    return;
  }
  if (state_->aggregates()) {
    return state_->totals.add_work(row.reference, store::Work::GraphLaunch,
                                   state_->dictionaries.string(store::graph_name(record.graph)), row.duration_ns);
  }
  if (state_->keeps_rows()) {
    state_->store->graph_launch.append(
        {row.start_ns, row.duration_ns, record.correlation, record.graph, row.reference, row.track, row.flags});
  }
}

GpuRecords::Row GpuRecords::place_memory(uint64_t timestamp, uint32_t correlation) {
  const bool timed = timestamp != 0;
  Row row{timed ? ns(timestamp) : 0, 0, kNone, 0, 0, true};
  row.flags |= timed ? 0 : store::kZeroTime;
  const uint32_t value = state_->correlations.find(correlation);
  if (value == Correlations::kUnknown) {
    row.keep = timed && state_->window.keeps_calls(row.start_ns);
    row.flags |= store::kNoLaunch;
  } else if (value == Correlations::kOutside) {
    row.keep = false;
  } else if (value != Correlations::kNowhere) {
    row.reference = Correlations::decode(value);
  }
  if (row.keep && !state_->keeps_rows()) {
    state_->counters.refused += state_->full;
    row.keep = false;
  }
  return row;
}

uint32_t GpuRecords::library(const activity::MemoryRecord& record) {
  if (!names_libraries_) {
    return kNone;
  }
  // Copied as text: CUPTI does not document how long the pointer is valid.
  const char* source = reinterpret_cast<const activity::SourcedMemoryRecord&>(record).source;
  return source != nullptr && *source != '\0' ? state_->dictionaries.string(source) : kNone;
}

void GpuRecords::memory(const activity::MemoryRecord& record) {
  if (defer(record, names_libraries_ ? sizeof(activity::SourcedMemoryRecord) : sizeof(record)) ||
      (record.operation != activity::kAllocate && record.operation != activity::kRelease)) {
    return;
  }
  Row row = place_memory(record.timestamp, record.correlation);
  if (!row.keep) {
    return;
  }
  const auto bytes = static_cast<int64_t>(record.bytes);
  const bool in_order = record.is_async != 0;
  const bool is_local = record.pool_type == activity::kLocalPool;
  const bool is_pooled = is_local || record.pool_type == activity::kImportedPool;
  row.track = track(record.device, record.context, in_order ? record.stream : kNone);
  state_->store->device_memory.append({row.start_ns, record.operation == activity::kAllocate ? bytes : -bytes,
                                       record.address, is_pooled ? record.pool : 0, is_local ? record.pool_size : 0,
                                       is_local ? record.pool_used : 0, record.correlation, row.reference,
                                       library(record), row.track, row.flags,
                                       static_cast<uint8_t>(record.memory_kind)});
}

void GpuRecords::memory_pool(const activity::MemoryPoolRecord& record) {
  if (defer(record)) {
    return;
  }
  const Row row = place_memory(record.timestamp, record.correlation);
  if (!row.keep) {
    return;
  }
  const bool is_local = record.pool_type == activity::kLocalPool;
  state_->store->memory_pool.append({row.start_ns, record.pool, is_local ? record.size : 0, is_local ? record.used : 0,
                                     is_local ? record.release_threshold : 0, record.correlation, row.reference,
                                     record.device, row.flags, static_cast<uint8_t>(record.operation)});
}

}  // namespace gpuscope::attribution
