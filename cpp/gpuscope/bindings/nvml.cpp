// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <unistd.h>

#include <string>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/nvml/device.h"
#include "gpuscope/nvml/limits.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

// Never destroyed: exit may come while others read.
nvml::Devices& nvml_devices() {
  static auto* const devices = new nvml::Devices(libnvidia_ml(), vendor().cuda);
  return *devices;
}

py::dict device_limits(int ordinal) {
  driver::find_device(vendor().cuda, ordinal);
  const nvml::Limits limits = nvml::read_limits(vendor().cuda, ordinal);
  py::dict facts;
  facts["memory_bandwidth"] = limits.memory_bandwidth;
  facts["fp32_flops"] = limits.fp32_flops;
  facts["l2_bytes"] = limits.l2_bytes;
  facts["multiprocessors"] = limits.multiprocessors;
  facts["sm_hz_max"] = limits.sm_hz_max;
  facts["capability"] = std::to_string(limits.capability_major) + "." + std::to_string(limits.capability_minor);
  return facts;
}

py::dict clock_state(int ordinal) {
  const nvml::ClockState state = nvml_devices().of(ordinal).clock_state();
  py::dict facts;
  facts["sm_hz"] = state.sm_hz;
  facts["memory_hz"] = state.memory_hz;
  facts["power_w"] = state.power_w;
  facts["power_limit_w"] = state.power_limit_w;
  facts["temperature_c"] = state.temperature_c;
  facts["reasons"] = state.reasons;
  facts["why"] = state.why;
  return facts;
}

py::dict process_memory(int ordinal) {
  const nvml::MemoryInfo info = nvml_devices().of(ordinal).memory_info(static_cast<unsigned>(getpid()));
  py::dict facts;
  facts["process"] = info.process;
  facts["used"] = info.used;
  facts["free"] = info.free;
  facts["total"] = info.total;
  facts["name"] = info.name;
  facts["context"] = info.context;
  facts["why"] = info.why;
  return facts;
}

py::list memory_pools(int ordinal) {
  py::list pools;
  for (const nvml::MemoryPool& pool : nvml::read_memory_pools(vendor().cuda, ordinal)) {
    py::dict facts;
    facts["pool"] = pool.handle;
    facts["reserved"] = pool.reserved;
    facts["used"] = pool.used;
    facts["peak_reserved"] = pool.peak_reserved;
    facts["peak_used"] = pool.peak_used;
    pools.append(facts);
  }
  return pools;
}

}  // namespace

void bind_nvml(py::module_& module) {
  module.def(
      "device_limits", &device_limits, py::arg("device") = 0,
      "What a GPU could do at best by its own description, None where it does not say: memory_bandwidth in bytes "
      "a second, fp32_flops a second, l2_bytes, multiprocessors, sm_hz_max, capability. Raises NotAvailable "
      "where there is no such GPU.");
  module.def("clock_state", &clock_state, py::arg("device") = 0,
             "A GPU's sm_hz, memory_hz, power_w, power_limit_w, temperature_c and what holds its clocks back (reasons: "
             "bits of nvmlClocksEventReasons), as NVML tells them now. What is None is explained in why.");
  module.def("process_memory", &process_memory, py::arg("device") = 0,
             "A GPU's memory in bytes, as NVML tells it now: process (this process, its context and all), used (by all "
             "processes), free (less than total - used: the driver keeps some), total; name; context: whether this "
             "process has a primary context there. What is None is "
             "explained in why. Makes no context.");
  module.def("memory_pools", &memory_pools, py::arg("device") = 0,
             "The driver's default and current pool of a device (cuMemAllocAsync), in bytes: pool (its handle), "
             "reserved, used, peak_reserved, peak_used. Empty without a context; makes none.");
  module.def(
      "devices_in_use", [] { return nvml::devices_in_use(vendor().cuda); },
      "Ordinals of the GPUs on which this process has a primary context. Makes none; raises NotAvailable without a "
      "GPU.");
}

}  // namespace gpuscope::bindings
