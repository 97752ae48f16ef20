// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

#include "gpuscope/driver/library.h"

struct nvmlDevice_st;

namespace gpuscope::driver {

using NvmlDevice = nvmlDevice_st*;

// NVML's own layouts.
struct NvmlMemory {
  static constexpr unsigned kVersion = 40U | 2U << 24;  // size and version, as NVML asks for
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

// X(symbol in libnvidia-ml, member, return type and arguments). NVML's return codes are ints, 0 for success.
#define GPUSCOPE_NVML_FUNCTIONS(X)                                                                              \
  X("nvmlInit_v2", init, int())                                                                                 \
  X("nvmlShutdown", shutdown, int())                                                                            \
  X("nvmlSystemGetDriverVersion", system_get_driver_version, int(char*, unsigned length))                       \
  X("nvmlErrorString", error_string, const char*(int))                                                          \
  X("nvmlDeviceGetHandleByUUID", device_by_uuid, int(const char*, NvmlDevice*))                                 \
  X("nvmlDeviceGetHandleByPciBusId_v2", device_by_pci_bus_id, int(const char*, NvmlDevice*))                    \
  X("nvmlDeviceGetClockInfo", clock_info, int(NvmlDevice, int type, unsigned* mhz))                             \
  X("nvmlDeviceGetPowerUsage", power_usage, int(NvmlDevice, unsigned* milliwatts))                              \
  X("nvmlDeviceGetEnforcedPowerLimit", power_limit, int(NvmlDevice, unsigned* milliwatts))                      \
  X("nvmlDeviceGetTemperature", temperature, int(NvmlDevice, int sensor, unsigned* celsius))                    \
  X("nvmlDeviceGetCurrentClocksEventReasons", clocks_event_reasons, int(NvmlDevice, unsigned long long*))       \
  X("nvmlDeviceGetCurrentClocksThrottleReasons", clocks_throttle_reasons, int(NvmlDevice, unsigned long long*)) \
  X("nvmlDeviceGetMemoryInfo_v2", memory_info, int(NvmlDevice, NvmlMemory*))                                    \
  X("nvmlDeviceGetComputeRunningProcesses_v3", compute_processes, int(NvmlDevice, unsigned* count, NvmlProcess*))

/// libnvidia-ml as a value: one pointer a function, nullptr where the driver lacks it.
struct Nvml {
#define GPUSCOPE_MEMBER(symbol, member, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
  GPUSCOPE_NVML_FUNCTIONS(GPUSCOPE_MEMBER)
#undef GPUSCOPE_MEMBER
  Library library;

  static Nvml open() {
    Nvml table;
    table.library = Library::open({"libnvidia-ml.so.1"}, {"libnvidia-ml.so.1", "libnvidia-ml.so"});
#define GPUSCOPE_RESOLVE(name, member, ...) table.library.load(name, table.member);
    GPUSCOPE_NVML_FUNCTIONS(GPUSCOPE_RESOLVE)
#undef GPUSCOPE_RESOLVE
    return table;
  }
  std::string error_text(int code) const {
    const char* text = error_string != nullptr ? error_string(code) : nullptr;
    return text != nullptr ? text : "NVML error " + std::to_string(code);
  }
};

}  // namespace gpuscope::driver
