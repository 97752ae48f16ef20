// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/torch.h"

#include <pybind11/typing.h>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/torch/operator_ranges.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

// Opened when first asked for, which is after torch was imported.
const driver::Torch& libtorch() {
  static const driver::Torch torch = driver::Torch::open();
  return torch;
}

uint32_t flags(bool ranges, bool operands, bool memory, bool probe) {
  using torch::OperatorRanges;
  return (ranges ? OperatorRanges::kRanges : 0U) | (operands ? OperatorRanges::kOperands : 0U) |
         (memory ? OperatorRanges::kMemory : 0U) | (probe ? OperatorRanges::kProbe : 0U);
}

py::typing::Tuple<int, int, int> take_counts() {
  const torch::OperatorRanges::Counts counts = torch::OperatorRanges::process().take_counts();
  return py::make_tuple(counts.pushes, counts.pops, counts.reports);
}

}  // namespace

void bind_torch(py::module_& module) {
  using torch::OperatorRanges;
  py::class_<OperatorRanges>(module, "TorchRanges", "torch's operator ranges, and what its allocators report.")
      .def_static(
          "install", [] { return OperatorRanges::process().install(libtorch()); },
          "Registers with the libtorch of this process, once; False where it offers no place for that.")
      .def_static(
          "want",
          [](bool ranges, bool operands, bool memory, bool probe) {
            OperatorRanges::process().want(flags(ranges, operands, memory, probe));
          },
          py::kw_only(), py::arg("ranges") = false, py::arg("operands") = false, py::arg("memory") = false,
          py::arg("probe") = false, "What is taken from now on; the rest goes to who was registered before.")
      .def_static(
          "watch_memory", [] { return OperatorRanges::process().watch_memory(libtorch()); },
          "Takes the reports of allocations, on the thread that has just switched torch's ranges on.")
      .def_static(
          "take_counts", &take_counts,
          "What a probe saw since the last call: operators begun, ranges ended, allocations of 12,345,664 bytes.");
}

}  // namespace gpuscope::bindings
