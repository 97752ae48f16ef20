// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "gpuscope/base/errors.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;
struct CUmemPoolHandle_st;

struct nvmlDevice_st;

// For lists of a library's functions, X(symbol, member, return type and arguments): the table's pointers, null if the
// library lacks a function, and their loading.
#define GPUSCOPE_FUNCTION_POINTER(symbol, member, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
#define GPUSCOPE_LOAD_FUNCTION(symbol, member, ...) table.library.load(symbol, table.member);

namespace gpuscope::driver {

/// A vendor library opened at run time, never closed: its threads and callbacks outlive our use.
class Library {
 public:
  Library() = default;

  /// Opens the first of: a copy already mapped into the process, the given paths in order. Not loaded if none opens:
  /// why() is then dlopen's message for the last one.
  static Library open(const std::vector<std::string>& sonames, const std::vector<std::string>& paths);

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// Null if the library lacks it.
  void* symbol(const char* name) const noexcept;
  template <class Function>
  void load(const char* name, Function*& function) const noexcept {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  /// The file from which the library was mapped.
  const std::string& path() const noexcept { return path_; }
  const std::string& why() const noexcept { return why_; }

 private:
  void* handle_ = nullptr;
  std::string path_;
  std::string why_;
};

/// Files mapped into this process whose name begins with `prefix`, such as "libcupti.so".
std::vector<std::string> mapped_files(const std::string& prefix);

// -- libcuda ----------------------------------------------------------------------------------------------------------

// libcuda's handles and codes, in the driver's layout, so that no CUDA header is needed here.
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

/// The stream of a handle from Python. 0 is the default stream.
inline CuStream as_stream(uint64_t handle) noexcept { return reinterpret_cast<CuStream>(handle); }

// CUdevice_attribute (cuda.h).
enum CuDeviceAttribute : int {
  kClockRateKhz = 13,
  kMultiprocessors = 16,
  kMemoryClockRateKhz = 36,
  kMemoryBusBits = 37,
  kL2CacheBytes = 38,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
};

struct CuUuid {
  unsigned char bytes[16];
};

struct CuIpcEventHandle {
  char bytes[64];
};

/// In the format of NVML and nvidia-smi: "GPU-" and groups of hexadecimal digits.
std::string uuid_text(const CuUuid& uuid);

// X(symbol in libcuda, member, return type and arguments). Symbols include the version: a header's macros would select
// a version that depends on the header.
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
  X("cuCtxGetId", context_get_id, CuResult(CuContext, unsigned long long*))                                      \
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
  X("cuMemHostRegister_v2", mem_host_register, CuResult(void*, size_t, unsigned))                                \
  X("cuMemHostUnregister", mem_host_unregister, CuResult(void*))                                                 \
  X("cuModuleGetGlobal_v2", module_get_global, CuResult(CuPointer*, size_t*, CuModule, const char*))             \
  X("cuCtxResetPersistingL2Cache", reset_persisting_l2, CuResult())                                              \
  X("cuGraphGetNodes", graph_get_nodes, CuResult(CuGraph, CUgraphNode_st**, size_t*))                            \
  X("cuDeviceGetPCIBusId", device_get_pci_bus_id, CuResult(char*, int, CuDevice))                                \
  X("cuDeviceGetDefaultMemPool", default_memory_pool, CuResult(CuMemoryPool*, CuDevice))                         \
  X("cuDeviceGetMemPool", current_memory_pool, CuResult(CuMemoryPool*, CuDevice))                                \
  X("cuMemPoolGetAttribute", memory_pool_attribute, CuResult(CuMemoryPool, int attribute, void*))

/// libcuda as a value: one pointer per function, null if the driver lacks it.
struct Cuda {
  GPUSCOPE_CUDA_FUNCTIONS(GPUSCOPE_FUNCTION_POINTER)
  Library library;

