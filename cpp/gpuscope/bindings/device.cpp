// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/readers.h"
#include "gpuscope/bindings/vendor.h"
#include "gpuscope/device/clock_state.h"
#include "gpuscope/device/kernels.h"
#include "gpuscope/device/limits.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

py::dict device_limits(int ordinal) {
  device::find_device(vendor().cuda, ordinal);
  const device::Limits limits = device::read_limits(vendor().cuda, ordinal);
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
  const device::ClockState state = reader_of<device::ClockReader>(ordinal).read();
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

}  // namespace

void bind_device(py::module_& module) {
  using device::Kernels;
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<Kernels>(module, "Kernels", "Built-in kernels, launched through the driver on the primary context.")
      .def(py::init([](int device) { return std::make_unique<Kernels>(vendor().cuda, device); }), py::arg("device") = 0,
           "Raises NotAvailable where there is no such GPU.")
      .def("spin", &Kernels::spin, release(), py::arg("nanoseconds"), py::arg("stream") = 0, py::arg("count") = 1,
           "Launches `count` kernels that each keep one thread busy for so long.")
      .def(
          "spun",
          [](Kernels& kernels) {
            const Kernels::Spun spun = kernels.spun();
            return std::pair(spun.count, spun.total_ns);
          },
          release(),
          "How many kernels of spin have ended since the last call, and their time in ns by their own reading of the "
          "GPU's clock; waits for the device.")
      .def("saxpy", &Kernels::saxpy, release(), py::arg("elements"), py::arg("stream") = 0, "y = 2 x + y.")
      .def("reduce", &Kernels::reduce, release(), py::arg("elements"), py::arg("stream") = 0, "A sum.")
      .def("copy_in", &Kernels::copy_in, release(), py::arg("bytes"), py::arg("stream") = 0, "Host to device.")
      .def("copy_out", &Kernels::copy_out, release(), py::arg("bytes"), py::arg("stream") = 0, "Device to host.")
      .def("fill", &Kernels::fill, release(), py::arg("bytes"), py::arg("stream") = 0, "Sets bytes to zero.")
      .def("copy", &Kernels::copy, release(), py::arg("bytes"), py::arg("stream") = 0,
           "Copies bytes, a multiple of 16, within the device's memory.")
      .def("fma", &Kernels::fma, release(), py::arg("rounds"), py::arg("stream") = 0,
           "FP32 FMAs on every multiprocessor.")
      .def("fma_flops", &Kernels::fma_flops, py::arg("rounds"), "Operations of fma(rounds), an FMA counting as two.")
      .def("synchronize", &Kernels::synchronize, release(), "Waits for the device.");
  module.def(
      "device_limits", &device_limits, py::arg("device") = 0,
      "What a GPU could do at best by its own description, None where it does not say: memory_bandwidth in bytes "
      "a second, fp32_flops a second, l2_bytes, multiprocessors, sm_hz_max, capability. Raises NotAvailable "
      "where there is no such GPU.");
  module.def("clock_state", &clock_state, py::arg("device") = 0,
             "A GPU's sm_hz, memory_hz, power_w, power_limit_w, temperature_c and what holds its clocks back (reasons: "
             "bits of "
             "nvmlClocksEventReasons), as NVML tells them now. What is None is explained in why.");
}

}  // namespace gpuscope::bindings
