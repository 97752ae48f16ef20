// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpuscope/activity/layout.h"
#include "gpuscope/driver/libraries.h"
#include "gpuscope/store/values.h"

// A test names only the fields that it is about; the others are 0.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::fakes {

/// Bytes of a record as CUPTI 13.0 writes it; 0 for kinds that it does not know.
constexpr std::size_t record_bytes(uint32_t kind) {
  switch (kind) {
    case activity::kConcurrentKernel:
      return 216;
    case activity::kMemcpy:
    case activity::kMemcpyPeer:
      return 96;
    case activity::kMemset:
      return 88;
    case activity::kDriver:
    case activity::kRuntime:
      return 40;
    case activity::kSynchronization:
    case activity::kGraphTrace:
      return 56;
    case activity::kMemory:
      return 128;
    case activity::kMemoryPool:
      return 80;
    case activity::kOverhead:
      return 56;
    default:
      return 0;
  }
}

/// cuptiActivityGetNextRecord: from one record to the one behind it.
inline driver::CuptiResult next_record(uint8_t* buffer, size_t valid, void** record) {
  constexpr driver::CuptiResult kInvalidKind = 21;
  auto at = static_cast<std::size_t>(static_cast<uint8_t*>(*record) - buffer);
  uint32_t kind = 0;
  std::memcpy(&kind, buffer + at, sizeof(kind));
  if (record_bytes(kind) == 0) {
    return kInvalidKind;
  }
  at += record_bytes(kind);
  if (at >= valid) {
    return driver::kCuptiMaxLimitReached;
  }
  *record = buffer + at;
  return driver::kCuptiSuccess;
}

/// What the records of GPU work have in common; a test names what it is about.
struct Gpu {
  uint32_t correlation = 0;
  uint64_t start = 0;
  uint64_t end = 0;
  uint32_t device = 0;
  uint32_t context = 1;
  uint32_t stream = 7;
  uint32_t graph = 0;
  uint64_t node = 0;
};

/// One record of any kind, at its full length.
struct Record {
  alignas(8) uint8_t bytes[216] = {};
  std::size_t size = 0;

