// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::fakes {

/// An NVML that knows one GPU by name, and `gpus` by number. One thread; reset between tests.
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
  unsigned gpus = 1;
  int count_code = 0;
  int index_code = 0;              // of the second GPU
  std::map<unsigned, int> fields;  // codes of fields that fail
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
    add_states(table);
    return table;
  }

 private:
  static void add_states(driver::Nvml& table) {
    table.device_count = [](unsigned* count) {
      *count = instance().gpus;
      return instance().count_code;
    };
    table.device_by_index = [](unsigned index, driver::NvmlDevice* device) {
      *device = board();
      return index == 1 ? instance().index_code : 0;
    };
    table.name = [](driver::NvmlDevice, char* text, unsigned length) {
      std::string("NVIDIA H100").copy(text, length - 1);
      return 0;
    };
    table.mig_mode = [](driver::NvmlDevice, unsigned* current, unsigned*) {
      *current = 1;
      return 0;
    };
    table.utilization = [](driver::NvmlDevice, driver::NvmlUtilization* utilization) {
      *utilization = {99, 25};
      return 0;
    };
    table.encoder_utilization = [](driver::NvmlDevice, unsigned* percent, unsigned* us) {
      return *percent = 31, *us = 167'000, 0;
    };
    table.decoder_utilization = [](driver::NvmlDevice, unsigned* percent, unsigned* us) {
      return *percent = 32, *us = 167'000, 0;
    };
    table.jpeg_utilization = [](driver::NvmlDevice, unsigned* percent, unsigned* us) {
      return *percent = 33, *us = 167'000, 0;
    };
    table.bar1_memory = [](driver::NvmlDevice, driver::NvmlBar1Memory* bar1) {
      *bar1 = {.total = 128'000, .free = 126'000, .used = 2'000};
      return 0;
    };
    table.energy = [](driver::NvmlDevice, unsigned long long* millijoules) {
      *millijoules = 1'500;
      return 0;
    };
    table.margin_temperature = [](driver::NvmlDevice, driver::NvmlMarginTemperature* margin) {
      margin->celsius = 46;
      return margin->version == 0x1000008 ? 0 : kVersionMismatch;
    };
    table.field_values = [](driver::NvmlDevice, int, driver::NvmlFieldValue* value) {
      const auto failing = instance().fields.find(value->field);  // several threads ask
      value->code = failing != instance().fields.end() ? failing->second : 0;
      value->type = value->field == 82 ? 1 : 3;
      const uint64_t wide = uint64_t{value->field} * 1'000'000'000'000;
      const uint32_t narrow = value->field;
      std::memcpy(value->value.data(), value->type == 1 ? static_cast<const void*>(&narrow) : &wide,
                  value->type == 1 ? sizeof narrow : sizeof wide);
      return 0;
    };
    table.total_ecc_errors = [](driver::NvmlDevice, int kind, int counter, unsigned long long* count) {
      *count = counter == 1 ? 10U + static_cast<unsigned>(kind) : 0U;
      return 0;
    };
    table.remapped_rows = [](driver::NvmlDevice, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                             unsigned* failed) {
      *corrected = 2;
      *uncorrected = 1;
      *pending = 1;
      *failed = 0;
      return 0;
    };
  }

  static driver::NvmlDevice board() { return reinterpret_cast<driver::NvmlDevice>(uintptr_t{1}); }
};

}  // namespace gpuscope::fakes
