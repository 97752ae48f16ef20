// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/system.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/driver/nvml.h"
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
namespace {

py::object text_or_none(const std::string& text) { return text.empty() ? py::object(py::none()) : py::str(text); }

std::string driver_version(const driver::Nvml& nvml, std::string& error) {
  if (nvml.init == nullptr || nvml.system_get_driver_version == nullptr) {
    error = "libnvidia-ml was not found (" + nvml.library.why() + ")";
    return "";
  }
  if (const int code = nvml.init(); code != 0) {
    error = nvml.error_text(code);
    return "";
  }
  std::array<char, 96> version{};
  nvml.system_get_driver_version(version.data(), static_cast<unsigned>(version.size()));
  nvml.shutdown();
  return version.data();
}

// cuInit makes no context, but a process that has called it cannot fork children that use CUDA; so it is called only
// where a driver is there to be asked.
py::list devices(const driver::Cuda& cuda, std::string& error) {
  py::list found;
  if (!cuda.library) {
    error = cuda.library.why();
    return found;
  }
  if (const int code = cuda.init(0); code != 0) {
    error = "cuInit failed with " + cuda.error_name(code);
    return found;
  }
  store::Store store;
  session::write_devices(store, cuda);
  for (std::size_t row = 0; row < store.device.size(); ++row) {
    const store::Devices::Row device = store.device[row];
    py::dict facts;
    facts["ordinal"] = device.ordinal;
    facts["name"] = std::string(store.strings[device.name]);
    facts["uuid"] = std::string(store.strings[device.uuid]);
    facts["memory_bytes"] = device.memory_bytes;
    facts["multiprocessors"] = device.multiprocessors;
    facts["capability"] = std::to_string(device.capability_major) + "." + std::to_string(device.capability_minor);
    found.append(facts);
  }
  return found;
}

std::optional<bool> profiling_admin_only() {
  constexpr std::string_view kKey = "RmProfilingAdminOnly: ";
  const std::string params = base::read_file("/proc/driver/nvidia/params");
  const std::size_t at = params.find(kKey);
  return at == std::string::npos ? std::nullopt : std::optional(params.compare(at + kKey.size(), 1, "1") == 0);
}

/// The file of the extension module.
std::string own_file() {
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<const void*>(&InitializeInjectionNvtx2), &info) != 0;
  const std::unique_ptr<char, decltype(&std::free)> path(
      known && info.dli_fname != nullptr ? realpath(info.dli_fname, nullptr) : nullptr, &std::free);
  return path != nullptr ? path.get() : "";
}

std::vector<std::string> injections() {
  std::vector<std::string> found;
  const std::string own = own_file();  // NVTX's tool may be us
  for (const char* variable : {"CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
                               "NSYS_PROFILING_SESSION_ID", "COMPUTE_PROFILE"}) {
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0' && value != own) {
      found.push_back(std::string(variable) + "=" + value);
    }
  }
  for (const char* prefix : {"libToolsInjection", "libcuda-injection", "libInterceptorInjectionTarget",
                             "libTreeLauncherTargetInjection", "libsanitizer-collection"}) {
    for (const std::string& path : driver::mapped_files(prefix)) {
      found.push_back(path);
    }
  }
  return found;
}

py::dict environment() {
  const session::Vendor& libraries = vendor();
  const driver::Cupti& cupti = libraries.collector.cupti();
  const driver::Nvml& nvml = libnvidia_ml();
  std::string nvml_error;
  std::string cuda_error;
  py::dict facts;
  facts["driver_version"] = text_or_none(driver_version(nvml, nvml_error));
  facts["devices"] = devices(libraries.cuda, cuda_error);
  int version = 0;
  const bool versioned =
      libraries.cuda.driver_get_version != nullptr && libraries.cuda.driver_get_version(&version) == 0;
  facts["cuda_version"] = text_or_none(
      versioned ? std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) : std::string());
  facts["cuda_path"] = text_or_none(libraries.cuda.library.path());
  facts["cuda_error"] = cuda_error;
  facts["cupti_path"] = text_or_none(cupti.library.path());
  facts["cupti_version"] = cupti.version != 0 ? py::object(py::int_(cupti.version)) : py::object(py::none());
  facts["cupti_error"] = driver::cupti_shortcoming(cupti);
  facts["cupti_loaded"] = driver::mapped_files("libcupti.so");
  facts["nvml_path"] = text_or_none(nvml.library.path());
  facts["nvml_error"] = nvml_error;
  facts["profiling_admin_only"] = profiling_admin_only();
  facts["injection"] = injections();
  facts["nvtx_libraries"] = nvtx::attached_libraries();
  facts["forked"] = session::Session::forked();
  return facts;
}

}  // namespace

void bind_environment(py::module_& module) {
  module.def("environment", &environment, "What this machine and process have for profiling; makes no CUDA context.");
  module.def("own_file", &own_file, "The extension module's file, empty when it cannot be told.");
  module.def("nvtx_libraries", &nvtx::attached_libraries,
             "The files of the libraries that send their NVTX ranges here, each from its first NVTX call on.");
}

}  // namespace gpuscope::bindings
