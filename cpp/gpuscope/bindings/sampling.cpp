// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/vendor.h"
#include "gpuscope/device/graph.h"
#include "gpuscope/device/sampler.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using Order = py::array_t<uint32_t, py::array::c_style | py::array::forcecast>;

/// Python functions that take nothing. Holds the GIL, except while it waits.
class Functions : public device::Program {
 public:
  explicit Functions(const py::sequence& functions) {
    for (const py::handle function : functions) {
      add(function, "functions holds ");
    }
  }
  explicit Functions(const py::object& function) { add(function, "function is "); }

  std::size_t size() const { return functions_.size(); }

  void call(uint32_t function) override {
    // What it returns is dropped within the call's time, as a statement in Python would.
    py::reinterpret_steal<py::object>(returned(PyObject_CallNoArgs(functions_[function].ptr())));
  }
  void check() override {
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }
  void wait(const std::function<void()>& blocking) override {
    const py::gil_scoped_release release;
    blocking();
  }

 private:
  void add(py::handle function, std::string complaint) {
    if (PyCallable_Check(function.ptr()) == 0) {
      throw base::InvalidArgument(
          complaint.append(py::repr(function)).append("; accepted are callables without arguments"));
    }
    functions_.push_back(py::reinterpret_borrow<py::object>(function));
  }
  static PyObject* returned(PyObject* value) {
    if (value == nullptr) {
      throw py::error_already_set();
    }
    return value;
  }

  std::vector<py::object> functions_;
};

/// A copy: the functions may change the array.
std::vector<uint32_t> checked(const Order& order, std::size_t functions) {
  std::vector<uint32_t> numbers(order.data(), order.data() + order.size());
  if (numbers.empty()) {
    throw base::InvalidArgument("order is empty; accepted are the numbers of one or more calls");
  }
  if (const uint32_t most = std::ranges::max(numbers); most >= functions) {
    throw base::InvalidArgument(std::string("order holds ") + std::to_string(most) +
                                "; accepted are numbers below that of functions, " + std::to_string(functions));
  }
  return numbers;
}

template <class T>
py::array_t<T> array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::unique_ptr<device::Sampler> make_sampler(int device, uint64_t stream, int64_t flush_bytes) {
  if (flush_bytes < -1) {
    throw base::InvalidArgument(std::string("flush_bytes is ") + std::to_string(flush_bytes) +
                                "; accepted are 0 and more, and -1 for twice the L2 cache");
  }
  return std::make_unique<device::Sampler>(
      vendor().cuda, device, stream,
      flush_bytes == -1 ? device::L2Flush::kTwiceTheL2 : static_cast<uint64_t>(flush_bytes));
}

py::dict sample(device::Sampler& sampler, const py::sequence& functions, const Order& order, bool gate, bool flush,
                bool events, int64_t timeout_ns) {
  if (timeout_ns <= 0) {
    throw base::InvalidArgument(std::string("timeout_ns is ") + std::to_string(timeout_ns) +
                                "; accepted are positive numbers");
  }
  Functions program(functions);
  const device::Chunk chunk =
      sampler.sample(program, checked(order, program.size()), {gate, flush, events, static_cast<uint64_t>(timeout_ns)});
  py::dict columns;
  columns["called_ns"] = array(chunk.called_ns);
  columns["returned_ns"] = array(chunk.returned_ns);
  columns["stream_s"] = array(chunk.stream_s);
  columns["held"] = chunk.held;
  columns["clock_hz"] = chunk.clock_hz;
  return columns;
}

py::dict sample_wall(device::Sampler& sampler, const py::sequence& functions, const Order& order, bool flush) {
  Functions program(functions);
  const device::WallChunk chunk = sampler.sample_wall(program, checked(order, program.size()), flush);
  py::dict columns;
  columns["called_ns"] = array(chunk.called_ns);
  columns["returned_ns"] = array(chunk.returned_ns);
  columns["done_ns"] = array(chunk.done_ns);
  columns["clock_hz"] = chunk.clock_hz;
  return columns;
}

py::dict time_calls(const py::sequence& functions, const Order& order) {
  Functions program(functions);
  const device::CallTimes times = device::time_calls(program, checked(order, program.size()));
  py::dict columns;
  columns["called_ns"] = array(times.called_ns);
  columns["returned_ns"] = array(times.returned_ns);
  return columns;
}

std::unique_ptr<device::Graph> capture(const py::object& function, int64_t calls, int device, uint64_t stream) {
  if (calls <= 0) {
    throw base::InvalidArgument(std::string("calls is ") + std::to_string(calls) + "; accepted are positive numbers");
  }
  Functions program(function);
  return std::make_unique<device::Graph>(vendor().cuda, device, stream, program, static_cast<uint64_t>(calls));
}

}  // namespace

void bind_sampling(py::module_& module) {
  using device::Graph, device::Sampler;
  using release = py::call_guard<py::gil_scoped_release>;

  py::class_<Sampler>(module, "Sampler", "Calls functions and measures them on one stream. One thread at a time.")
      .def(py::init(&make_sampler), py::arg("device") = 0, py::arg("stream") = 0, py::arg("flush_bytes") = -1,
           "Flushes write flush_bytes, twice the L2 cache for -1. Raises NotAvailable where there is no such GPU.")
      .def_property_readonly("l2_bytes", &Sampler::l2_bytes, "The size of the GPU's L2 cache.")
      .def(
          "sample", &sample, py::arg("functions"), py::arg("order"), py::kw_only(), py::arg("gate") = true,
          py::arg("flush") = true, py::arg("events") = true, py::arg("timeout_ns") = 100'000'000,
          "Queues a call of functions[order[i]] for each i behind a closed gate, opens it and waits for all. The gate "
          "lets go by itself after timeout_ns. Gives a row a call: called_ns and returned_ns since the epoch, stream_s "
          "between two events around the call (nan without); and held, whether the gate stayed closed until all was "
          "queued, and clock_hz, the SMs' frequency (nan if unknown). What a function raises comes through.")
      .def(
          "sample_wall", &sample_wall, py::arg("functions"), py::arg("order"), py::kw_only(), py::arg("flush") = true,
          "Makes each call alone on an idle GPU and waits for it: called_ns, returned_ns and done_ns of each call, and "
          "clock_hz.")
      .def("synchronize", &Sampler::synchronize, release(), "Waits for the device.");
  module.def("time_calls", &time_calls, py::arg("functions"), py::arg("order"),
             "Calls functions[order[i]] for each i, on the CPU alone: called_ns and returned_ns of each call.");

  py::class_<Graph>(module, "Graph", "Work captured from a stream, to be launched again and again on it.")
      .def_static(
          "capture", &capture, py::arg("function"), py::arg("calls"), py::kw_only(), py::arg("device") = 0,
          py::arg("stream"), py::keep_alive<0, 1>(),
          "Captures so many calls of a function, which stays alive as long as the graph. Raises InvalidArgument "
          "for the legacy default stream, CudaError when something cannot be captured; what the function raises "
          "comes through.")
      .def("launch", &Graph::launch, release(), "Launches the work once, without waiting for it.")
      .def_property_readonly("nodes", &Graph::nodes, "How many nodes the graph has.");
}

}  // namespace gpuscope::bindings
