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

/// The reason for a missing figure if the driver lacks its function.
inline constexpr const char* kNoFunction = "this driver's NVML cannot tell";

/// The reason for a missing figure if NVML answers without a value.
inline constexpr const char* kNotKnown = "NVML does not know it here";

/// Whether an answer of NVML is no value: all bits set (NVML_VALUE_NOT_AVAILABLE), or below 0. False for inputs and
/// other types.
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

/// Whether a driver will always repeat this code (nvmlReturn_t): wrong argument, not supported, no permission, no such
/// function.
constexpr bool is_refusal(int code) { return code == 2 || code == 3 || code == 4 || code == 13; }

/// Whether every call fails until the GPU returns or NVML is initialised again. Codes: not initialised, driver not
/// loaded, GPU lost, reset required, versions of driver and library differ.
constexpr bool is_loss(int code) { return code == 1 || code == 9 || code == 15 || code == 16 || code == 18; }

/// A GPU's current clocks and their limits. `why` gives the reason for each missing figure.
struct ClockState {
  std::optional<double> sm_hz;
  std::optional<double> memory_hz;
  std::optional<double> power_w;
  std::optional<double> power_limit_w;
  std::optional<double> temperature_c;
  std::optional<uint64_t> reasons;  // bits of nvmlClocksEventReasons
  std::string why;
};

/// A GPU's current memory, in bytes. `why` gives the reason for each missing figure.
struct MemoryInfo {
  std::optional<uint64_t> process;  // of a process on this GPU, including its context, by NVML
  std::optional<uint64_t> used;     // by all processes
  std::optional<uint64_t> free;     // total minus used and the driver's own
  std::optional<uint64_t> total;
  std::optional<std::string> name;
  bool context = false;  // the primary context of this process is active
  std::string why;
};

/// NVML's device for a CUDA device, and its state. Makes no context, and never throws for missing features. Immutable,
/// any thread.
class Device {
 public:
  /// Finds CUDA's device in NVML by its UUID, or by its PCI address if the UUID names a part of a GPU. Initialises both
  /// libraries.
  Device(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal);

  ClockState clock_state() const;
  /// `pid`: the process's number in this container.
  MemoryInfo memory_info(unsigned pid) const;

 private:
  void find();
  /// Calls a function of NVML on the device. Returns why it failed, "" on success.
  template <class Function, class... Arguments>
  std::string ask(Function* function, Arguments... arguments) const;
  std::optional<uint64_t> process_memory(unsigned pid, bool context, std::string& why) const;

  driver::Nvml nvml_;
  driver::Cuda cuda_;
  int ordinal_;
  driver::NvmlDevice handle_ = nullptr;
  bool whole_ = false;  // false: CUDA's device is only a part of the handle's GPU
  std::string why_;     // there is no handle
};

/// The devices of a process, found on first use and cached: finding one takes NVML longer than reading it. Any thread.
class Devices {
 public:
  Devices(const driver::Nvml& nvml, const driver::Cuda& cuda) : nvml_(nvml), cuda_(cuda) {}

  /// Valid during the lifetime of this object.
  const Device& of(int ordinal);

 private:
  driver::Nvml nvml_;
  driver::Cuda cuda_;
  std::mutex mutex_;
  std::map<int, Device> devices_;
};

/// The processes that compute on a GPU. None if NVML does not report them, with the reason in `why`. Any thread.
std::optional<std::vector<driver::NvmlProcess>> compute_processes(const driver::Nvml& nvml, driver::NvmlDevice device,
                                                                  std::string& why);

}  // namespace gpuscope::nvml