  /// The machine's libcuda. Every member is null if there is none.
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

// -- libcupti ---------------------------------------------------------------------------------------------------------

// CUPTI's types in its own layout (checked against the headers in activity/layout.cpp).
using CuptiResult = int;
using CuptiSubscriber = void*;
using CuptiCallback = void (*)(void* user_data, int domain, uint32_t callback, const void* data);
using CuptiBufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* max_records);
using CuptiBufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);
using CuptiTimestamp = uint64_t (*)();

struct CuptiSubscriberParams {
  size_t struct_size;
  const char* name;
  char* holder;  // out: the slot's holder
  size_t holder_size;
};

// Result codes that are handled by name (cupti_result.h).
inline constexpr CuptiResult kCuptiSuccess = 0;
inline constexpr CuptiResult kCuptiMaxLimitReached = 12;
inline constexpr CuptiResult kCuptiNotInitialized = 15;
inline constexpr CuptiResult kCuptiMultipleSubscribers = 39;

// X(symbol in libcupti, member, return type and arguments)
#define GPUSCOPE_CUPTI_FUNCTIONS(X)                                                                                 \
  X("cuptiGetVersion", get_version, CuptiResult(uint32_t*))                                                         \
  X("cuptiGetResultString", get_result_string, CuptiResult(CuptiResult, const char**))                              \
  X("cuptiGetTimestamp", get_timestamp, CuptiResult(uint64_t*))                                                     \
  X("cuptiSubscribe", subscribe, CuptiResult(CuptiSubscriber*, CuptiCallback, void*))                               \
  X("cuptiSubscribe_v2", subscribe_v2, CuptiResult(CuptiSubscriber*, CuptiCallback, void*, CuptiSubscriberParams*)) \
  X("cuptiUnsubscribe", unsubscribe, CuptiResult(CuptiSubscriber))                                                  \
  X("cuptiEnableCallback", enable_callback, CuptiResult(uint32_t, CuptiSubscriber, int, uint32_t))                  \
  X("cuptiActivityRegisterCallbacks", register_callbacks, CuptiResult(CuptiBufferRequested, CuptiBufferCompleted))  \
  X("cuptiActivityRegisterTimestampCallback", register_timestamp, CuptiResult(CuptiTimestamp))                      \
  X("cuptiActivityEnableRawTimestamps", enable_raw_timestamps, CuptiResult(uint8_t))                                \
  X("cuptiActivityEnable", activity_enable, CuptiResult(int))                                                       \
  X("cuptiActivityDisable", activity_disable, CuptiResult(int))                                                     \
  X("cuptiActivityFlushAll", flush_all, CuptiResult(uint32_t))                                                      \
  X("cuptiActivityGetNextRecord", get_next_record, CuptiResult(uint8_t*, size_t, void**))                           \
  X("cuptiActivityGetNumDroppedRecords", get_num_dropped, CuptiResult(void*, uint32_t, size_t*))                    \
  X("cuptiActivityGetAttribute", get_attribute, CuptiResult(int, size_t*, void*))                                   \
  X("cuptiActivitySetAttribute", set_attribute, CuptiResult(int, size_t*, void*))                                   \
  X("cuptiActivityEnableAllocationSource", enable_allocation_source, CuptiResult(uint8_t))                          \
  X("cuptiSetThreadIdType", set_thread_id_type, CuptiResult(int))                                                   \
  X("cuptiGetGraphNodeId", get_graph_node_id, CuptiResult(void*, uint64_t*))                                        \
  X("cuptiGetDeviceId", get_device_id, CuptiResult(void*, uint32_t*))

// Functions of the hardware counter profilers. Each takes one CUPTI structure (counters/ has the headers). Most are new
// in CUDA 12.6.
#define GPUSCOPE_CUPTI_PROFILER_FUNCTIONS(X)                                                          \
  X("cuptiProfilerInitialize", profiler_initialize, CuptiResult(void* params))                        \
  X("cuptiProfilerGetCounterAvailability", range_availability, CuptiResult(void* params))             \
  X("cuptiDeviceGetChipName", chip_name, CuptiResult(void* params))                                   \
  X("cuptiProfilerHostInitialize", host_initialize, CuptiResult(void* params))                        \
  X("cuptiProfilerHostDeinitialize", host_deinitialize, CuptiResult(void* params))                    \
  X("cuptiProfilerHostGetSupportedChips", host_supported_chips, CuptiResult(void* params))            \
  X("cuptiProfilerHostGetBaseMetrics", host_base_metrics, CuptiResult(void* params))                  \
  X("cuptiProfilerHostGetSubMetrics", host_sub_metrics, CuptiResult(void* params))                    \
  X("cuptiProfilerHostGetMetricProperties", host_metric_properties, CuptiResult(void* params))        \
  X("cuptiProfilerHostConfigAddMetrics", host_add_metrics, CuptiResult(void* params))                 \
  X("cuptiProfilerHostGetConfigImageSize", host_config_image_size, CuptiResult(void* params))         \
  X("cuptiProfilerHostGetConfigImage", host_config_image, CuptiResult(void* params))                  \
  X("cuptiProfilerHostGetNumOfPasses", host_passes, CuptiResult(void* params))                        \
  X("cuptiProfilerHostEvaluateToGpuValues", host_evaluate, CuptiResult(void* params))                 \
  X("cuptiPmSamplingEnable", pm_enable, CuptiResult(void* params))                                    \
  X("cuptiPmSamplingDisable", pm_disable, CuptiResult(void* params))                                  \
  X("cuptiPmSamplingSetConfig", pm_set_config, CuptiResult(void* params))                             \
  X("cuptiPmSamplingStart", pm_start, CuptiResult(void* params))                                      \
  X("cuptiPmSamplingStop", pm_stop, CuptiResult(void* params))                                        \
  X("cuptiPmSamplingDecodeData", pm_decode, CuptiResult(void* params))                                \
  X("cuptiPmSamplingGetCounterAvailability", pm_availability, CuptiResult(void* params))              \
  X("cuptiPmSamplingGetCounterDataSize", pm_data_size, CuptiResult(void* params))                     \
  X("cuptiPmSamplingCounterDataImageInitialize", pm_data_initialize, CuptiResult(void* params))       \
  X("cuptiPmSamplingGetCounterDataInfo", pm_data_info, CuptiResult(void* params))                     \
  X("cuptiPmSamplingCounterDataGetSampleInfo", pm_sample_info, CuptiResult(void* params))             \
  X("cuptiRangeProfilerEnable", range_enable, CuptiResult(void* params))                              \
  X("cuptiRangeProfilerDisable", range_disable, CuptiResult(void* params))                            \
  X("cuptiRangeProfilerSetConfig", range_set_config, CuptiResult(void* params))                       \
  X("cuptiRangeProfilerStart", range_start, CuptiResult(void* params))                                \
  X("cuptiRangeProfilerStop", range_stop, CuptiResult(void* params))                                  \
  X("cuptiRangeProfilerPushRange", range_push, CuptiResult(void* params))                             \
  X("cuptiRangeProfilerPopRange", range_pop, CuptiResult(void* params))                               \
  X("cuptiRangeProfilerDecodeData", range_decode, CuptiResult(void* params))                          \
  X("cuptiRangeProfilerGetCounterDataSize", range_data_size, CuptiResult(void* params))               \
  X("cuptiRangeProfilerCounterDataImageInitialize", range_data_initialize, CuptiResult(void* params)) \
  X("cuptiRangeProfilerGetCounterDataInfo", range_data_info, CuptiResult(void* params))

/// libcupti as a value: one pointer per function, null if this version lacks it.
struct Cupti {
  GPUSCOPE_CUPTI_FUNCTIONS(GPUSCOPE_FUNCTION_POINTER)
  GPUSCOPE_CUPTI_PROFILER_FUNCTIONS(GPUSCOPE_FUNCTION_POINTER)
  Library library;
  uint32_t version = 0;  // of cuptiGetVersion: 18 for CUDA 11.8, 28 for 12.9.1, then 130000 for 13.0

