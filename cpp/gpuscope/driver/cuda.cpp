// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/cuda.h"

#include <array>
#include <cstdio>

namespace gpuscope::driver {

std::string uuid_text(const CuUuid& uuid) {
  std::string text = "GPU";
  for (int index = 0; index < 16; ++index) {
    std::array<char, 3> pair{};
    std::snprintf(pair.data(), pair.size(), "%02x", uuid.bytes[index]);
    text.append(index == 0 || index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "").append(pair.data());
  }
  return text;
}

Cuda Cuda::open() {
  Cuda table;
  table.library = Library::open({"libcuda.so.1"}, {"libcuda.so.1", "libcuda.so"});
#define GPUSCOPE_RESOLVE(name, member, ...) table.library.load(name, table.member);
  GPUSCOPE_CUDA_FUNCTIONS(GPUSCOPE_RESOLVE)
#undef GPUSCOPE_RESOLVE
  return table;
}

std::string Cuda::error_name(CuResult code) const {
  const char* name = nullptr;
  if (get_error_name != nullptr && get_error_name(code, &name) == 0 && name != nullptr) {
    return name;
  }
  return "CUresult";
}

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

}  // namespace gpuscope::driver
