// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// The used parts of CUPTI's records and callback data: prefixes with an unchanged layout since CUDA 12.0, so that one
// build reads every later libcupti. layout.cpp checks them against CUPTI's headers.
namespace gpuscope::activity {

enum Kind : uint32_t {
  kMemcpy = 1,
  kMemset = 2,
  kDriver = 4,
  kRuntime = 5,
  kConcurrentKernel = 10,
  kOverhead = 17,
  kMemcpyPeer = 22,
  kSynchronization = 38,
  kMemory = 49,  // MEMORY2: one record each for allocation and release
  kMemoryPool = 50,
  kGraphTrace = 51,
};

struct KernelRecord {
  uint32_t kind;
  uint8_t cache_config;
  uint8_t shared_memory_config;
  uint16_t registers_per_thread;
  uint64_t unused0;
  uint64_t start;
  uint64_t end;
  uint64_t completed;
  uint32_t device;
  uint32_t context;
  uint32_t stream;
  int32_t grid[3];
  int32_t block[3];
  int32_t static_shared_bytes;
  int32_t dynamic_shared_bytes;
  uint32_t local_bytes_per_thread;
  uint32_t local_bytes_total;
  uint32_t correlation;
  int64_t grid_id;
  const char* name;
  void* reserved0;
  uint64_t queued;
  uint64_t submitted;
  uint8_t launch_type;
  uint8_t shared_carveout_set;
  uint8_t shared_carveout;
  uint8_t padding;
  uint32_t shared_executed_bytes;
  uint64_t graph_node;
  uint32_t shared_limit;
  uint32_t graph;
  void* access_policy;
  uint32_t channel;
  uint32_t channel_type;
  uint32_t cluster[3];
  uint32_t cluster_policy;
};

struct MemcpyRecord {
  uint32_t kind;
  uint8_t copy_kind;
  uint8_t source;
  uint8_t destination;
  uint8_t flags;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device;
  uint32_t context;
  uint32_t stream;
  uint32_t correlation;
  uint32_t runtime_correlation;
  uint32_t padding;
  void* reserved0;
  uint64_t graph_node;
  uint32_t graph;
};

struct MemcpyPeerRecord {
  uint32_t kind;
  uint8_t copy_kind;
  uint8_t source;
  uint8_t destination;
  uint8_t flags;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device;
  uint32_t context;
  uint32_t stream;
  uint32_t source_device;
  uint32_t source_context;
  uint32_t destination_device;
  uint32_t destination_context;
  uint32_t correlation;
  void* reserved0;
  uint64_t graph_node;
  uint32_t graph;
};

struct MemsetRecord {
  uint32_t kind;
  uint32_t value;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device;
  uint32_t context;
  uint32_t stream;
  uint32_t correlation;
  uint16_t flags;
  uint16_t memory_kind;
  uint32_t padding;
  void* reserved0;
  uint64_t graph_node;
  uint32_t graph;
};

struct SynchronizationRecord {
  uint32_t kind;
  uint32_t type;
  uint64_t start;
  uint64_t end;
  uint32_t correlation;
  uint32_t context;
  uint32_t stream;
};

struct OverheadRecord {
  uint32_t kind;
  uint32_t overhead_kind;  // store::OverheadKind
  uint32_t object_kind;    // ObjectKind
  uint32_t process;
  uint32_t thread;  // of a thread
  uint32_t unused;
  uint64_t start;
  uint64_t end;
};

struct ApiRecord {
  uint32_t kind;
  uint32_t callback;
  uint64_t start;
  uint64_t end;
  uint32_t process;
  uint32_t thread;
  uint32_t correlation;
  uint32_t result;
};

struct GraphTraceRecord {
  uint32_t kind;
  uint32_t correlation;
  uint64_t start;
  uint64_t end;
  uint32_t device;
  uint32_t graph;
  uint32_t context;
  uint32_t stream;
};

struct MemoryRecord {
  uint32_t kind;
  uint32_t operation;  // MemoryOperation
  uint32_t memory_kind;
  uint32_t correlation;
  uint64_t address;
  uint64_t bytes;
  uint64_t timestamp;
  uint64_t program_counter;
  uint32_t process;
  uint32_t device;
  uint32_t context;
  uint32_t stream;
  const char* name;
  uint32_t is_async;
  uint32_t padding0;
  uint32_t pool_type;  // PoolType
  uint32_t padding1;
  uint64_t pool;
  uint64_t release_threshold;
  uint64_t pool_size;  // of a local pool; for an imported one its process's id
  uint64_t pool_used;
};

/// As written by CUDA 12.6 and later.
struct SourcedMemoryRecord {
  MemoryRecord memory;
  const char* source;  // path of the allocating library; nullptr unless enabled
};

struct MemoryPoolRecord {
  uint32_t kind;
  uint32_t operation;  // store::PoolOperation
  uint32_t pool_type;
  uint32_t correlation;
  uint32_t process;
  uint32_t device;
  uint64_t kept_bytes;
  uint64_t pool;
  uint64_t size;
  uint64_t release_threshold;
  uint64_t timestamp;
  uint64_t used;
};

enum ObjectKind : uint32_t { kThreadObject = 2 };
enum MemoryOperation : uint32_t { kAllocate = 1, kRelease = 2 };
enum PoolType : uint32_t { kLocalPool = 1, kImportedPool = 2 };

/// The number of bytes read from a record. A shorter record is truncated.
constexpr std::size_t smallest_record(uint32_t kind) noexcept {
  switch (kind) {
    case kConcurrentKernel:
      return sizeof(KernelRecord);
    case kMemcpy:
      return sizeof(MemcpyRecord);
    case kMemcpyPeer:
      return sizeof(MemcpyPeerRecord);
    case kMemset:
      return sizeof(MemsetRecord);
    case kSynchronization:
      return sizeof(SynchronizationRecord);
    case kOverhead:
      return sizeof(OverheadRecord);
    case kDriver:
    case kRuntime:
      return sizeof(ApiRecord);
    case kGraphTrace:
      return sizeof(GraphTraceRecord);
    case kMemory:
      return sizeof(MemoryRecord);
    case kMemoryPool:
      return sizeof(MemoryPoolRecord);
    default:
      return sizeof(uint64_t);
  }
}

// Callback domains, sites and resource callbacks (cupti_callbacks.h).
enum Domain : int { kDriverDomain = 1, kResourceDomain = 3, kStateDomain = 6 };
enum Site : uint32_t { kEnterSite = 0, kExitSite = 1 };
enum ResourceCallback : uint32_t {
  kContextCreated = 1,
  kContextDestroyStarting = 2,
  kModuleLoaded = 6,
  kModuleUnloadStarting = 7,
  kGraphNodeCreated = 13,
  kGraphNodeCloned = 20,
};
enum StateCallback : uint32_t { kFatalError = 1 };
enum Attribute : int { kZeroedBuffers = 5, kPerThreadBuffers = 9 };

struct ApiCallback {
  uint32_t site;
  const char* function_name;
  const void* function_params;
  const int* result;
  const char* symbol_name;
  void* context;
  uint32_t context_uid;
  uint64_t* correlation_data;
  uint32_t correlation;
};

struct ResourceCallbackData {
  void* context;
  void* stream;
  const void* descriptor;
};

struct ModuleCallbackData {
  uint32_t module;
  size_t cubin_bytes;
  const char* cubin;
};

struct GraphCallbackData {
  void* graph;
  void* original_graph;
  void* node;
  void* original_node;
};

}  // namespace gpuscope::activity