  /// `wheel_paths`: libcupti files of Python wheels, tried after a copy that is already loaded.
  static Cupti open(const std::vector<std::string>& wheel_paths);
  std::string error_name(CuptiResult code) const;
};

/// Why this table cannot trace. "" if it can.
std::string cupti_shortcoming(const Cupti& table);

// -- libnvidia-ml -----------------------------------------------------------------------------------------------------

using NvmlDevice = nvmlDevice_st*;

// NVML's own layouts.
struct NvmlMemory {
  static constexpr unsigned kVersion = 40U | 2U << 24;  // size and version, as NVML requires
  unsigned version = kVersion;
  unsigned long long total = 0;
  unsigned long long reserved = 0;  // by the driver and the firmware; not in `used`
  unsigned long long free = 0;
  unsigned long long used = 0;
};
static_assert(sizeof(NvmlMemory) == 40);

struct NvmlProcess {
  static constexpr unsigned long long kUnknown = ~0ULL;
  unsigned pid = 0;
  unsigned long long bytes = 0;
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
};
static_assert(sizeof(NvmlProcess) == 24);

struct NvmlUtilization {
  unsigned gpu = 0;  // percent
  unsigned memory = 0;
};

struct NvmlPciInfo {
  std::array<char, 16> legacy_bus_id{};
  std::array<unsigned, 5> numbers{};  // domain, bus, device, ids
  std::array<char, 32> bus_id{};
};
static_assert(sizeof(NvmlPciInfo) == 68);

struct NvmlBar1Memory {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};
static_assert(sizeof(NvmlBar1Memory) == 24);

struct NvmlMarginTemperature {
  unsigned version = 8U | 1U << 24;
  int celsius = 0;
};
static_assert(sizeof(NvmlMarginTemperature) == 8);

struct NvmlFieldValue {
  unsigned field = 0;
  unsigned scope = 0;
  long long timestamp_us = 0;
  long long latency_us = 0;
  int type = 0;
  int code = 0;  // only of this field
  alignas(8) std::array<std::byte, 8> value{};

