// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::nvml {

// nvml.h
inline constexpr int kSmClock = 1;
inline constexpr int kMemoryClock = 2;
inline constexpr int kGpuSensor = 0;

/// Why a figure is absent whose function the driver lacks.
inline constexpr const char* kNoFunction = "this driver's NVML cannot tell";

/// Why a figure is absent that NVML answers without knowing it.
inline constexpr const char* kNotKnown = "NVML does not know it here";

/// Whether an answer of NVML is none: all bits set (NVML_VALUE_NOT_AVAILABLE), or a number below 0. False of what is
/// asked for, or is no number.
template <class T>
bool is_unknown(const T& argument) {
  if constexpr (std::is_same_v<T, unsigned*>) {
    return static_cast<int>(*argument) < 0;
  } else if constexpr (std::is_same_v<T, unsigned long long*>) {
    return static_cast<long long>(*argument) < 0;
  } else if constexpr (std::is_same_v<T, driver::NvmlUtilization*>) {
    return is_unknown(&argument->gpu) || is_unknown(&argument->memory);
  } else if constexpr (std::is_same_v<T, driver::NvmlMemory*> || std::is_same_v<T, driver::NvmlBar1Memory*>) {
    return is_unknown(&argument->used) || is_unknown(&argument->total);
  } else {
    return false;
  }
}

/// Whether a driver that gave this code (nvmlReturn_t) will give it again: wrong argument, not supported, no
/// permission, no such function.
constexpr bool is_refusal(int code) { return code == 2 || code == 3 || code == 4 || code == 13; }

/// Whether no call will work until the GPU comes back, or NVML is initialised again: not initialised, driver not
/// loaded, GPU lost, reset required, versions of driver and library differ.
constexpr bool is_loss(int code) { return code == 1 || code == 9 || code == 15 || code == 16 || code == 18; }

/// A GPU's clocks and what limits them, now. What is absent is named in `why`, with the reason.
struct ClockState {
  std::optional<double> sm_hz;
  std::optional<double> memory_hz;
  std::optional<double> power_w;
  std::optional<double> power_limit_w;
  std::optional<double> temperature_c;
  std::optional<uint64_t> reasons;  // bits of nvmlClocksEventReasons
  std::string why;
};

/// A GPU's memory now, in bytes. What is absent is named in `why`, with the reason.
struct MemoryInfo {
  std::optional<uint64_t> process;  // what NVML counts for a process on this GPU, its context and all
  std::optional<uint64_t> used;     // by all processes
  std::optional<uint64_t> free;     // total less used, and less what the driver keeps for itself
  std::optional<uint64_t> total;
  std::optional<std::string> name;
  bool context = false;  // the primary context of this process is active
  std::string why;
};

/// NVML's device for one of CUDA's, and its state. Makes no context, never throws for what a machine lacks.
/// Immutable; any thread.
class Device {
 public:
  /// Finds CUDA's device among NVML's, by its UUID, or by its address on the bus where that names a part of a GPU.
  /// Initialises both libraries.
  Device(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal);

  ClockState clock_state() const;
  /// `process` is that of the number `pid`, as this container counts them.
  MemoryInfo memory_info(unsigned pid) const;

 private:
  void find();
  /// Calls a function of NVML on the device; why that failed, "" when it did not.
  template <class Function, class... Arguments>
  std::string ask(Function* function, Arguments... arguments) const;
  std::optional<uint64_t> process_memory(unsigned pid, bool context, std::string& why) const;

  driver::Nvml nvml_;
  driver::Cuda cuda_;
  int ordinal_;
  driver::NvmlDevice handle_ = nullptr;
  bool whole_ = false;  // false: CUDA's device is a part of the GPU that the handle stands for
  std::string why_;     // there is no handle
};

/// The devices of a process, each found when first asked for and kept: finding one takes NVML longer than reading it.
/// Any thread.
class Devices {
 public:
  Devices(const driver::Nvml& nvml, const driver::Cuda& cuda) : nvml_(nvml), cuda_(cuda) {}

  /// Good as long as this object.
  const Device& of(int ordinal);

 private:
  driver::Nvml nvml_;
  driver::Cuda cuda_;
  std::mutex mutex_;
  std::map<int, Device> devices_;
};

/// The processes that compute on a GPU; none, and `why`, where NVML does not tell. Any thread.
std::optional<std::vector<driver::NvmlProcess>> compute_processes(const driver::Nvml& nvml, driver::NvmlDevice device,
                                                                  std::string& why);

/// A pool of stream-ordered memory (cuMemAllocAsync), in bytes.
struct MemoryPool {
  uint64_t handle = 0;
  uint64_t reserved = 0;
  uint64_t used = 0;
  uint64_t peak_reserved = 0;
  uint64_t peak_used = 0;
};

/// The default pool of a device and, where it is another, the current one. None where this process has no primary
/// context there. Any thread.
std::vector<MemoryPool> read_memory_pools(const driver::Cuda& cuda, int ordinal);

/// The devices whose primary context is active in this process. Throws NotAvailable without a driver or a device.
std::vector<int> devices_in_use(const driver::Cuda& cuda);

/// What a GPU could do at best, from its own description. What the driver does not report is 0 or absent.
struct Limits {
  unsigned multiprocessors = 0;
  unsigned capability_major = 0;
  unsigned capability_minor = 0;
  uint64_t l2_bytes = 0;
  std::optional<double> memory_bandwidth;  // bytes a second
  std::optional<double> sm_hz_max;
  std::optional<double> fp32_flops;  // operations a second, an FMA counting as two
};

/// Throws CudaError when the driver refuses. No context is needed.
Limits read_limits(const driver::Cuda& cuda, int ordinal);

}  // namespace gpuscope::nvml
