// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpuscope/store/column.h"
#include "gpuscope/store/kinds.h"

// Every table and column of a trace, declared once: the C++ rows, the NumPy and Arrow views and the .gscope file all
// come from these lists. X(type, column). Times are ns since the Unix epoch, sizes bytes. Columns named after a
// dictionary (variant, track, path, stack, thread, call, device) or `region` hold a row number of that table; kNone is
// none.

// -- events ----------------------------------------------------------------------------------------------------------
#define GPUSCOPE_KERNEL(X)                        \
  X(int64_t, start_ns)                            \
  X(int64_t, duration_ns)                         \
  X(uint32_t, correlation)                        \
  X(uint32_t, variant)                            \
  X(uint32_t, region) /* where it was launched */ \
  X(uint16_t, track)                              \
  X(uint16_t, flags)
// Rows for the kernels, copies and fills that ran as nodes of a CUDA graph.
#define GPUSCOPE_GRAPH_NODE(X)                                                        \
  X(uint32_t, event) /* a row of the table that `kind` names */                       \
  X(uint32_t, graph) /* the executable graph's id */                                  \
  X(uint64_t, node)                                                                   \
  X(uint32_t, path) /* where it was captured; kNone when that was before profiling */ \
  X(uint16_t, kind) /* Work */                                                        \
  X(uint16_t, flags)
// One row a graph launch, where graphs are traced as a whole.
#define GPUSCOPE_GRAPH_LAUNCH(X) \
  X(int64_t, start_ns)           \
  X(int64_t, duration_ns)        \
  X(uint32_t, correlation)       \
  X(uint32_t, graph)             \
  X(uint32_t, region)            \
  X(uint16_t, track)             \
  X(uint16_t, flags)
#define GPUSCOPE_MEMCPY(X)                 \
  X(int64_t, start_ns)                     \
  X(int64_t, duration_ns)                  \
  X(uint64_t, bytes)                       \
  X(uint32_t, correlation)                 \
  X(uint32_t, region)                      \
  X(uint16_t, track)                       \
  X(uint16_t, flags)                       \
  X(uint8_t, kind)        /* CopyKind */   \
  X(uint8_t, source)      /* MemoryKind */ \
  X(uint8_t, destination) /* MemoryKind */ \
  X(uint8_t, peer)        /* the other device of a peer copy, 255 otherwise */
#define GPUSCOPE_MEMSET(X) \
  X(int64_t, start_ns)     \
  X(int64_t, duration_ns)  \
  X(uint64_t, bytes)       \
  X(uint32_t, value)       \
  X(uint32_t, correlation) \
  X(uint32_t, region)      \
  X(uint16_t, track)       \
  X(uint16_t, flags)
#define GPUSCOPE_SYNC(X)   \
  X(int64_t, start_ns)     \
  X(int64_t, duration_ns)  \
  X(uint32_t, correlation) \
  X(uint32_t, region)      \
  X(uint16_t, track)       \
  X(uint16_t, kind) /* SyncKind */
// Calls of the CUDA driver that launch, copy, synchronize or allocate.
#define GPUSCOPE_API(X)    \
  X(int64_t, start_ns)     \
  X(int64_t, duration_ns)  \
  X(uint32_t, correlation) \
  X(uint32_t, region)      \
  X(uint16_t, call)        \
  X(uint16_t, thread)
#define GPUSCOPE_REGION(X)                      \
  X(int64_t, start_ns)                          \
  X(int64_t, duration_ns)                       \
  X(uint32_t, parent) /* a row of this table */ \
  X(uint32_t, path)                             \
  X(uint16_t, thread)                           \
  X(uint16_t, flags)
// GPU time between a region's two CUDA events, where CUPTI is not to be had.
#define GPUSCOPE_REGION_GPU(X) \
  X(uint32_t, region)          \
  X(uint32_t, path)            \
  X(int64_t, duration_ns)
#define GPUSCOPE_MARK(X) \
  X(int64_t, start_ns)   \
  X(uint32_t, name)      \
  X(uint32_t, region)    \
  X(uint16_t, thread)    \
  X(uint16_t, flags)
