// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/store.h"

#include <memory>
#include <string>

#include "gpuscope/bindings/bind.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

py::dict info(const store::Store& store) {
  py::dict facts;
  for (std::size_t row = 0; row < store.info.size(); ++row) {
    facts[py::str(std::string(store.strings[store.info.key[row]]))] =
        py::str(std::string(store.strings[store.info.value[row]]));
  }
  return facts;
}

}  // namespace

void bind_store(py::module_& module) {
  py::class_<store::Store, std::shared_ptr<store::Store>>(module, "Store", "One recording: its tables and strings.")
      .def("info", &info, "Facts about the run, by key.");
}

}  // namespace gpuscope::bindings
