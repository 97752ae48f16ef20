// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/layout.h"

#include <cupti.h>

#include "gpuscope/store/schema.h"

namespace gpuscope::activity {
namespace {

#define GPUSCOPE_SAME(Ours, member, Theirs, field) \
  static_assert(offsetof(Ours, member) == offsetof(Theirs, field) && sizeof(Ours::member) == sizeof(Theirs::field))

using Kernel = CUpti_ActivityKernel9;
GPUSCOPE_SAME(KernelRecord, registers_per_thread, Kernel, registersPerThread);
GPUSCOPE_SAME(KernelRecord, start, Kernel, start);
GPUSCOPE_SAME(KernelRecord, end, Kernel, end);
GPUSCOPE_SAME(KernelRecord, device, Kernel, deviceId);
GPUSCOPE_SAME(KernelRecord, context, Kernel, contextId);
GPUSCOPE_SAME(KernelRecord, stream, Kernel, streamId);
GPUSCOPE_SAME(KernelRecord, grid[0], Kernel, gridX);
GPUSCOPE_SAME(KernelRecord, block[2], Kernel, blockZ);
GPUSCOPE_SAME(KernelRecord, static_shared_bytes, Kernel, staticSharedMemory);
GPUSCOPE_SAME(KernelRecord, dynamic_shared_bytes, Kernel, dynamicSharedMemory);
GPUSCOPE_SAME(KernelRecord, local_bytes_per_thread, Kernel, localMemoryPerThread);
GPUSCOPE_SAME(KernelRecord, correlation, Kernel, correlationId);
GPUSCOPE_SAME(KernelRecord, name, Kernel, name);
GPUSCOPE_SAME(KernelRecord, graph_node, Kernel, graphNodeId);
GPUSCOPE_SAME(KernelRecord, graph, Kernel, graphId);
GPUSCOPE_SAME(KernelRecord, cluster[0], Kernel, clusterX);
GPUSCOPE_SAME(KernelRecord, cluster[2], Kernel, clusterZ);

using Memcpy = CUpti_ActivityMemcpy5;
GPUSCOPE_SAME(MemcpyRecord, copy_kind, Memcpy, copyKind);
GPUSCOPE_SAME(MemcpyRecord, source, Memcpy, srcKind);
GPUSCOPE_SAME(MemcpyRecord, destination, Memcpy, dstKind);
GPUSCOPE_SAME(MemcpyRecord, bytes, Memcpy, bytes);
GPUSCOPE_SAME(MemcpyRecord, start, Memcpy, start);
GPUSCOPE_SAME(MemcpyRecord, end, Memcpy, end);
GPUSCOPE_SAME(MemcpyRecord, device, Memcpy, deviceId);
GPUSCOPE_SAME(MemcpyRecord, stream, Memcpy, streamId);
GPUSCOPE_SAME(MemcpyRecord, correlation, Memcpy, correlationId);
GPUSCOPE_SAME(MemcpyRecord, graph_node, Memcpy, graphNodeId);
GPUSCOPE_SAME(MemcpyRecord, graph, Memcpy, graphId);

using MemcpyPeer = CUpti_ActivityMemcpyPtoP4;
GPUSCOPE_SAME(MemcpyPeerRecord, bytes, MemcpyPeer, bytes);
GPUSCOPE_SAME(MemcpyPeerRecord, device, MemcpyPeer, deviceId);
GPUSCOPE_SAME(MemcpyPeerRecord, source_device, MemcpyPeer, srcDeviceId);
GPUSCOPE_SAME(MemcpyPeerRecord, destination_device, MemcpyPeer, dstDeviceId);
GPUSCOPE_SAME(MemcpyPeerRecord, correlation, MemcpyPeer, correlationId);
GPUSCOPE_SAME(MemcpyPeerRecord, graph_node, MemcpyPeer, graphNodeId);
GPUSCOPE_SAME(MemcpyPeerRecord, graph, MemcpyPeer, graphId);

using Memset = CUpti_ActivityMemset4;
GPUSCOPE_SAME(MemsetRecord, value, Memset, value);
GPUSCOPE_SAME(MemsetRecord, bytes, Memset, bytes);
GPUSCOPE_SAME(MemsetRecord, stream, Memset, streamId);
GPUSCOPE_SAME(MemsetRecord, correlation, Memset, correlationId);
GPUSCOPE_SAME(MemsetRecord, graph_node, Memset, graphNodeId);
GPUSCOPE_SAME(MemsetRecord, graph, Memset, graphId);

using Synchronization = CUpti_ActivitySynchronization;
GPUSCOPE_SAME(SynchronizationRecord, type, Synchronization, type);
GPUSCOPE_SAME(SynchronizationRecord, start, Synchronization, start);
GPUSCOPE_SAME(SynchronizationRecord, correlation, Synchronization, correlationId);
GPUSCOPE_SAME(SynchronizationRecord, stream, Synchronization, streamId);

// CUpti_ActivityOverhead2 and earlier have only its beginning.
using Overhead = CUpti_ActivityOverhead3;
GPUSCOPE_SAME(OverheadRecord, overhead_kind, Overhead, overheadKind);
GPUSCOPE_SAME(OverheadRecord, object_kind, Overhead, objectKind);
GPUSCOPE_SAME(OverheadRecord, process, Overhead, objectId.pt.processId);
GPUSCOPE_SAME(OverheadRecord, thread, Overhead, objectId.pt.threadId);
GPUSCOPE_SAME(OverheadRecord, start, Overhead, start);
GPUSCOPE_SAME(OverheadRecord, end, Overhead, end);

GPUSCOPE_SAME(ApiRecord, callback, CUpti_ActivityAPI, cbid);
GPUSCOPE_SAME(ApiRecord, start, CUpti_ActivityAPI, start);
GPUSCOPE_SAME(ApiRecord, thread, CUpti_ActivityAPI, threadId);
GPUSCOPE_SAME(ApiRecord, correlation, CUpti_ActivityAPI, correlationId);
GPUSCOPE_SAME(ApiRecord, result, CUpti_ActivityAPI, returnValue);

using GraphTrace = CUpti_ActivityGraphTrace;
GPUSCOPE_SAME(GraphTraceRecord, correlation, GraphTrace, correlationId);
GPUSCOPE_SAME(GraphTraceRecord, start, GraphTrace, start);
GPUSCOPE_SAME(GraphTraceRecord, device, GraphTrace, deviceId);
GPUSCOPE_SAME(GraphTraceRecord, graph, GraphTrace, graphId);
GPUSCOPE_SAME(GraphTraceRecord, stream, GraphTrace, streamId);

// CUpti_ActivityMemory3 (written by CUDA 12.0) and CUpti_ActivityMemory4 (by 12.6).
template <class Theirs>
constexpr bool is_memory() {
  GPUSCOPE_SAME(MemoryRecord, operation, Theirs, memoryOperationType);
  GPUSCOPE_SAME(MemoryRecord, memory_kind, Theirs, memoryKind);
  GPUSCOPE_SAME(MemoryRecord, correlation, Theirs, correlationId);
  GPUSCOPE_SAME(MemoryRecord, address, Theirs, address);
  GPUSCOPE_SAME(MemoryRecord, bytes, Theirs, bytes);
  GPUSCOPE_SAME(MemoryRecord, timestamp, Theirs, timestamp);
  GPUSCOPE_SAME(MemoryRecord, device, Theirs, deviceId);
  GPUSCOPE_SAME(MemoryRecord, context, Theirs, contextId);
  GPUSCOPE_SAME(MemoryRecord, stream, Theirs, streamId);
  GPUSCOPE_SAME(MemoryRecord, is_async, Theirs, isAsync);
  GPUSCOPE_SAME(MemoryRecord, pool_type, Theirs, memoryPoolConfig.memoryPoolType);
  GPUSCOPE_SAME(MemoryRecord, pool, Theirs, memoryPoolConfig.address);
  GPUSCOPE_SAME(MemoryRecord, pool_size, Theirs, memoryPoolConfig.pool.size);
  GPUSCOPE_SAME(MemoryRecord, pool_used, Theirs, memoryPoolConfig.utilizedSize);
  return sizeof(MemoryRecord) <= sizeof(Theirs);
}
static_assert(is_memory<CUpti_ActivityMemory3>() && is_memory<CUpti_ActivityMemory4>());
GPUSCOPE_SAME(SourcedMemoryRecord, source, CUpti_ActivityMemory4, source);

// CUpti_ActivityMemoryPool2 (written by CUDA 12.0) and CUpti_ActivityMemoryPool3 (by 13.0).
template <class Theirs>
constexpr bool is_memory_pool() {
  GPUSCOPE_SAME(MemoryPoolRecord, operation, Theirs, memoryPoolOperationType);
  GPUSCOPE_SAME(MemoryPoolRecord, pool_type, Theirs, memoryPoolType);
  GPUSCOPE_SAME(MemoryPoolRecord, correlation, Theirs, correlationId);
  GPUSCOPE_SAME(MemoryPoolRecord, device, Theirs, deviceId);
  GPUSCOPE_SAME(MemoryPoolRecord, pool, Theirs, address);
  GPUSCOPE_SAME(MemoryPoolRecord, size, Theirs, size);
  GPUSCOPE_SAME(MemoryPoolRecord, release_threshold, Theirs, releaseThreshold);
  GPUSCOPE_SAME(MemoryPoolRecord, timestamp, Theirs, timestamp);
  GPUSCOPE_SAME(MemoryPoolRecord, used, Theirs, utilizedSize);
  return sizeof(MemoryPoolRecord) <= sizeof(Theirs);
}
static_assert(is_memory_pool<CUpti_ActivityMemoryPool2>() && is_memory_pool<CUpti_ActivityMemoryPool3>());

GPUSCOPE_SAME(ApiCallback, result, CUpti_CallbackData, functionReturnValue);
GPUSCOPE_SAME(ApiCallback, context, CUpti_CallbackData, context);
GPUSCOPE_SAME(ApiCallback, function_params, CUpti_CallbackData, functionParams);
GPUSCOPE_SAME(ApiCallback, correlation_data, CUpti_CallbackData, correlationData);
GPUSCOPE_SAME(ApiCallback, correlation, CUpti_CallbackData, correlationId);
GPUSCOPE_SAME(ResourceCallbackData, context, CUpti_ResourceData, context);
GPUSCOPE_SAME(ModuleCallbackData, cubin_bytes, CUpti_ModuleResourceData, cubinSize);
GPUSCOPE_SAME(ModuleCallbackData, cubin, CUpti_ModuleResourceData, pCubin);
GPUSCOPE_SAME(ResourceCallbackData, descriptor, CUpti_ResourceData, resourceDescriptor);
GPUSCOPE_SAME(GraphCallbackData, node, CUpti_GraphData, node);
GPUSCOPE_SAME(GraphCallbackData, original_node, CUpti_GraphData, originalNode);

// All versions since 12.0 write at least the fields read here.
static_assert(sizeof(KernelRecord) <= sizeof(Kernel) && sizeof(MemcpyRecord) <= sizeof(Memcpy));
static_assert(sizeof(MemcpyPeerRecord) <= sizeof(MemcpyPeer) && sizeof(MemsetRecord) <= sizeof(Memset));
static_assert(sizeof(SynchronizationRecord) <= sizeof(Synchronization) &&
              sizeof(ApiRecord) <= sizeof(CUpti_ActivityAPI));
static_assert(sizeof(GraphTraceRecord) <= sizeof(GraphTrace));

constexpr bool same(auto ours, auto theirs) { return static_cast<long>(ours) == static_cast<long>(theirs); }
static_assert(same(kMemcpy, CUPTI_ACTIVITY_KIND_MEMCPY) && same(kMemset, CUPTI_ACTIVITY_KIND_MEMSET));
static_assert(same(kRuntime, CUPTI_ACTIVITY_KIND_RUNTIME));
static_assert(same(kDriver, CUPTI_ACTIVITY_KIND_DRIVER) && same(kMemcpyPeer, CUPTI_ACTIVITY_KIND_MEMCPY2));
static_assert(same(kConcurrentKernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
static_assert(same(kSynchronization, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
static_assert(same(kOverhead, CUPTI_ACTIVITY_KIND_OVERHEAD) && same(kThreadObject, CUPTI_ACTIVITY_OBJECT_THREAD));
static_assert(same(store::OverheadKind::DriverCompiler, CUPTI_ACTIVITY_OVERHEAD_DRIVER_COMPILER));
static_assert(same(store::OverheadKind::LazyFunctionLoading, CUPTI_ACTIVITY_OVERHEAD_LAZY_FUNCTION_LOADING));
static_assert(same(store::OverheadKind::UvmActivityInit, CUPTI_ACTIVITY_OVERHEAD_UVM_ACTIVITY_INIT));
static_assert(same(kGraphTrace, CUPTI_ACTIVITY_KIND_GRAPH_TRACE));
static_assert(same(kMemory, CUPTI_ACTIVITY_KIND_MEMORY2) && same(kMemoryPool, CUPTI_ACTIVITY_KIND_MEMORY_POOL));
static_assert(same(kAllocate, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION));
static_assert(same(kRelease, CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE));
static_assert(same(kLocalPool, CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL));
static_assert(same(kImportedPool, CUPTI_ACTIVITY_MEMORY_POOL_TYPE_IMPORTED));
static_assert(same(store::PoolOperation::Created, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_CREATED));
static_assert(same(store::PoolOperation::Destroyed, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_DESTROYED));
static_assert(same(store::PoolOperation::Trimmed, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_TRIMMED));
static_assert(same(store::MemoryKind::Pinned, CUPTI_ACTIVITY_MEMORY_KIND_PINNED));
static_assert(same(store::MemoryKind::ManagedStatic, CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC));
static_assert(same(kDriverDomain, CUPTI_CB_DOMAIN_DRIVER_API) && same(kResourceDomain, CUPTI_CB_DOMAIN_RESOURCE));
static_assert(same(kStateDomain, CUPTI_CB_DOMAIN_STATE) && same(kFatalError, CUPTI_CBID_STATE_FATAL_ERROR));
static_assert(same(kGraphNodeCreated, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED));
static_assert(same(kGraphNodeCloned, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED));
static_assert(same(kContextCreated, CUPTI_CBID_RESOURCE_CONTEXT_CREATED));
static_assert(same(kContextDestroyStarting, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING));
static_assert(same(kModuleLoaded, CUPTI_CBID_RESOURCE_MODULE_LOADED));
static_assert(same(kModuleUnloadStarting, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING));
static_assert(same(kZeroedBuffers, CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER));
static_assert(same(kPerThreadBuffers, CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER));

}  // namespace
}  // namespace gpuscope::activity
