// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::fakes {

/// An NVML that knows one GPU. One thread; reset between tests.
struct Nvml {
  static Nvml& instance() {
    static Nvml state;
    return state;
  }
  static Nvml& reset() { return instance() = Nvml(); }

  static constexpr int kNotSupported = 3;
  static constexpr int kInsufficientSize = 7;
  static constexpr int kVersionMismatch = 25;

  std::string asked_uuid;
  std::string asked_address;
  int init_code = 0;
  int uuid_code = 0;
  int address_code = 0;
  int power_code = 0;
  int shutdowns = 0;
  int memory_code = 0;
  std::vector<driver::NvmlProcess> processes;

  driver::Nvml table() {
    driver::Nvml table;
    table.init = [] { return instance().init_code; };
    table.shutdown = [] { return instance().shutdowns++; };
    table.error_string = [](int code) { return code == kNotSupported ? "Not Supported" : "Unknown Error"; };
    table.device_by_uuid = [](const char* uuid, driver::NvmlDevice* device) {
      instance().asked_uuid = uuid;
      *device = board();
      return instance().uuid_code;
    };
    table.device_by_pci_bus_id = [](const char* address, driver::NvmlDevice* device) {
      instance().asked_address = address;
      *device = board();
      return instance().address_code;
    };
    table.clock_info = [](driver::NvmlDevice, int type, unsigned* mhz) {
      *mhz = type == 1 ? 1980 : type == 2 ? 3201 : 1;
      return 0;
    };
    table.power_limit = [](driver::NvmlDevice, unsigned* milliwatts) {
      *milliwatts = 700'000;
      return 0;
    };
    table.power_usage = [](driver::NvmlDevice, unsigned* milliwatts) {
      *milliwatts = 123'456;
      return instance().power_code;
    };
    table.temperature = [](driver::NvmlDevice, int, unsigned* celsius) {
      *celsius = 41;
      return 0;
    };
    table.clocks_event_reasons = [](driver::NvmlDevice, unsigned long long* reasons) {
      *reasons = 0x4;
      return 0;
    };
    table.clocks_throttle_reasons = [](driver::NvmlDevice, unsigned long long* reasons) {
      *reasons = 0x8;
      return 0;
    };
    table.memory_info = [](driver::NvmlDevice, driver::NvmlMemory* memory) {
      if (memory->version != driver::NvmlMemory::kVersion) {
        return kVersionMismatch;
      }
      memory->total = 80'000;
      memory->reserved = 500;
      memory->used = 30'000;
      memory->free = 49'500;
      return instance().memory_code;
    };
    table.compute_processes = [](driver::NvmlDevice, unsigned* count, driver::NvmlProcess* processes) {
      const std::vector<driver::NvmlProcess>& known = instance().processes;
      const bool fits = known.size() <= *count;
      *count = static_cast<unsigned>(known.size());
      if (fits) {
        std::copy(known.begin(), known.end(), processes);
      }
      return fits ? 0 : kInsufficientSize;
    };
    return table;
  }

 private:
  static driver::NvmlDevice board() { return reinterpret_cast<driver::NvmlDevice>(uintptr_t{1}); }
};

}  // namespace gpuscope::fakes