// What is known of some regions beyond their name; in the order of `region`.
#define GPUSCOPE_DETAIL(X)                                                                \
  X(int64_t, sequence) /* autograd's number of the operator; -1 for none */               \
  X(uint32_t, region)                                                                     \
  X(uint32_t, types)    /* of its inputs: a string, as torch writes it; kNone for none */ \
  X(uint32_t, results)  /* the shapes of its results, likewise */                         \
  X(uint32_t, shapes)   /* a string, as torch writes it; kNone for none */                \
  X(uint32_t, forward)  /* of a backward operator: the region of its forward one */       \
  X(uint32_t, op)       /* torch's number of the operator; 0 for none */                  \
  X(uint32_t, producer) /* of the operator that made its first tensor; 0 for none */      \
  X(uint32_t, stack)
// Numbers and texts that a region was given along, as an NVTX payload has them.
#define GPUSCOPE_PAYLOAD(X)                             \
  X(uint64_t, value) /* the bits of what `type` says */ \
  X(uint32_t, region)                                   \
  X(uint32_t, name)                                     \
  X(uint16_t, type) /* PayloadType */
// Memory taken from a framework's allocator, or given back.
#define GPUSCOPE_ALLOCATION(X)                                              \
  X(int64_t, start_ns)                                                      \
  X(int64_t, bytes) /* negative when given back */                          \
  X(uint64_t, address)                                                      \
  X(uint64_t, allocated_bytes) /* given out on that device, this counted */ \
  X(uint64_t, reserved_bytes)  /* held by the allocator on that device */   \
  X(uint32_t, region)                                                       \
  X(uint32_t, ordinal) /* of the device; kNone for host memory */           \
  X(uint16_t, thread)                                                       \
  X(uint16_t, flags)
// Memory that a library took from the driver, or gave back.
#define GPUSCOPE_DEVICE_MEMORY(X)                                                                  \
  X(int64_t, start_ns)                                                                             \
  X(int64_t, bytes) /* negative when given back */                                                 \
  X(uint64_t, address)                                                                             \
  X(uint64_t, pool)                /* the address of the CUDA pool that it lies in; 0 for none */  \
  X(uint64_t, pool_reserved_bytes) /* held by that pool behind this; 0 where it does not say */    \
  X(uint64_t, pool_used_bytes)     /* of them given out */                                         \
  X(uint32_t, correlation)                                                                         \
  X(uint32_t, region)                                                                              \
  X(uint32_t, library) /* path of the file whose code asked: a string; kNone where nobody knows */ \
  X(uint16_t, track)   /* stream kNone: not in the order of a stream */                            \
  X(uint16_t, flags)                                                                               \
  X(uint8_t, kind) /* MemoryKind */
// What was done to CUDA memory pools as a whole.
#define GPUSCOPE_MEMORY_POOL(X)                                                              \
  X(int64_t, start_ns)                                                                       \
  X(uint64_t, pool)                                                                          \
  X(uint64_t, reserved_bytes)          /* held by it behind this; 0 where it does not say */ \
  X(uint64_t, used_bytes)              /* of them given out */                               \
  X(uint64_t, release_threshold_bytes) /* what it keeps at a synchronization */              \
  X(uint32_t, correlation)                                                                   \
  X(uint32_t, region)                                                                        \
  X(uint32_t, device)                                                                        \
  X(uint16_t, flags)                                                                         \
  X(uint8_t, operation) /* PoolOperation */
// Where in the program a driver call was made; in the order of `api`.
#define GPUSCOPE_CALL_STACK(X) \
  X(uint32_t, api)             \
  X(uint32_t, stack)

// -- totals: one row a call path, in aggregate mode --------------------------
#define GPUSCOPE_REGION_TOTAL(X)                               \
  X(uint32_t, path)                                            \
  X(uint32_t, histogram) /* kNone when there is none */        \
  X(uint64_t, count)                                           \
  X(int64_t, total_ns)                                         \
  X(int64_t, child_ns) /* spent in regions and calls inside */ \
  X(int64_t, min_ns)                                           \
  X(int64_t, max_ns)
