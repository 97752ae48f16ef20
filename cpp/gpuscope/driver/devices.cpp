// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/devices.h"

#include <string>

#include "gpuscope/base/errors.h"

namespace gpuscope::driver {
namespace {

// cuda.h, CUmemPool_attribute
constexpr int kReserved = 5;
constexpr int kPeakReserved = 6;
constexpr int kUsed = 7;
constexpr int kPeakUsed = 8;

}  // namespace

CuDevice find_device(const Cuda& cuda, int ordinal) {
  if (!cuda.library) {
    throw base::NotAvailable("the GPU", "no NVIDIA driver was found (" + cuda.library.why() + ")",
                             "install the driver, or pass the GPU into this container");
  }
  if (const int code = cuda.init(0); code != 0) {
    throw base::NotAvailable("the GPU", "cuInit failed with " + cuda.error_name(code), "");
  }
  int count = 0;
  GPUSCOPE_CUDA(cuda, device_get_count, &count);
  if (ordinal < 0 || ordinal >= count) {
    throw base::NotAvailable("device " + std::to_string(ordinal),
                             "this process sees " + std::to_string(count) + " devices", "");
  }
  CuDevice device = 0;
  GPUSCOPE_CUDA(cuda, device_get, &device, ordinal);
  return device;
}

bool has_primary_context(const Cuda& cuda, CuDevice device) noexcept {
  unsigned flags = 0;
  int active = 0;
  return cuda.primary_context_state != nullptr && cuda.primary_context_state(device, &flags, &active) == 0 &&
         active != 0;
}

std::optional<CuDevice> find_device_if_any(const Cuda& cuda, int ordinal) noexcept {
  CuDevice device = 0;
  const bool found =
      cuda.library && cuda.init != nullptr && cuda.init(0) == 0 && cuda.device_get(&device, ordinal) == 0;
  return found ? std::optional(device) : std::nullopt;
}

std::vector<int> devices_in_use(const Cuda& cuda) {
  std::vector<int> found;
  int count = 0;
  if (cuda.device_get_count == nullptr || cuda.device_get_count(&count) != 0) {
    return found;  // cuInit has not been called
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CuDevice device = 0;
    if (cuda.device_get(&device, ordinal) == 0 && has_primary_context(cuda, device)) {
      found.push_back(ordinal);
    }
  }
  return found;
}

std::vector<MemoryPool> read_memory_pools(const Cuda& cuda, int ordinal) {
  std::vector<MemoryPool> pools;
  const std::optional device = find_device_if_any(cuda, ordinal);
  if (!device.has_value() || !has_primary_context(cuda, *device) || cuda.memory_pool_attribute == nullptr) {
    return pools;
  }
  for (const auto find : {cuda.default_memory_pool, cuda.current_memory_pool}) {
    CuMemoryPool handle = nullptr;
    if (find == nullptr || find(&handle, *device) != 0 || handle == nullptr) {
      continue;
    }
    MemoryPool pool;
    pool.handle = reinterpret_cast<uintptr_t>(handle);
    if (!pools.empty() && pools.front().handle == pool.handle) {
      continue;
    }
    const auto ask = [&](int attribute, uint64_t& value) {
      return cuda.memory_pool_attribute(handle, attribute, &value) == 0;
    };
    if (ask(kReserved, pool.reserved) && ask(kUsed, pool.used) && ask(kPeakReserved, pool.peak_reserved) &&
        ask(kPeakUsed, pool.peak_used)) {
      pools.push_back(pool);
    }
  }
  return pools;
}

namespace {

// FP32 FMAs per cycle and multiprocessor: CUDA C++ Programming Guide, "Arithmetic Instructions", table of throughputs.
unsigned fp32_lanes(unsigned major, unsigned minor) {
  const bool half = major == 7 || (major == 6 && minor == 0) || (major == 8 && minor == 0);
  return major < 5 || major > 12 ? 0 : half ? 64 : 128;
}

}  // namespace

Limits read_limits(const Cuda& cuda, int ordinal) {
  CuDevice device = 0;
  GPUSCOPE_CUDA(cuda, device_get, &device, ordinal);
  const auto attribute = [&](int number) {
    int value = 0;
    GPUSCOPE_CUDA(cuda, device_get_attribute, &value, number, device);
    return static_cast<unsigned>(value);
  };
  Limits limits;
  limits.multiprocessors = attribute(kMultiprocessors);
  limits.capability_major = attribute(kCapabilityMajor);
  limits.capability_minor = attribute(kCapabilityMinor);
  limits.l2_bytes = attribute(kL2CacheBytes);
  constexpr double kHzPerKhz = 1e3;
  const double memory_hz = attribute(kMemoryClockRateKhz) * kHzPerKhz;
  const unsigned bus_bits = attribute(kMemoryBusBits);
  if (memory_hz > 0 && bus_bits != 0) {
    limits.memory_bandwidth = 2 * memory_hz * bus_bits / 8;  // two transfers a cycle
  }
  const double sm_hz = attribute(kClockRateKhz) * kHzPerKhz;
  if (sm_hz > 0) {
    limits.sm_hz_max = sm_hz;
    const unsigned lanes = fp32_lanes(limits.capability_major, limits.capability_minor);
    if (lanes != 0) {
      limits.fp32_flops = 2 * sm_hz * limits.multiprocessors * lanes;
    }
  }
  return limits;
}

}  // namespace gpuscope::driver
