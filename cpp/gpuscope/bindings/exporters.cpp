// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <string_view>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/exporters/chrome.h"
#include "gpuscope/exporters/gscope.h"
#include "gpuscope/exporters/perfetto.h"
#include "gpuscope/readers/gscope.h"
#include "gpuscope/store/store.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using Exporter = void (*)(const store::Store&, exporters::Write);

/// Formats without the GIL and takes it for each chunk that goes to `write`.
template <Exporter exporter>
void write_chunks(const store::Store& store, const py::function& write) {
  const py::gil_scoped_release release;
  exporter(store, [&write](std::string_view chunk) {
    const py::gil_scoped_acquire acquire;
    write(py::bytes(chunk.data(), chunk.size()));
  });
}

}  // namespace

void bind_exporters(py::module_& module) {
  using release = py::call_guard<py::gil_scoped_release>;
  module.def("write_gscope", &exporters::write_gscope, py::arg("store"), py::arg("path"), release(),
             "Save a store as a .gscope file, replacing the file in one step.");
  module.def(
      "read_gscope",
      [](const std::string& path) -> std::shared_ptr<store::Store> { return readers::read_gscope(path); },
      py::arg("path"), release(), "Open a .gscope file, up to its last whole block.");
  module.def("write_chrome", &write_chunks<&exporters::write_chrome>, py::arg("store"), py::arg("write"),
             "Hand a store's events to `write` as JSON, in chunks of about 1 MiB.");
  module.def("write_perfetto", &write_chunks<&exporters::write_perfetto>, py::arg("store"), py::arg("write"),
             "Hand a store's events to `write` as Perfetto packets, in chunks of about 1 MiB that split no packet.");
}

}  // namespace gpuscope::bindings
