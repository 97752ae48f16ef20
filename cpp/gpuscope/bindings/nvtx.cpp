// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/nvtx/injection.h"

namespace py = pybind11;

// What NVTX looks for in the library that NVTX_INJECTION64_PATH names (nvtxInit.h, nvtxExtInit.h): 0 refuses. In a
// process without Python the module cannot be loaded, and its NVTX stays off.
extern "C" {
[[gnu::visibility("default")]] int InitializeInjectionNvtx2(gpuscope::nvtx::GetExportTable get_export_table) {
  return gpuscope::nvtx::attach(get_export_table) ? 1 : 0;
}
[[gnu::visibility("default")]] int InitializeInjectionNvtxExtension(const void* module) {
  return gpuscope::nvtx::attach_extension(module) ? 1 : 0;
}
}

namespace gpuscope::bindings {

std::string own_file() {
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<const void*>(&InitializeInjectionNvtx2), &info) != 0;
  const std::unique_ptr<char, decltype(&std::free)> path(
      known && info.dli_fname != nullptr ? realpath(info.dli_fname, nullptr) : nullptr, &std::free);
  return path != nullptr ? path.get() : "";
}

void bind_nvtx(py::module_& module) {
  module.def("own_file", &own_file, "The extension module's file, empty when it cannot be told.");
  module.def("nvtx_libraries", &nvtx::attached_libraries,
             "The files of the libraries that send their NVTX ranges here, each from its first NVTX call on.");
}

}  // namespace gpuscope::bindings
