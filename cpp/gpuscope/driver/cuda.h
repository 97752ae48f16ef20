// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gpuscope/base/errors.h"
#include "gpuscope/driver/library.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;
struct CUmemPoolHandle_st;

namespace gpuscope::driver {

// libcuda's handles and codes, in the driver's own layout, so that no CUDA header is needed here.
using CuResult = int;
inline constexpr CuResult kNotReady = 600;  // CUDA_ERROR_NOT_READY
using CuDevice = int;
using CuContext = CUctx_st*;
using CuStream = CUstream_st*;
using CuEvent = CUevent_st*;
using CuModule = CUmod_st*;
using CuFunction = CUfunc_st*;
using CuPointer = unsigned long long;
using CuGraph = CUgraph_st*;
using CuGraphExec = CUgraphExec_st*;
using CuMemoryPool = CUmemPoolHandle_st*;

/// The stream that a handle from Python stands for; 0 is the default one.
inline CuStream as_stream(uint64_t handle) noexcept { return reinterpret_cast<CuStream>(handle); }

struct CuUuid {
  unsigned char bytes[16];
};

struct CuIpcEventHandle {
  char bytes[64];
};

/// As NVML and nvidia-smi spell it: "GPU-" and hexadecimal digits in groups.
std::string uuid_text(const CuUuid& uuid);

// X(symbol in libcuda, member, return type and arguments). Versioned names are spelled out: what a header's macros
// would pick depends on the header.
#define GPUSCOPE_CUDA_FUNCTIONS(X)                                                                               \
  X("cuInit", init, CuResult(unsigned))                                                                          \
  X("cuDriverGetVersion", driver_get_version, CuResult(int*))                                                    \
  X("cuGetErrorName", get_error_name, CuResult(CuResult, const char**))                                          \
  X("cuDeviceGetCount", device_get_count, CuResult(int*))                                                        \
  X("cuDeviceGet", device_get, CuResult(CuDevice*, int))                                                         \
  X("cuDeviceGetName", device_get_name, CuResult(char*, int, CuDevice))                                          \
  X("cuDeviceGetUuid_v2", device_get_uuid, CuResult(CuUuid*, CuDevice))                                          \
  X("cuDeviceGetAttribute", device_get_attribute, CuResult(int*, int, CuDevice))                                 \
  X("cuDeviceTotalMem_v2", device_total_mem, CuResult(size_t*, CuDevice))                                        \
  X("cuDevicePrimaryCtxGetState", primary_context_state, CuResult(CuDevice, unsigned*, int*))                    \
  X("cuDevicePrimaryCtxRetain", primary_context_retain, CuResult(CuContext*, CuDevice))                          \
  X("cuDevicePrimaryCtxRelease_v2", primary_context_release, CuResult(CuDevice))                                 \
  X("cuCtxGetCurrent", context_get_current, CuResult(CuContext*))                                                \
  X("cuCtxPushCurrent_v2", context_push, CuResult(CuContext))                                                    \
  X("cuCtxPopCurrent_v2", context_pop, CuResult(CuContext*))                                                     \
  X("cuCtxSynchronize", context_synchronize, CuResult())                                                         \
  X("cuStreamCreate", stream_create, CuResult(CuStream*, unsigned))                                              \
  X("cuStreamDestroy_v2", stream_destroy, CuResult(CuStream))                                                    \
  X("cuStreamSynchronize", stream_synchronize, CuResult(CuStream))                                               \
  X("cuStreamIsCapturing", stream_is_capturing, CuResult(CuStream, int*))                                        \
  X("cuStreamBeginCapture_v2", stream_begin_capture, CuResult(CuStream, int))                                    \
  X("cuStreamEndCapture", stream_end_capture, CuResult(CuStream, CuGraph*))                                      \
  X("cuGraphInstantiateWithFlags", graph_instantiate, CuResult(CuGraphExec*, CuGraph, unsigned long long))       \
  X("cuGraphLaunch", graph_launch, CuResult(CuGraphExec, CuStream))                                              \
  X("cuGraphDestroy", graph_destroy, CuResult(CuGraph))                                                          \
  X("cuGraphExecDestroy", graph_exec_destroy, CuResult(CuGraphExec))                                             \
  X("cuEventCreate", event_create, CuResult(CuEvent*, unsigned))                                                 \
  X("cuEventDestroy_v2", event_destroy, CuResult(CuEvent))                                                       \
  X("cuEventRecord", event_record, CuResult(CuEvent, CuStream))                                                  \
  X("cuEventQuery", event_query, CuResult(CuEvent))                                                              \
  X("cuEventElapsedTime", event_elapsed_time, CuResult(float*, CuEvent, CuEvent))                                \
  X("cuEventRecordWithFlags", event_record_with_flags, CuResult(CuEvent, CuStream, unsigned))                    \
  X("cuEventSynchronize", event_synchronize, CuResult(CuEvent))                                                  \
  X("cuIpcGetEventHandle", event_export, CuResult(CuIpcEventHandle*, CuEvent))                                   \
  X("cuIpcOpenEventHandle", event_import, CuResult(CuEvent*, CuIpcEventHandle))                                  \
  X("cuStreamWaitEvent", stream_wait_event, CuResult(CuStream, CuEvent, unsigned))                               \
  X("cuStreamGetCtx", stream_get_context, CuResult(CuStream, CuContext*))                                        \
  X("cuCtxGetDevice", context_get_device, CuResult(CuDevice*))                                                   \
  X("cuThreadExchangeStreamCaptureMode", exchange_capture_mode, CuResult(int*))                                  \
  X("cuModuleLoadData", module_load_data, CuResult(CuModule*, const void*))                                      \
  X("cuModuleGetLoadingMode", module_loading_mode, CuResult(int*))                                               \
  X("cuModuleUnload", module_unload, CuResult(CuModule))                                                         \
  X("cuModuleGetFunction", module_get_function, CuResult(CuFunction*, CuModule, const char*))                    \
  X("cuLaunchKernel", launch_kernel,                                                                             \
    CuResult(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, void**, \
             void**))                                                                                            \
  X("cuMemAlloc_v2", mem_alloc, CuResult(CuPointer*, size_t))                                                    \
  X("cuMemFree_v2", mem_free, CuResult(CuPointer))                                                               \
  X("cuMemcpyHtoDAsync_v2", copy_to_device, CuResult(CuPointer, const void*, size_t, CuStream))                  \
  X("cuMemcpyDtoHAsync_v2", copy_to_host, CuResult(void*, CuPointer, size_t, CuStream))                          \
  X("cuMemsetD8Async", fill, CuResult(CuPointer, unsigned char, size_t, CuStream))                               \
  X("cuMemHostAlloc", mem_host_alloc, CuResult(void**, size_t, unsigned))                                        \
  X("cuMemHostGetDevicePointer_v2", mem_host_get_device_pointer, CuResult(CuPointer*, void*, unsigned))          \
  X("cuMemFreeHost", mem_free_host, CuResult(void*))                                                             \
  X("cuModuleGetGlobal_v2", module_get_global, CuResult(CuPointer*, size_t*, CuModule, const char*))             \
  X("cuCtxResetPersistingL2Cache", reset_persisting_l2, CuResult())                                              \
  X("cuGraphGetNodes", graph_get_nodes, CuResult(CuGraph, CUgraphNode_st**, size_t*))                            \
  X("cuDeviceGetPCIBusId", device_get_pci_bus_id, CuResult(char*, int, CuDevice))                                \
  X("cuDeviceGetDefaultMemPool", default_memory_pool, CuResult(CuMemoryPool*, CuDevice))                         \
  X("cuDeviceGetMemPool", current_memory_pool, CuResult(CuMemoryPool*, CuDevice))                                \
  X("cuMemPoolGetAttribute", memory_pool_attribute, CuResult(CuMemoryPool, int attribute, void*))

/// libcuda as a value: one pointer a function, nullptr where the driver lacks it.
struct Cuda {
#define GPUSCOPE_MEMBER(symbol, member, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
  GPUSCOPE_CUDA_FUNCTIONS(GPUSCOPE_MEMBER)
#undef GPUSCOPE_MEMBER
  Library library;

  /// The machine's libcuda; every member nullptr where there is none.
  static Cuda open();
  std::string error_name(CuResult code) const;
};

#define GPUSCOPE_CUDA(table, member, ...)                                                           \
  do {                                                                                              \
    const int gpuscope_code = (table).member(__VA_ARGS__);                                          \
    if (gpuscope_code != 0) {                                                                       \
      throw ::gpuscope::base::CudaError(#member, gpuscope_code, (table).error_name(gpuscope_code)); \
    }                                                                                               \
  } while (false)

/// The device of this number, with the driver initialised and no context made. Throws NotAvailable without a driver or
/// such a device. Any thread.
CuDevice find_device(const Cuda& cuda, int ordinal);

/// Whether this process has a primary context on the device, whoever made it. Any thread.
bool has_primary_context(const Cuda& cuda, CuDevice device) noexcept;

}  // namespace gpuscope::driver
