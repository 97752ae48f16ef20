// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/black_box.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/file.h"
#include "gpuscope/bindings/bind.h"

namespace py = pybind11;

namespace gpuscope::bindings {

void bind_black_box(py::module_& module) {
  using base::BlackBox;
  py::class_<BlackBox>(module, "BlackBox",
                       "A file of 1 MiB with a process's last steps, collectives and open regions. It survives any "
                       "death of the process. One open file at a time; a forked child leaves it to its parent.")
      .def(py::init([](const std::string& path, std::optional<int32_t> rank) {
             if (rank.value_or(0) < 0) {
               throw base::InvalidArgument("rank is " + std::to_string(*rank) +
                                           "; accepted are None and numbers from 0");
             }
             if (path.find('\0') != std::string::npos) {
               throw base::InvalidArgument("path has a NUL character; accepted are paths without one");
             }
             return std::make_unique<BlackBox>(path, rank.value_or(-1));
           }),
           py::arg("path"), py::arg("rank") = py::none(),
           "Raises NotAvailable if the file exists or cannot be made, or if this process has an open one.")
      .def(
          "step_begin", [](BlackBox& box, uint64_t number) { box.step(number, true); }, py::arg("number"),
          "Notes the beginning of a step. Every method has no effect after close(), and in a forked child.")
      .def(
          "step_end", [](BlackBox& box, uint64_t number) { box.step(number, false); }, py::arg("number"),
          "Notes the end of a step.")
      .def(
          "collective",
          [](BlackBox& box, std::string_view communicator, uint64_t number, std::string_view kind, uint64_t bytes,
             uint64_t ranks, bool ended) { box.collective(communicator, number, kind, bytes, ranks, !ended); },
          py::arg("communicator"), py::arg("number"), py::arg("kind"), py::arg("bytes") = 0, py::arg("ranks") = 0,
          py::arg("ended") = false,
          "Notes that this rank enters a collective, or leaves it if `ended`. `number`: of the communicator's "
          "collectives, the same on all ranks. `ranks`: size of the communicator, 0 if unknown.")
      .def(
          "trigger", [](BlackBox& box, std::string_view name) { box.trigger(name); }, py::arg("name"),
          "Notes that a trigger fired.")
      .def("beat", &BlackBox::beat,
           "To be called each second by a thread of Python. A late beat shows that another thread keeps the GIL.")
      .def("close", &BlackBox::close, "Notes that the process ended in order, and leaves the file.")
      .def_property_readonly("is_open", &BlackBox::is_open, "False after close(), and in a forked child.");
  module.def(
      "crc32c",
      [](const py::buffer& data) {
        const py::buffer_info info = data.request();
        return base::crc32c(info.ptr, static_cast<std::size_t>(std::max<py::ssize_t>(0, info.size * info.itemsize)));
      },
      py::arg("data"), "The CRC-32C of bytes.");
}

}  // namespace gpuscope::bindings
