// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/mig.h"

#include <array>
#include <set>
#include <utility>

#include "gpuscope/nvml/device.h"

namespace gpuscope::nvml {

std::optional<std::vector<MigInstance>> MigReader::read(int64_t now_ns, std::string& why) {
  if (nvml_.mig_count_max == nullptr || nvml_.mig_device == nullptr || nvml_.gpu_instance == nullptr ||
      nvml_.compute_instance == nullptr) {
    why = kNoFunction;
    return std::nullopt;
  }
  unsigned most = 0;
  if (const int code = nvml_.mig_count_max(device_, &most); code != 0) {
    why = nvml_.error_text(code);
    return std::nullopt;
  }
  if (is_unknown(&most)) {
    why = kNotKnown;
    return std::nullopt;
  }
  std::vector<MigInstance> found;
  std::map<unsigned, std::string> uuids;
  for (unsigned index = 0; index < most; ++index) {
    driver::NvmlDevice handle = nullptr;
    if (nvml_.mig_device(device_, index, &handle) != 0) {  // no instance with this number
      continue;
    }
    MigInstance instance = read_instance(handle);
    if (!instance.why.contains("all")) {
      uuids[instance.gpu_instance] += instance.uuid;
      found.push_back(std::move(instance));
    }
  }
  // Drops samples of destroyed instances: a new instance may have the same number.
  std::erase_if(counters_, [&](const auto& reader) {
    const auto now = uuids.find(reader.first);
    return now == uuids.end() || now->second != uuids_[reader.first];
  });
  uuids_ = std::move(uuids);
  std::set<unsigned> refused;
  for (MigInstance& instance : found) {
    const unsigned number = instance.gpu_instance;
    auto [reader, is_new] = counters_.try_emplace(number, nvml_, device_, number);
    instance.gpm = reader->second.read(now_ns, false);  // NVML reports no utilization of an instance
    if (reader->second.is_refused() && !is_new) {
      refused.insert(number);
    }
  }
  // The instance may have been destroyed and recreated within a second: a new reader has its counters.
  std::erase_if(counters_, [&](const auto& reader) { return refused.contains(reader.first); });
  return found;
}

MigInstance MigReader::read_instance(driver::NvmlDevice handle) {
  MigInstance instance;
  int code = nvml_.gpu_instance(handle, &instance.gpu_instance);
  code = code != 0 ? code : nvml_.compute_instance(handle, &instance.compute_instance);
  if (code != 0) {
    instance.why["all"] = nvml_.error_text(code);  // destroyed meanwhile
    return instance;
  }
  std::array<char, 96> text{};
  const auto length = static_cast<unsigned>(text.size());
  if (nvml_.uuid != nullptr && nvml_.uuid(handle, text.data(), length) == 0) {
    instance.uuid = text.data();
  }
  if (nvml_.name != nullptr && nvml_.name(handle, text.data(), length) == 0) {
    instance.name = text.data();
  }
  driver::NvmlMemory memory;
  code = nvml_.memory_info != nullptr ? nvml_.memory_info(handle, &memory) : 0;
  const bool is_told = nvml_.memory_info != nullptr && code == 0;
  if (is_told && !is_unknown(&memory)) {
    instance.memory_used_bytes = memory.used;
    instance.memory_total_bytes = memory.total;
  } else {
    instance.why["memory_used_bytes"] = instance.why["memory_total_bytes"] = code != 0 ? nvml_.error_text(code)
                                                                             : is_told ? kNotKnown
                                                                                       : kNoFunction;
  }
  std::string why;
  instance.processes = compute_processes(nvml_, handle, why);
  if (!instance.processes.has_value()) {
    instance.why["processes"] = why;
  }
  return instance;
}

}  // namespace gpuscope::nvml
