// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/driver/devices.h"
#include "gpuscope/timing/context.h"
#include "gpuscope/timing/event.h"
#include "gpuscope/timing/kernels.h"
#include "gpuscope/timing/sampler.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using release = py::call_guard<py::gil_scoped_release>;
using py::literals::operator""_a;

// Never destroyed: Python objects may outlive static ones.
timing::EventPools& pools() { return base::of_process<timing::EventPools>(vendor().cuda); }

// Functions that may block release the GIL: waits for the GPU, and records into a stream with a full queue. Queries
// keep it, since taking the GIL back can take milliseconds.
void bind_event(py::module_& module) {
  using timing::Event;
  py::class_<Event>(module, "Event", "A CUDA event; a plain timing one comes from and goes back to its device's pool.")
      .def(py::init([](int device, bool timing, bool blocking, bool interprocess, bool external) {
             return std::make_unique<Event>(pools().of(device),
                                            timing::EventOptions{timing, blocking, interprocess, external});
           }),
           py::arg("device") = 0, py::arg("timing") = true, py::arg("blocking") = false,
           py::arg("interprocess") = false, py::arg("external") = false,
           "Raises NotAvailable where there is no such GPU.")
      .def_static(
          "from_ipc_handle",
          [](int device, const py::bytes& handle) { return std::make_unique<Event>(pools().of(device), handle); },
          py::arg("device"), py::arg("handle"), "The event that another process exported.")
      .def(
          "record", &Event::record, release(), py::arg("stream") = 0, py::arg("into_graphs") = true,
          "False where the stream is being captured into a CUDA graph and `into_graphs` is false: nothing is recorded.")
      .def(
          "wait",
          [](const Event& self, uint64_t stream, std::optional<int> device) {
            self.wait(stream, device.value_or(self.device()));
          },
          release(), py::arg("stream") = 0, py::arg("device") = py::none(),
          "Holds a stream's later work back; `device` says whose default stream is meant (the event's).")
      .def("query", &Event::query, "Whether the GPU has reached it; True before the first record.")
      .def("synchronize", &Event::synchronize, release(), "Waits until it is reached; seconds waited.")
      .def("elapsed_time", &Event::elapsed_time, py::arg("end"), "Milliseconds to the other event.")
      .def(
          "ipc_handle", [](const Event& self) { return py::bytes(self.ipc_handle()); }, "64 bytes.")
      .def_property_readonly("handle", &Event::handle, "The CUevent as a number.")
      .def_property_readonly("device", &Event::device)
      .def_property_readonly("recorded", &Event::recorded);
}

void bind_host_anchors(py::module_& module) {
  using timing::HostAnchors;
  using Anchor = std::tuple<std::unique_ptr<timing::Event>, int64_t, int64_t>;
  py::class_<HostAnchors>(module, "HostAnchors", "Places a device's events on the clock of time.perf_counter_ns().")
      .def(py::init([](int device) { return std::make_unique<HostAnchors>(pools().of(device)); }),
           py::arg("device") = 0)
      .def("was_reset", &HostAnchors::was_reset,
           "Whether the program has reset the device: others are to be made, and what these gave is of no use.")
      .def(
          "take",
          [](const HostAnchors& self, int64_t timeout_ns) -> std::optional<Anchor> {
            timing::HostAnchor anchor;
            {
              const py::gil_scoped_release released;
              anchor = self.take(timeout_ns);
            }
            return anchor.event == nullptr
                       ? std::nullopt
                       : std::optional(Anchor(std::move(anchor.event), anchor.host_ns, anchor.error_ns));
          },
          py::arg("timeout_ns"),
          "An event, its time in ns, and the ns by which that may be wrong; None when the GPU did not answer in time.");
}

void bind_kernels(py::module_& module) {
  using timing::Kernels;
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
}

using Order = py::array_t<uint32_t, py::array::c_style | py::array::forcecast>;

/// Python functions without arguments. Holds the GIL, except in waits.
class Functions : public timing::Program {
 public:
  explicit Functions(const py::sequence& functions) {
    for (const py::handle function : functions) {
      add(function, "functions holds ");
    }
  }
  explicit Functions(const py::object& function) { add(function, "function is "); }

  std::size_t size() const { return functions_.size(); }

  void call(uint32_t function, uint32_t times) override {
    if (times > 1 && loops(function)) {
      functions_[function].repeat(times);
      return;
    }
    PyObject* const callable = functions_[function].once.ptr();
    for (uint32_t call = 0; call < times; ++call) {
      PyObject* const value = PyObject_CallNoArgs(callable);
      if (value == nullptr) {
        throw py::error_already_set();
      }
      Py_DECREF(value);  // dropped within the call's time, as by a statement in Python
    }
  }
  bool loops(uint32_t function) const override { return static_cast<bool>(functions_[function].repeat); }
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
    functions_.push_back({py::reinterpret_borrow<py::object>(function), py::getattr(function, kRepeat, py::object())});
  }
  /// Attribute of a function made from source lines: its loop, which runs the lines without a call each time.
  static constexpr const char* kRepeat = "gpuscope_repeat";
  struct Function {
    py::object once, repeat;
  };
  std::vector<Function> functions_;
};

/// A copy, as the functions may change the array.
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

std::unique_ptr<timing::Sampler> make_sampler(int device, uint64_t stream, int64_t flush_bytes) {
  if (flush_bytes < -1) {
    throw base::InvalidArgument(std::string("flush_bytes is ") + std::to_string(flush_bytes) +
                                "; accepted are 0 and more, and -1 for twice the L2 cache");
  }
  return std::make_unique<timing::Sampler>(
      vendor().cuda, device, stream,
      flush_bytes == -1 ? timing::L2Flush::kTwiceTheL2 : static_cast<uint64_t>(flush_bytes));
}