  uint32_t kind() const {
    uint32_t value = 0;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
};

template <class Layout>
Record as_record(const Layout& layout) {
  Record record;
  record.size = record_bytes(layout.kind);
  std::memcpy(record.bytes, &layout, sizeof(layout));
  return record;
}

template <class Layout>
Layout work_record(uint32_t kind, const Gpu& gpu) {
  Layout record{};
  record.kind = kind;
  record.correlation = gpu.correlation;
  record.start = gpu.start;
  record.end = gpu.end;
  record.device = gpu.device;
  record.context = gpu.context;
  record.stream = gpu.stream;
  record.graph = gpu.graph;
  return record;
}

inline Record kernel_record(const Gpu& gpu, const char* name = "kernel", int32_t grid = 1) {
  auto record = work_record<activity::KernelRecord>(activity::kConcurrentKernel, gpu);
  record.graph_node = gpu.node;
  record.name = name;
  for (int axis = 0; axis < 3; ++axis) {
    record.grid[axis] = axis == 0 ? grid : 1;
    record.block[axis] = 1;
  }
  return as_record(record);
}

inline Record memcpy_record(const Gpu& gpu, uint64_t bytes, uint8_t kind = 1) {
  auto record = work_record<activity::MemcpyRecord>(activity::kMemcpy, gpu);
  record.graph_node = gpu.node;
  record.bytes = bytes;
  record.copy_kind = kind;
  record.source = 1;
  record.destination = 3;
  return as_record(record);
}

inline Record peer_record(const Gpu& gpu, uint64_t bytes, uint32_t from, uint32_t to) {
  auto record = work_record<activity::MemcpyPeerRecord>(activity::kMemcpyPeer, gpu);
  record.graph_node = gpu.node;
  record.bytes = bytes;
  record.copy_kind = 10;
  record.source_device = from;
  record.destination_device = to;
  return as_record(record);
}

inline Record memset_record(const Gpu& gpu, uint64_t bytes, uint32_t value = 0) {
  auto record = work_record<activity::MemsetRecord>(activity::kMemset, gpu);
  record.graph_node = gpu.node;
  record.bytes = bytes;
  record.value = value;
  return as_record(record);
}

inline Record sync_record(const Gpu& gpu, uint32_t type) {
  activity::SynchronizationRecord record{};
  record.kind = activity::kSynchronization;
  record.type = type;
  record.start = gpu.start;
  record.end = gpu.end;
  record.correlation = gpu.correlation;
  record.context = gpu.context;
  record.stream = gpu.stream;
  return as_record(record);
}

inline Record overhead_record(store::OverheadKind kind, uint32_t thread, uint64_t start, uint64_t end) {
  activity::OverheadRecord record{};
  record.kind = activity::kOverhead;
  record.overhead_kind = static_cast<uint32_t>(kind);
  record.object_kind = activity::kThreadObject;
  record.thread = thread;
  record.start = start;
  record.end = end;
  return as_record(record);
}

inline Record graph_record(const Gpu& gpu) {
  return as_record(work_record<activity::GraphTraceRecord>(activity::kGraphTrace, gpu));
}

inline Record api_record(uint32_t kind, uint32_t callback, const Gpu& gpu, uint64_t thread, uint32_t result = 0) {
  activity::ApiRecord record{};
  record.kind = kind;
  record.callback = callback;
  record.start = gpu.start;
  record.end = gpu.end;
  record.thread = static_cast<uint32_t>(thread);
  record.correlation = gpu.correlation;
  record.result = result;
  return as_record(record);
}

/// What a test says of memory that was taken or given back.
struct Memory {
  uint32_t correlation = 0;
  uint64_t at = 0;
  uint64_t bytes = 0;
  bool given_back = false;
  uint64_t address = 0x1000;
  store::MemoryKind kind = store::MemoryKind::Device;
  uint32_t device = 0;
  uint32_t stream = 7;
  bool is_async = false;
  uint64_t pool = 0;
  uint32_t pool_type = 0;
  uint64_t pool_size = 0;
  uint64_t pool_used = 0;
  const char* source = nullptr;
};

inline Record memory_record(const Memory& memory) {
  activity::SourcedMemoryRecord sourced{};
  activity::MemoryRecord& record = sourced.memory;
  record.kind = activity::kMemory;
  record.operation = memory.given_back ? activity::kRelease : activity::kAllocate;
  record.memory_kind = static_cast<uint32_t>(memory.kind);
  record.correlation = memory.correlation;
  record.address = memory.address;
  record.bytes = memory.bytes;
  record.timestamp = memory.at;
  record.device = memory.device;
  record.context = 1;
  record.stream = memory.stream;
  record.is_async = memory.is_async ? 1 : 0;
  record.pool_type = memory.pool_type;
  record.pool = memory.pool;
  record.pool_size = memory.pool_size;
  record.pool_used = memory.pool_used;
  sourced.source = memory.source;
  Record made;
  made.size = record_bytes(activity::kMemory);
  std::memcpy(made.bytes, &sourced, sizeof(sourced));
  return made;
}

inline Record pool_record(store::PoolOperation operation, const Memory& memory, uint64_t release_threshold = 0) {
  activity::MemoryPoolRecord record{};
  record.kind = activity::kMemoryPool;
  record.operation = static_cast<uint32_t>(operation);
  record.pool_type = memory.pool_type;
  record.correlation = memory.correlation;
  record.device = memory.device;
  record.pool = memory.pool;
  record.size = memory.pool_size;
  record.used = memory.pool_used;
  record.release_threshold = release_threshold;
  record.timestamp = memory.at;
  return as_record(record);
}

/// Records one behind the other, as in one of CUPTI's buffers.
inline std::vector<uint8_t> join(const std::vector<Record>& records) {
  std::vector<uint8_t> bytes;
  for (const Record& record : records) {
    for (std::size_t at = 0; at < record.size; ++at) {
      bytes.push_back(record.bytes[at]);
    }
  }
  return bytes;
}

}  // namespace gpuscope::fakes
