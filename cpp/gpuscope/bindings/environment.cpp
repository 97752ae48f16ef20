// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/file.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/driver/devices.h"
#include "gpuscope/driver/libraries.h"
#include "gpuscope/nvtx/ranges.h"
#include "gpuscope/timing/context.h"

namespace py = pybind11;

// NVTX looks for these functions in the library that NVTX_INJECTION64_PATH names (nvtxInit.h, nvtxExtInit.h). 0
// refuses. A process without Python cannot load the module, and its NVTX stays off.
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

using py::literals::operator""_a;

std::string capability(unsigned major, unsigned minor) { return std::to_string(major) + "." + std::to_string(minor); }

py::dict device_limits(int ordinal) {
  driver::find_device(vendor().cuda, ordinal);
  const driver::Limits limits = driver::read_limits(vendor().cuda, ordinal);
  return py::dict("memory_bandwidth"_a = limits.memory_bandwidth, "fp32_flops"_a = limits.fp32_flops,
                  "l2_bytes"_a = limits.l2_bytes, "multiprocessors"_a = limits.multiprocessors,
                  "sm_hz_max"_a = limits.sm_hz_max,
                  "capability"_a = capability(limits.capability_major, limits.capability_minor));
}

py::object text_or_none(const std::string& text) { return text.empty() ? py::object(py::none()) : py::cast(text); }

py::list memory_pools(int ordinal) {
  const timing::RelaxedCapture relaxed(vendor().cuda);
  py::list pools;
  for (const driver::MemoryPool& pool : driver::read_memory_pools(vendor().cuda, ordinal)) {
    pools.append(py::dict("pool"_a = pool.handle, "reserved"_a = pool.reserved, "used"_a = pool.used,
                          "peak_reserved"_a = pool.peak_reserved, "peak_used"_a = pool.peak_used));
  }
  return pools;
}

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

// cuInit makes no context, but a process that called it cannot fork children that use CUDA. So it is called only if
// there is a driver.
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
    found.append(py::dict("ordinal"_a = device.ordinal, "name"_a = std::string(store.strings[device.name]),
                          "uuid"_a = std::string(store.strings[device.uuid]), "memory_bytes"_a = device.memory_bytes,
                          "multiprocessors"_a = device.multiprocessors,
                          "capability"_a = capability(device.capability_major, device.capability_minor)));
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
  const std::string own = own_file();  // NVTX_INJECTION64_PATH may name this module
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
  module.def(
      "offer_nvtx", [] { nvtx::offer(own_file()); },
      "Makes this process the tool of every library that makes its first NVTX call from now on; forked children are "
      "not.");
  module.def("withdraw_nvtx", &nvtx::withdraw,
             "Ends what offer_nvtx began, for libraries that have made no call yet; False where it had not.");
  module.def(
      "environment_of_children",
      [] {
        py::typing::List<py::bytes> entries;
        for (const std::string& entry : nvtx::environment_of_children()) {
          entries.append(py::bytes(entry));
        }
        return entries;
      },
      "The environment as name=value, without what offer_nvtx has set.");
  module.def(
      "device_limits", &device_limits, py::arg("device") = 0,
      "What a GPU could do at best by its own description, None where it does not say: memory_bandwidth in bytes "
      "a second, fp32_flops a second, l2_bytes, multiprocessors, sm_hz_max, capability. Raises NotAvailable "
      "where there is no such GPU.");
  module.def("memory_pools", &memory_pools, py::arg("device") = 0,
             "The driver's default and current pool of a device (cuMemAllocAsync), in bytes: pool (its handle), "
             "reserved, used, peak_reserved, peak_used. Empty without a context; makes none.");
  module.def(
      "devices_in_use",
      [] {
        driver::find_device(vendor().cuda, 0);  // initialises the driver
        return driver::devices_in_use(vendor().cuda);
      },
      "Ordinals of the GPUs on which this process has a primary context. Makes none; raises NotAvailable without a "
      "GPU.");
}

}  // namespace gpuscope::bindings