#define GPUSCOPE_WORK_TOTAL(X)                                            \
  X(uint32_t, path) /* where launched; kNone when outside every region */ \
  X(uint32_t, name)                                                       \
  X(uint32_t, histogram)                                                  \
  X(uint32_t, kind) /* Work */                                            \
  X(uint64_t, count)                                                      \
  X(uint64_t, bytes)                                                      \
  X(int64_t, total_ns)                                                    \
  X(int64_t, min_ns)                                                      \
  X(int64_t, max_ns)
// Durations counted by size: `bin` is histogram_bin(duration).
#define GPUSCOPE_HISTOGRAM(X) \
  X(uint32_t, histogram)      \
  X(uint32_t, bin)            \
  X(uint64_t, count)

// -- dictionaries ------------------------------------------------------------
// A call path: the regions open around a point in the program, outermost first.
#define GPUSCOPE_PATH(X)                              \
  X(uint32_t, parent)                                 \
  X(uint32_t, name)                                   \
  X(uint32_t, depth)  /* 0 for an outermost region */ \
  X(uint32_t, kind)   /* base::RegionKind */          \
  X(uint32_t, domain) /* of an NVTX range: a string */
// A call stack: a frame, and the stack of its caller.
#define GPUSCOPE_STACK(X) \
  X(uint32_t, parent)     \
  X(uint32_t, function)   \
  X(uint32_t, file)       \
  X(uint32_t, line)
// A kernel with one launch configuration.
#define GPUSCOPE_VARIANT(X)                               \
  X(uint32_t, name) /* mangled, as the driver gives it */ \
  X(uint32_t, grid_x)                                     \
  X(uint32_t, grid_y)                                     \
  X(uint32_t, grid_z)                                     \
  X(uint32_t, block_x)                                    \
  X(uint32_t, block_y)                                    \
  X(uint32_t, block_z)                                    \
  X(uint32_t, cluster_x)                                  \
  X(uint32_t, cluster_y)                                  \
  X(uint32_t, cluster_z)                                  \
  X(uint32_t, static_shared_bytes)                        \
  X(uint32_t, dynamic_shared_bytes)                       \
  X(uint32_t, local_bytes)                                \
  X(uint32_t, registers)
#define GPUSCOPE_TRACK(X) \
  X(uint32_t, device)     \
  X(uint32_t, context)    \
  X(uint32_t, stream)
#define GPUSCOPE_THREAD(X) \
  X(uint64_t, system_id)   \
  X(uint32_t, name)        \
  X(uint32_t, flags)
#define GPUSCOPE_CALL(X)                                                   \
  X(uint32_t, name)                                                        \
  X(uint16_t, kind)  /* CallKind */                                        \
  X(uint16_t, flags) /* kCaptured: recorded into a graph instead of run */ \
  X(int32_t, result) /* the CUresult it returned */
#define GPUSCOPE_DEVICE(X)      \
  X(uint32_t, ordinal)          \
  X(uint32_t, name)             \
  X(uint32_t, uuid)             \
  X(uint32_t, multiprocessors)  \
  X(uint32_t, capability_major) \
  X(uint32_t, capability_minor) \
  X(uint64_t, memory_bytes)
// Facts about the run: strings by key, among them the audit's counters and the clock's anchors.
#define GPUSCOPE_INFO(X) \
  X(uint32_t, key)       \
  X(uint32_t, value)

