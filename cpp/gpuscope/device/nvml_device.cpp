// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/nvml_device.h"

#include <array>

namespace gpuscope::device {

std::string nvml_error_text(const driver::Nvml& nvml, int code) {
  const char* text = nvml.error_string != nullptr ? nvml.error_string(code) : nullptr;
  return text != nullptr ? std::string(text) : std::string("NVML error ") + std::to_string(code);
}

FoundDevice find_nvml_device(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal) {
  FoundDevice found;
  if (nvml.init == nullptr || nvml.device_by_uuid == nullptr) {
    found.why = std::string("libnvidia-ml was not found (") + nvml.library.why() + ")";
    return found;
  }
  if (!cuda.library || cuda.init == nullptr) {
    found.why = std::string("no NVIDIA driver was found (") + cuda.library.why() + ")";
    return found;
  }
  driver::CuDevice device = 0;
  driver::CuUuid uuid{};
  for (const int code : {cuda.init(0), cuda.device_get(&device, ordinal), cuda.device_get_uuid(&uuid, device)}) {
    if (code != 0) {
      found.why =
          std::string("CUDA does not name device ") + std::to_string(ordinal) + " (" + cuda.error_name(code) + ")";
      return found;
    }
  }
  // Never shut down: other users of NVML in the process count on one another's initialisation.
  if (const int code = nvml.init(); code != 0) {
    found.why = std::string("nvmlInit_v2 failed: ") + nvml_error_text(nvml, code);
    return found;
  }
  const int code = nvml.device_by_uuid(driver::uuid_text(uuid).c_str(), &found.handle);
  if (code == 0) {
    found.whole = true;
    return found;
  }
  std::array<char, 32> address{};
  if (cuda.device_get_pci_bus_id != nullptr && nvml.device_by_pci_bus_id != nullptr &&
      cuda.device_get_pci_bus_id(address.data(), static_cast<int>(address.size()), device) == 0 &&
      nvml.device_by_pci_bus_id(address.data(), &found.handle) == 0) {
    return found;
  }
  found.handle = nullptr;
  found.why = std::string("NVML does not know device ") + std::to_string(ordinal) + ": " + nvml_error_text(nvml, code);
  return found;
}

}  // namespace gpuscope::device