py::dict sample(timing::Sampler& sampler, const py::sequence& functions, const Order& order, bool gate, bool flush,
                bool events, int64_t timeout_ns) {
  if (timeout_ns <= 0) {
    throw base::InvalidArgument(std::string("timeout_ns is ") + std::to_string(timeout_ns) +
                                "; accepted are positive numbers");
  }
  Functions program(functions);
  const timing::Chunk chunk =
      sampler.sample(program, checked(order, program.size()), {gate, flush, events, static_cast<uint64_t>(timeout_ns)});
  return py::dict("called_ns"_a = to_array(chunk.called_ns), "returned_ns"_a = to_array(chunk.returned_ns),
                  "stream_s"_a = to_array(chunk.stream_s), "held"_a = chunk.held, "clock_hz"_a = chunk.clock_hz);
}

py::dict sample_wall(timing::Sampler& sampler, const py::sequence& functions, const Order& order, bool flush) {
  Functions program(functions);
  const timing::WallChunk chunk = sampler.sample_wall(program, checked(order, program.size()), flush);
  return py::dict("called_ns"_a = to_array(chunk.called_ns), "returned_ns"_a = to_array(chunk.returned_ns),
                  "done_ns"_a = to_array(chunk.done_ns), "clock_hz"_a = chunk.clock_hz);
}

py::dict time_calls(const py::sequence& functions, const Order& order, int64_t repeat, int64_t longest_ns) {
  constexpr int64_t kMostCalls = std::numeric_limits<uint32_t>::max();
  if (repeat < 1 || repeat > kMostCalls) {
    throw base::InvalidArgument(std::string("repeat is ") + std::to_string(repeat) + "; accepted are 1 to " +
                                std::to_string(kMostCalls));
  }
  if (longest_ns <= 0) {
    throw base::InvalidArgument(std::string("longest_ns is ") + std::to_string(longest_ns) +
                                "; accepted are positive numbers");
  }
  Functions program(functions);
  const timing::RowTimes times =
      timing::time_calls(program, checked(order, program.size()), static_cast<uint32_t>(repeat), longest_ns);
  return py::dict("called_ns"_a = to_array(times.called_ns), "returned_ns"_a = to_array(times.returned_ns),
                  "calls"_a = to_array(times.calls));
}

std::unique_ptr<timing::Graph> capture(const py::object& function, int64_t calls, int device, uint64_t stream) {
  if (calls <= 0) {
    throw base::InvalidArgument(std::string("calls is ") + std::to_string(calls) + "; accepted are positive numbers");
  }
  Functions program(function);
  return std::make_unique<timing::Graph>(vendor().cuda, device, stream, program, static_cast<uint64_t>(calls));
}

void bind_sampler(py::module_& module) {
  using timing::Graph, timing::Sampler;

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
  module.def("time_calls", &time_calls, py::arg("functions"), py::arg("order"), py::kw_only(), py::arg("repeat") = 1,
             py::arg("longest_ns") = 10'000'000,
             "Calls functions[order[i]] `repeat` times in a row for each i, on the CPU alone. Gives a row an i: "
             "called_ns before its first call and returned_ns after its last, since the epoch, and calls, how many "
             "were made: fewer where a row took longer than longest_ns. What a function raises comes through.");

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

}  // namespace

void bind_timing(py::module_& module) {
  bind_event(module);
  bind_host_anchors(module);
  bind_kernels(module);
  bind_sampler(module);
  module.def(
      "find_device", [](int device) { return driver::find_device(vendor().cuda, device); }, py::arg("device") = 0,
      "The device itself; raises NotAvailable where there is no such GPU. Makes no context.");
  module.def(
      "keep_primary_contexts",
      [] {
        const driver::Cuda& cuda = vendor().cuda;
        const py::gil_scoped_release released;
        timing::keep_primary_contexts(cuda);
      },
      "Keeps every primary context that there is until the process is gone.");
  module.def(
      "synchronize",
      [](int device) {
        const driver::Cuda& cuda = vendor().cuda;
        const py::gil_scoped_release released;
        return timing::synchronize(cuda, device);
      },
      py::arg("device") = 0, "Waits for everything on a device's primary context; seconds waited.");
  module.def(
      "synchronize_stream",
      [](uint64_t stream, int device) {
        const driver::Cuda& cuda = vendor().cuda;
        const py::gil_scoped_release released;
        return timing::synchronize_stream(cuda, stream, device);
      },
      py::arg("stream"), py::arg("device") = 0, "Waits for one stream; seconds waited.");
  module.def(
      "is_capturing", [](uint64_t stream, int device) { return timing::is_capturing(vendor().cuda, stream, device); },
      py::arg("stream"), py::arg("device"),
      "Whether what is put on a stream goes into a CUDA graph; of a default stream also while another one captures "
      "that "
      "it waits for. Leaves every capture whole.");
  module.def(
      "stream_device", [](uint64_t stream) { return timing::stream_device(vendor().cuda, stream); }, py::arg("stream"),
      "The device of a stream; of a default stream that of the current context, or 0.");
  module.def(
      "event_pool",
      [](int device) {
        const timing::EventPool::Counts counts = pools().counts(device);
        return py::dict("created"_a = counts.created, "in_use"_a = counts.in_use, "free"_a = counts.free);
      },
      py::arg("device") = 0, "How many pooled events a device has.");
}

}  // namespace gpuscope::bindings