  /// By nvmlValueType_t. NaN if NVML does not know it.
  double number() const {
    const auto as = [this]<class T>(T number) {
      std::memcpy(&number, value.data(), sizeof number);
      const bool is_unknown = number == static_cast<T>(-1) || static_cast<double>(number) < 0;
      return is_unknown ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(number);
    };
    switch (type) {
      case 0:
        return as(double{});
      case 1:
        return as(uint32_t{});
      case 4:
        return as(int64_t{});
      case 5:
        return as(int32_t{});
      case 6:
        return as(uint16_t{});
      default:
        return as(uint64_t{});
    }
  }
};
static_assert(sizeof(NvmlFieldValue) == 40);

struct nvmlGpmSample_st;
using NvmlGpmSample = nvmlGpmSample_st*;

struct NvmlGpmSupport {
  unsigned version = 1;
  unsigned is_supported = 0;
};
static_assert(sizeof(NvmlGpmSupport) == 8);

struct NvmlGpmMetric {
  unsigned id = 0;
  int code = 0;  // only of this metric
  double value = 0;
  std::array<const char*, 3> names{};  // short, long, unit: null or NVML's own
};
static_assert(sizeof(NvmlGpmMetric) == 40);

/// The array grew with each version of NVML. A driver reads and writes `count` entries.
struct NvmlGpmMetrics {
  static constexpr std::size_t kMost = 333;
  unsigned version = 1;
  unsigned count = 0;
  NvmlGpmSample before = nullptr;
  NvmlGpmSample after = nullptr;
  std::array<NvmlGpmMetric, kMost> metrics{};
};
static_assert(offsetof(NvmlGpmMetrics, metrics) == 24);

struct nvmlEventSet_st;
using NvmlEventSet = nvmlEventSet_st*;

struct NvmlEvent {
  static constexpr unsigned kNoInstance = UINT32_MAX;
  NvmlDevice device = nullptr;
  unsigned long long type = 0;
  unsigned long long data = 0;  // for an Xid its number
  unsigned gpu_instance = kNoInstance;
  unsigned compute_instance = kNoInstance;
};
static_assert(sizeof(NvmlEvent) == 32);

// X(symbol in libnvidia-ml, member, return type and arguments). NVML's return codes are ints, 0 for success.
#define GPUSCOPE_NVML_FUNCTIONS(X)                                                                                \
  X("nvmlInit_v2", init, int())                                                                                   \
  X("nvmlShutdown", shutdown, int())                                                                              \
  X("nvmlSystemGetDriverVersion", system_get_driver_version, int(char*, unsigned length))                         \
  X("nvmlErrorString", error_string, const char*(int))                                                            \
  X("nvmlDeviceGetHandleByUUID", device_by_uuid, int(const char*, NvmlDevice*))                                   \
  X("nvmlDeviceGetHandleByPciBusId_v2", device_by_pci_bus_id, int(const char*, NvmlDevice*))                      \
  X("nvmlDeviceGetClockInfo", clock_info, int(NvmlDevice, int type, unsigned* mhz))                               \
  X("nvmlDeviceGetPowerUsage", power_usage, int(NvmlDevice, unsigned* milliwatts))                                \
  X("nvmlDeviceGetEnforcedPowerLimit", power_limit, int(NvmlDevice, unsigned* milliwatts))                        \
  X("nvmlDeviceGetTemperature", temperature, int(NvmlDevice, int sensor, unsigned* celsius))                      \
  X("nvmlDeviceGetCurrentClocksEventReasons", clocks_event_reasons, int(NvmlDevice, unsigned long long*))         \
  X("nvmlDeviceGetCurrentClocksThrottleReasons", clocks_throttle_reasons, int(NvmlDevice, unsigned long long*))   \
  X("nvmlDeviceGetMemoryInfo_v2", memory_info, int(NvmlDevice, NvmlMemory*))                                      \
  X("nvmlDeviceGetComputeRunningProcesses_v3", compute_processes, int(NvmlDevice, unsigned* count, NvmlProcess*)) \
  X("nvmlDeviceGetCount_v2", device_count, int(unsigned*))                                                        \
  X("nvmlDeviceGetHandleByIndex_v2", device_by_index, int(unsigned, NvmlDevice*))                                 \
  X("nvmlDeviceGetName", name, int(NvmlDevice, char*, unsigned length))                                           \
  X("nvmlDeviceGetUUID", uuid, int(NvmlDevice, char*, unsigned length))                                           \
  X("nvmlDeviceGetPciInfo_v3", pci_info, int(NvmlDevice, NvmlPciInfo*))                                           \
  X("nvmlDeviceGetMigMode", mig_mode, int(NvmlDevice, unsigned* current, unsigned* pending))                      \
  X("nvmlDeviceGetUtilizationRates", utilization, int(NvmlDevice, NvmlUtilization*))                              \
  X("nvmlDeviceGetEncoderUtilization", encoder_utilization, int(NvmlDevice, unsigned* percent, unsigned* us))     \
  X("nvmlDeviceGetDecoderUtilization", decoder_utilization, int(NvmlDevice, unsigned* percent, unsigned* us))     \
  X("nvmlDeviceGetJpgUtilization", jpeg_utilization, int(NvmlDevice, unsigned* percent, unsigned* us))            \
  X("nvmlDeviceGetOfaUtilization", optical_flow_utilization, int(NvmlDevice, unsigned* percent, unsigned* us))    \
  X("nvmlDeviceGetBAR1MemoryInfo", bar1_memory, int(NvmlDevice, NvmlBar1Memory*))                                 \
  X("nvmlDeviceGetPowerManagementDefaultLimit", power_limit_default, int(NvmlDevice, unsigned* milliwatts))       \
  X("nvmlDeviceGetTotalEnergyConsumption", energy, int(NvmlDevice, unsigned long long* millijoules))              \
  X("nvmlDeviceGetMarginTemperature", margin_temperature, int(NvmlDevice, NvmlMarginTemperature*))                \
  X("nvmlDeviceGetFanSpeed", fan_speed, int(NvmlDevice, unsigned* percent))                                       \
  X("nvmlDeviceGetMaxClockInfo", max_clock_info, int(NvmlDevice, int type, unsigned* mhz))                        \
  X("nvmlDeviceGetPerformanceState", performance_state, int(NvmlDevice, unsigned*))                               \
  X("nvmlDeviceGetFieldValues", field_values, int(NvmlDevice, int count, NvmlFieldValue*))                        \
  X("nvmlDeviceGetCurrPcieLinkGeneration", pcie_generation, int(NvmlDevice, unsigned*))                           \
  X("nvmlDeviceGetMaxPcieLinkGeneration", pcie_generation_max, int(NvmlDevice, unsigned*))                        \
  X("nvmlDeviceGetCurrPcieLinkWidth", pcie_width, int(NvmlDevice, unsigned*))                                     \
  X("nvmlDeviceGetMaxPcieLinkWidth", pcie_width_max, int(NvmlDevice, unsigned*))                                  \
  X("nvmlDeviceGetTotalEccErrors", total_ecc_errors, int(NvmlDevice, int kind, int counter, unsigned long long*)) \
  X("nvmlDeviceGetRemappedRows", remapped_rows,                                                                   \
    int(NvmlDevice, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed))             \
  X("nvmlGpmQueryDeviceSupport", gpm_support, int(NvmlDevice, NvmlGpmSupport*))                                   \
  X("nvmlGpmSampleAlloc", gpm_sample_alloc, int(NvmlGpmSample*))                                                  \
  X("nvmlGpmSampleFree", gpm_sample_free, int(NvmlGpmSample))                                                     \
  X("nvmlGpmSampleGet", gpm_sample_get, int(NvmlDevice, NvmlGpmSample))                                           \
  X("nvmlGpmMigSampleGet", gpm_mig_sample_get, int(NvmlDevice, unsigned gpu_instance, NvmlGpmSample))             \
  X("nvmlGpmMetricsGet", gpm_metrics, int(NvmlGpmMetrics*))                                                       \
  X("nvmlDeviceGetMaxMigDeviceCount", mig_count_max, int(NvmlDevice, unsigned*))                                  \
  X("nvmlDeviceGetMigDeviceHandleByIndex", mig_device, int(NvmlDevice, unsigned, NvmlDevice*))                    \
  X("nvmlDeviceGetGpuInstanceId", gpu_instance, int(NvmlDevice, unsigned*))                                       \
  X("nvmlDeviceGetComputeInstanceId", compute_instance, int(NvmlDevice, unsigned*))                               \
  X("nvmlEventSetCreate", event_set_create, int(NvmlEventSet*))                                                   \
  X("nvmlEventSetFree", event_set_free, int(NvmlEventSet))                                                        \
  X("nvmlEventSetWait_v2", event_set_wait, int(NvmlEventSet, NvmlEvent*, unsigned milliseconds))                  \
  X("nvmlDeviceRegisterEvents", register_events, int(NvmlDevice, unsigned long long types, NvmlEventSet))

/// libnvidia-ml as a value: one pointer per function, null if the driver lacks it.
struct Nvml {
  GPUSCOPE_NVML_FUNCTIONS(GPUSCOPE_FUNCTION_POINTER)
  Library library;

