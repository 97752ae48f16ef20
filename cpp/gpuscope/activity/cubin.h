// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuscope::activity {

/// What kernels call of the driver. It keeps memory on the device for each of these from the moment that a module with
/// such calls is loaded: 92 MiB for assert, 64 for printf, both in one; some 50 for malloc (driver 13.0 on an H200).
enum DeviceService : uint32_t { kAssert = 1, kPrintf = 2, kMalloc = 4 };

/// The device memory that a module takes, from its image, an ELF file.
struct Cubin {
  uint64_t device_bytes = 0;  // once all of it is loaded: CUDA's lazy loading does so function by function
  uint32_t services = 0;      // DeviceService bits
};

/// Nothing for an image that is damaged, or none. Any thread; reads headers and symbols only.
Cubin read_cubin(const void* bytes, std::size_t size) noexcept;

}  // namespace gpuscope::activity
