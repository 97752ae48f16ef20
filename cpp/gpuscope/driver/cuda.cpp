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
#define GPUSCOPE_RESOLVE(name, member, ...) \
  table.member = reinterpret_cast<decltype(table.member)>(table.library.symbol(name));
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

}  // namespace gpuscope::driver
