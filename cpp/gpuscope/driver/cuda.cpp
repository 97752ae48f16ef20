// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/cuda.h"

namespace gpuscope::driver {

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
