// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/vendor.h"
#include "gpuscope/device/kernels.h"

namespace py = pybind11;

namespace gpuscope::bindings {

void bind_device(py::module_& module) {
  using device::Kernels;
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<Kernels>(module, "Kernels", "Built-in kernels, launched through the driver on the primary context.")
      .def(py::init([](int device) { return std::make_unique<Kernels>(vendor().cuda, device); }), py::arg("device") = 0,
           "Raises NotAvailable where there is no such GPU.")
      .def("spin", &Kernels::spin, release(), py::arg("nanoseconds"), py::arg("stream") = 0, py::arg("count") = 1,
           "Launches `count` kernels that each keep one thread busy for so long.")
      .def("saxpy", &Kernels::saxpy, release(), py::arg("elements"), py::arg("stream") = 0, "y = 2 x + y.")
      .def("reduce", &Kernels::reduce, release(), py::arg("elements"), py::arg("stream") = 0, "A sum.")
      .def("copy_in", &Kernels::copy_in, release(), py::arg("bytes"), py::arg("stream") = 0, "Host to device.")
      .def("copy_out", &Kernels::copy_out, release(), py::arg("bytes"), py::arg("stream") = 0, "Device to host.")
      .def("fill", &Kernels::fill, release(), py::arg("bytes"), py::arg("stream") = 0, "Sets bytes to zero.")
      .def("synchronize", &Kernels::synchronize, release(), "Waits for the device.");
}

}  // namespace gpuscope::bindings
