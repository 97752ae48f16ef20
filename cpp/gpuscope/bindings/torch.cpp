// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/driver/libraries.h"
#include "gpuscope/torch/operators.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

// Opened when first asked for, which is after torch was imported.
const driver::Torch& libtorch() {
  static const driver::Torch torch = driver::Torch::open();
  return torch;
}

uint32_t flags(bool ranges, bool operands, bool memory) {
  using torch::OperatorRanges;
  return (ranges ? OperatorRanges::kRanges : 0U) | (operands ? OperatorRanges::kOperands : 0U) |
         (memory ? OperatorRanges::kMemory : 0U);
}

py::typing::Tuple<int, int, int> take_counts() {
  const torch::OperatorRanges::Counts counts = torch::OperatorRanges::process().take_counts();
  return py::make_tuple(counts.pushes, counts.pops, counts.reports);
}

/// What Python lists of the operators that it called: tensors as (address, sizes, type), calls as (name, tensors,
/// numbered by autograd, result), and what keeps the tensors.
torch::OperatorCallbacks::Work read_work(const py::handle& listed) {
  torch::OperatorCallbacks::Work work;
  const auto parts = listed.cast<py::tuple>();
  for (const py::handle tensor : parts[0]) {
    const auto fields = tensor.cast<py::tuple>();
    work.tensors.push_back({fields[0].cast<uint64_t>(), fields[1].cast<std::vector<int64_t>>(), fields[2].cast<int>()});
  }
  for (const py::handle call : parts[1]) {
    const auto fields = call.cast<py::tuple>();
    work.calls.push_back({fields[0].cast<std::string>(), fields[1].cast<std::vector<std::size_t>>(),
                          fields[2].cast<bool>(), fields[3].cast<std::size_t>()});
  }
  return work;
}

void bind_callbacks(py::module_& module) {
  using torch::Layout, torch::OperatorCallbacks;
  py::class_<OperatorCallbacks>(module, "TorchCallbacks", "torch's operators, of every thread, by its own callbacks.")
      .def_static(
          "study",
          [](const std::string& user_name, const py::function& work) {
            py::object listed;  // holds the tensors until all is learned
            return OperatorCallbacks::process().study(libtorch(), user_name, [&] {
              listed = work();
              return read_work(listed);
            });
          },
          py::arg("user_name"), py::arg("work"),
          "Learns where things lie in torch's objects; returns why that failed, empty when it did not.")
      .def_static(
          "start",
          [](bool shapes, bool results) {
            OperatorCallbacks::process().start(libtorch(), {shapes, results});
          },
          py::kw_only(), py::arg("shapes") = false, py::arg("results") = false,
          "Has every operator logged; only after a study that succeeded.")
      .def_static(
          "stop", [] { OperatorCallbacks::process().stop(libtorch()); }, "Ends that.")
      .def_static(
          "known",
          [] {
            const Layout& layout = OperatorCallbacks::process().layout();
            const bool sizes = layout.sizes != Layout::kUnknown;
            py::typing::Dict<py::str, bool> known;
            known["shapes"] = sizes && layout.inputs != Layout::kUnknown;
            known["types"] = layout.dtype != Layout::kUnknown;
            known["results"] = sizes && layout.outputs != Layout::kUnknown;
            known["scope"] = layout.scope != Layout::kUnknown;
            return known;
          },
          "What the study found.");
}

}  // namespace

void bind_torch(py::module_& module) {
  using torch::OperatorRanges;
  bind_callbacks(module);
  py::class_<OperatorRanges>(module, "TorchRanges", "torch's operator ranges, and what its allocators report.")
      .def_static(
          "install", [] { return OperatorRanges::process().install(libtorch()); },
          "Registers with the libtorch of this process, once; False where it offers no place for that.")
      .def_static(
          "want",
          [](bool ranges, bool operands, bool memory) {
            OperatorRanges::process().want(flags(ranges, operands, memory));
          },
          py::kw_only(), py::arg("ranges") = false, py::arg("operands") = false, py::arg("memory") = false,
          "What a session takes from now on; the rest goes to who was registered before.")
      .def_static(
          "probe", [](bool on) { OperatorRanges::process().probe(on); }, py::arg("on"),
          "Whether what comes is counted, for take_counts.")
      .def_static(
          "use", [](bool used) { OperatorRanges::process().use(used); }, py::arg("used"),
          "Whether torch's profiler is on for us on some thread.")
      .def_static(
          "watch_memory",
          [](bool keep_ranges) { return OperatorRanges::process().watch_memory(libtorch(), keep_ranges); },
          py::kw_only(), py::arg("keep_ranges"),
          "Takes the reports of allocations, on the thread that has just switched torch's ranges on.")
      .def_static(
          "take_counts", &take_counts,
          "What a probe saw since the last call: operators begun, ranges ended, allocations of 12,345,664 bytes.");
}

}  // namespace gpuscope::bindings