  static Nvml open() {
    Nvml table;
    table.library = Library::open({"libnvidia-ml.so.1"}, {"libnvidia-ml.so.1", "libnvidia-ml.so"});
    GPUSCOPE_NVML_FUNCTIONS(GPUSCOPE_LOAD_FUNCTION)
    return table;
  }
  std::string error_text(int code) const {
    const char* text = error_string != nullptr ? error_string(code) : nullptr;
    return text != nullptr ? text : "NVML error " + std::to_string(code);
  }
};

// -- libtorch ---------------------------------------------------------------------------------------------------------

/// at::RecordFunctionCallback, as torch declares it since 1.11.
struct TorchCallback {
  struct Context {
    virtual ~Context() = default;
  };
  std::unique_ptr<Context> (*start)(const void* function) = nullptr;
  void (*end)(const void* function, Context*) = nullptr;
  double sampling = 1.0;
  std::array<bool, 10> scopes{};  // at::RecordScope
  bool needs_inputs = false;
  bool needs_outputs = false;
  bool needs_ids = false;
};

/// libtorch's interfaces for tools: callbacks around every operator, the destination of its profiler's operator ranges,
/// and the state of a profiler on the calling thread. Null if a version lacks it. `kind` is a c10::DebugInfoKind,
/// `function` an at::RecordFunction.
struct Torch {
  std::add_pointer_t<uint64_t(TorchCallback)> add_callback = nullptr;
  std::add_pointer_t<void(uint64_t handle)> remove_callback = nullptr;
  std::add_pointer_t<const char*(const void* function)> function_name = nullptr;
  std::add_pointer_t<const char*(const void* function)> overload_name = nullptr;
  // The calling thread's open modules and methods of TorchScript, outermost first.
  std::add_pointer_t<std::vector<std::string>()> module_hierarchy = nullptr;
  std::add_pointer_t<bool()> records_concrete_inputs = nullptr;  // torch's own switches
  std::add_pointer_t<bool()> links_backward = nullptr;
  std::add_pointer_t<bool()> records_syncs = nullptr;
  std::add_pointer_t<uint64_t()> next_sequence = nullptr;
  const void* undefined_tensor = nullptr;  // the target of an undefined tensor

