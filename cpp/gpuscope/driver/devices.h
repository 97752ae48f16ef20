// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::driver {

/// The device with this number. Initialises the driver, and makes no context. Throws NotAvailable without a driver or
/// such a device. Any thread.
CuDevice find_device(const Cuda& cuda, int ordinal);

/// Whether this process has a primary context on the device, including contexts of other libraries. Any thread.
bool has_primary_context(const Cuda& cuda, CuDevice device) noexcept;
/// As find_device, without exceptions.
std::optional<CuDevice> find_device_if_any(const Cuda& cuda, int ordinal) noexcept;

/// A pool of stream-ordered memory (cuMemAllocAsync), in bytes.
struct MemoryPool {
  uint64_t handle = 0;
  uint64_t reserved = 0;
  uint64_t used = 0;
  uint64_t peak_reserved = 0;
  uint64_t peak_used = 0;
};

/// The default pool of a device and, if different, the current pool. Empty if this process has no primary context
/// there. Any thread.
std::vector<MemoryPool> read_memory_pools(const Cuda& cuda, int ordinal);

/// The devices with an active primary context in this process. Does not initialise the driver. Any thread.
std::vector<int> devices_in_use(const Cuda& cuda);

/// A GPU's peak capabilities, from its own description. Figures that the driver does not report are 0 or absent.
struct Limits {
  unsigned multiprocessors = 0;
  unsigned capability_major = 0;
  unsigned capability_minor = 0;
  uint64_t l2_bytes = 0;
  std::optional<double> memory_bandwidth;  // bytes a second
  std::optional<double> sm_hz_max;
  std::optional<double> fp32_flops;  // operations per second, two per FMA
};

/// Throws CudaError if the driver refuses. Needs no context.
Limits read_limits(const Cuda& cuda, int ordinal);

}  // namespace gpuscope::driver
