// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/memory_info.h"

#include <array>
#include <cstddef>

#include "gpuscope/device/primary_context.h"

namespace gpuscope::device {
namespace {

constexpr int kInsufficientSize = 7;  // nvml.h
constexpr const char* kPart = "NVML tells a GPU's memory as a whole, and this device is a part of one (MIG)";
constexpr const char* kNoFunction = "this driver's NVML cannot tell";

// cuda.h, CUmemPool_attribute
constexpr int kReserved = 5;
constexpr int kPeakReserved = 6;
constexpr int kUsed = 7;
constexpr int kPeakUsed = 8;

std::optional<driver::CuDevice> device_of(const driver::Cuda& cuda, int ordinal) {
  driver::CuDevice device = 0;
  const bool found =
      cuda.library && cuda.init != nullptr && cuda.init(0) == 0 && cuda.device_get(&device, ordinal) == 0;
  return found ? std::optional(device) : std::nullopt;
}

bool has_context(const driver::Cuda& cuda, driver::CuDevice device) {
  unsigned flags = 0;
  int active = 0;
  return cuda.primary_context_state != nullptr && cuda.primary_context_state(device, &flags, &active) == 0 &&
         active != 0;
}

}  // namespace

MemoryReader::MemoryReader(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal)
    : nvml_(nvml), cuda_(cuda), ordinal_(ordinal), found_(find_nvml_device(nvml_, cuda_, ordinal)) {}

MemoryInfo MemoryReader::read(unsigned pid) const {
  MemoryInfo info;
  const auto lacking = [&](const char* what, const std::string& reason) {
    info.why.append(info.why.empty() ? "" : "; ").append(what).append(": ").append(reason);
  };
  if (const std::optional device = device_of(cuda_, ordinal_); device.has_value()) {
    std::array<char, 128> name{};
    if (cuda_.device_get_name(name.data(), static_cast<int>(name.size()), *device) == 0) {
      info.name = name.data();
    }
    size_t total = 0;
    if (cuda_.device_total_mem(&total, *device) == 0) {
      info.total = total;
    }
    info.context = has_context(cuda_, *device);
  }
  if (found_.handle == nullptr || !found_.whole) {
    lacking("process, used, free", found_.handle == nullptr ? found_.why : std::string(kPart));
    return info;
  }
  driver::NvmlMemory memory;
  const int code = nvml_.memory_info != nullptr ? nvml_.memory_info(found_.handle, &memory) : 0;
  if (nvml_.memory_info != nullptr && code == 0) {
    info.used = memory.used;
    info.free = memory.free;
    info.total = memory.total;
  } else {
    lacking("used, free", nvml_.memory_info == nullptr ? std::string(kNoFunction) : nvml_error_text(nvml_, code));
  }
  std::string why;
  info.process = read_process(pid, info.context, why);
  if (!info.process.has_value()) {
    lacking("process", why);
  }
  return info;
}

std::optional<uint64_t> MemoryReader::read_process(unsigned pid, bool context, std::string& why) const {
  if (nvml_.compute_processes == nullptr) {
    why = kNoFunction;
    return std::nullopt;
  }
  std::vector<driver::NvmlProcess> processes(32);
  unsigned count = 0;
  int code = kInsufficientSize;
  // Others may start between two calls.
  for (int attempt = 0; attempt < 3 && code == kInsufficientSize; ++attempt) {
    processes.resize(count + processes.size());
    count = static_cast<unsigned>(processes.size());
    code = nvml_.compute_processes(found_.handle, &count, processes.data());
  }
  if (code != 0) {
    why = nvml_error_text(nvml_, code);
    return std::nullopt;
  }
  processes.resize(count);
  uint64_t bytes = 0;
  bool listed = false;
  for (const driver::NvmlProcess& process : processes) {
    if (process.pid != pid) {
      continue;
    }
    if (process.bytes == driver::NvmlProcess::kUnknown) {
      why = "NVML does not tell the memory of processes here";
      return std::nullopt;
    }
    listed = true;
    bytes += process.bytes;
  }
  if (!listed && context) {
    why = "NVML does not list this process, as in containers with pids of their own";
    return std::nullopt;
  }
  return bytes;
}

std::vector<MemoryPool> read_memory_pools(const driver::Cuda& cuda, int ordinal) {
  std::vector<MemoryPool> pools;
  const std::optional device = device_of(cuda, ordinal);
  if (!device.has_value() || !has_context(cuda, *device) || cuda.memory_pool_attribute == nullptr) {
    return pools;
  }
  for (const auto find : {cuda.default_memory_pool, cuda.current_memory_pool}) {
    driver::CuMemoryPool handle = nullptr;
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

std::vector<int> devices_in_use(const driver::Cuda& cuda) {
  find_device(cuda, 0);
  int count = 0;
  GPUSCOPE_CUDA(cuda, device_get_count, &count);
  std::vector<int> found;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    if (const std::optional device = device_of(cuda, ordinal); device.has_value() && has_context(cuda, *device)) {
      found.push_back(ordinal);
    }
  }
  return found;
}

}  // namespace gpuscope::device
