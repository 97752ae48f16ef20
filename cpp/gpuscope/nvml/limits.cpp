// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/limits.h"

namespace gpuscope::nvml {
namespace {

// CUdevice_attribute (cuda.h).
constexpr int kClockRateKhz = 13;
constexpr int kMultiprocessors = 16;
constexpr int kMemoryClockRateKhz = 36;
constexpr int kMemoryBusBits = 37;
constexpr int kL2CacheBytes = 38;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

// FP32 FMAs a cycle and multiprocessor: CUDA C++ Programming Guide, "Arithmetic Instructions", table of throughputs.
unsigned fp32_lanes(unsigned major, unsigned minor) {
  const bool half = major == 7 || (major == 6 && minor == 0) || (major == 8 && minor == 0);
  return major < 5 || major > 12 ? 0 : half ? 64 : 128;
}

}  // namespace

Limits read_limits(const driver::Cuda& cuda, int ordinal) {
  driver::CuDevice device = 0;
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

}  // namespace gpuscope::nvml