  std::add_pointer_t<void(void* stubs)> register_cuda_methods = nullptr;
  std::add_pointer_t<void*()> cuda_stubs = nullptr;
  std::add_pointer_t<void*(void* kind)> debug_info = nullptr;
  std::add_pointer_t<void(void* state)> remove_ranges = nullptr;  // a profiler's ranges, without its state
  void* profiler_state = nullptr;                                 // the kind

  Library cpu;
  Library c10;

  bool has_callbacks() const noexcept {
    return add_callback != nullptr && remove_callback != nullptr && function_name != nullptr &&
           next_sequence != nullptr;
  }
  bool has_ranges() const noexcept { return register_cuda_methods != nullptr && cuda_stubs != nullptr; }
  /// The libtorch that the process has loaded.
  static Torch open();
};

inline Torch Torch::open() {
  Torch torch;
  torch.cpu = Library::open({"libtorch_cpu.so"}, {});
  torch.c10 = Library::open({"libc10.so"}, {});
  torch.cpu.load("_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE", torch.add_callback);
  torch.cpu.load("_ZN2at14removeCallbackEm", torch.remove_callback);
  torch.cpu.load("_ZNK2at14RecordFunction4nameEv", torch.function_name);
  torch.cpu.load("_ZNK2at14RecordFunction13overload_nameEv", torch.overload_name);
  // This name returns the string type with which this module is built. Other builds use another name.
  torch.cpu.load("_ZN5torch3jit22currentModuleHierarchyB5cxx11Ev", torch.module_hierarchy);
  torch.cpu.load("_ZN5torch8profiler4impl34get_record_concrete_inputs_enabledEv", torch.records_concrete_inputs);
  torch.cpu.load("_ZN5torch8profiler4impl19get_fwd_bwd_enabledEv", torch.links_backward);
  torch.cpu.load("_ZN5torch8profiler4impl21get_cuda_sync_enabledEv", torch.records_syncs);
  torch.cpu.load("_ZN2at15sequence_number4peekEv", torch.next_sequence);
  torch.undefined_tensor = torch.c10.symbol("_ZN3c1019UndefinedTensorImpl10_singletonE");
  torch.cpu.load("_ZN5torch8profiler4impl19registerCUDAMethodsEPNS1_13ProfilerStubsE", torch.register_cuda_methods);
  torch.cpu.load("_ZN5torch8profiler4impl9cudaStubsEv", torch.cuda_stubs);
  torch.c10.load("_ZN3c1020ThreadLocalDebugInfo3getENS_13DebugInfoKindE", torch.debug_info);
  torch.cpu.load("_ZN5torch8profiler4impl17ProfilerStateBase14removeCallbackEv", torch.remove_ranges);
  // Up to torch 2.11 the kinds are an enumeration, with this value for the profiler's state. Later kinds are addresses.
  constexpr std::uintptr_t kProfilerState = 2;
  auto* const* kind = static_cast<void* const*>(torch.c10.symbol("_ZN3c1013DebugInfoKind14PROFILER_STATEE"));
  torch.profiler_state = kind != nullptr ? *kind : reinterpret_cast<void*>(kProfilerState);
  return torch;
}

}  // namespace gpuscope::driver