// X(Type, table, LIST): the tables of a Store.
#define GPUSCOPE_TABLES(X)                                 \
  X(Kernels, kernel, GPUSCOPE_KERNEL)                      \
  X(GraphNodes, graph_node, GPUSCOPE_GRAPH_NODE)           \
  X(GraphLaunches, graph_launch, GPUSCOPE_GRAPH_LAUNCH)    \
  X(Memcpys, memcpy, GPUSCOPE_MEMCPY)                      \
  X(Memsets, memset, GPUSCOPE_MEMSET)                      \
  X(Syncs, sync, GPUSCOPE_SYNC)                            \
  X(Apis, api, GPUSCOPE_API)                               \
  X(Regions, region, GPUSCOPE_REGION)                      \
  X(RegionGpus, region_gpu, GPUSCOPE_REGION_GPU)           \
  X(Marks, mark, GPUSCOPE_MARK)                            \
  X(Details, detail, GPUSCOPE_DETAIL)                      \
  X(Payloads, payload, GPUSCOPE_PAYLOAD)                   \
  X(Allocations, allocation, GPUSCOPE_ALLOCATION)          \
  X(DeviceMemories, device_memory, GPUSCOPE_DEVICE_MEMORY) \
  X(MemoryPools, memory_pool, GPUSCOPE_MEMORY_POOL)        \
  X(CallStacks, call_stack, GPUSCOPE_CALL_STACK)           \
  X(RegionTotals, region_total, GPUSCOPE_REGION_TOTAL)     \
  X(WorkTotals, work_total, GPUSCOPE_WORK_TOTAL)           \
  X(Histograms, histogram, GPUSCOPE_HISTOGRAM)             \
  X(Paths, path, GPUSCOPE_PATH)                            \
  X(Stacks, stack, GPUSCOPE_STACK)                         \
  X(Variants, variant, GPUSCOPE_VARIANT)                   \
  X(Tracks, track, GPUSCOPE_TRACK)                         \
  X(Threads, thread, GPUSCOPE_THREAD)                      \
  X(Calls, call, GPUSCOPE_CALL)                            \
  X(Devices, device, GPUSCOPE_DEVICE)                      \
  X(Infos, info, GPUSCOPE_INFO)

namespace gpuscope::store {

#define GPUSCOPE_FIELD(type, name) type name;
#define GPUSCOPE_COLUMN(type, name) Column<type> name;
#define GPUSCOPE_PUSH(type, name) name.push_back(values.name);
#define GPUSCOPE_AT(type, name) name[index],
#define GPUSCOPE_VISIT(type, name) visit(#name, name);
#define GPUSCOPE_DROP(type, name) name.drop_front(rows);
#define GPUSCOPE_TRUNCATE(type, name) name.truncate(rows);
#define GPUSCOPE_BYTES(type, name) +sizeof(type)
#define GPUSCOPE_COUNT(type, name) rows = name.size();
#define GPUSCOPE_DECLARE_TABLE(Type, table, LIST)                           \
  struct Type {                                                             \
    struct Row {                                                            \
      LIST(GPUSCOPE_FIELD)                                                  \
    };                                                                      \
    static constexpr std::size_t kRowBytes = 0 LIST(GPUSCOPE_BYTES);        \
    LIST(GPUSCOPE_COLUMN)                                                   \
    std::size_t size() const noexcept {                                     \
      std::size_t rows = 0;                                                 \
      LIST(GPUSCOPE_COUNT)                                                  \
      return rows;                                                          \
    }                                                                       \
    /* Returns the new row's number. */                                     \
    uint32_t append(const Row& values) {                                    \
      const std::size_t before = size();                                    \
      try {                                                                 \
        LIST(GPUSCOPE_PUSH)                                                 \
      } catch (...) { /* out of memory: no column may be ahead */           \
        truncate(before);                                                   \
        throw;                                                              \
      }                                                                     \
      return static_cast<uint32_t>(before);                                 \
    }                                                                       \
    Row operator[](std::size_t index) const { return {LIST(GPUSCOPE_AT)}; } \
    void drop_front(std::size_t rows) { LIST(GPUSCOPE_DROP) }               \
    void truncate(std::size_t rows) { LIST(GPUSCOPE_TRUNCATE) }             \
    template <class F>                                                      \
    void each_column(F&& visit) {                                           \
      LIST(GPUSCOPE_VISIT)                                                  \
    }                                                                       \
    template <class F>                                                      \
    void each_column(F&& visit) const {                                     \
      LIST(GPUSCOPE_VISIT)                                                  \
    }                                                                       \
  };
GPUSCOPE_TABLES(GPUSCOPE_DECLARE_TABLE)
#undef GPUSCOPE_FIELD
#undef GPUSCOPE_COLUMN
#undef GPUSCOPE_PUSH
#undef GPUSCOPE_AT
#undef GPUSCOPE_VISIT
#undef GPUSCOPE_DROP
#undef GPUSCOPE_TRUNCATE
#undef GPUSCOPE_BYTES
#undef GPUSCOPE_COUNT
#undef GPUSCOPE_DECLARE_TABLE

}  // namespace gpuscope::store
