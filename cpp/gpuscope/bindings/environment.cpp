// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/read_file.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/vendor.h"
#include "gpuscope/driver/nvml.h"
#include "gpuscope/nvtx/injection.h"
#include "gpuscope/session/info.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

py::object text_or_none(const std::string& text) { return text.empty() ? py::object(py::none()) : py::str(text); }

std::string driver_version(const driver::Nvml& nvml, std::string& error) {
  if (nvml.init == nullptr || nvml.system_get_driver_version == nullptr) {
    error = "libnvidia-ml was not found (" + nvml.library.why() + ")";
    return "";
  }
  if (const int code = nvml.init(); code != 0) {
    error = nvml.error_string != nullptr ? nvml.error_string(code) : "nvmlInit_v2 failed";
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
  const driver::Nvml nvml = driver::Nvml::open();
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
}

}  // namespace gpuscope::bindings
