// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/exporters/gscope_reader.h"
#include "gpuscope/exporters/gscope_writer.h"
#include "gpuscope/store/store.h"

namespace py = pybind11;

namespace gpuscope::bindings {

void bind_exporters(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;
  module.def("write_gscope", &exporters::write_gscope, py::arg("store"), py::arg("path"), release(),
             "Save a store as a .gscope file, replacing the file in one step.");
  module.def(
      "read_gscope",
      [](const std::string& path) -> std::shared_ptr<store::Store> { return exporters::read_gscope(path); },
      py::arg("path"), release(), "Open a .gscope file, up to its last whole block.");
}

}  // namespace gpuscope::bindings
