// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <tuple>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/vendor.h"
#include "gpuscope/device/event.h"
#include "gpuscope/device/host_anchors.h"
#include "gpuscope/device/synchronize.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using release = py::call_guard<py::gil_scoped_release>;

// Never destroyed: Python's last objects may outlive static ones.
device::EventPools& pools() {
  static auto* const pools = new device::EventPools(vendor().cuda);
  return *pools;
}

void bind_event(py::module_& module) {
  using device::Event;
  py::class_<Event>(module, "Event", "A CUDA event; a plain timing one comes from and goes back to its device's pool.")
      .def(py::init([](int device, bool timing, bool blocking, bool interprocess, bool external) {
             return std::make_unique<Event>(pools().of(device),
                                            device::EventOptions{timing, blocking, interprocess, external});
           }),
           py::arg("device") = 0, py::arg("timing") = true, py::arg("blocking") = false,
           py::arg("interprocess") = false, py::arg("external") = false,
           "Raises NotAvailable where there is no such GPU.")
      .def_static(
          "from_ipc_handle",
          [](int device, const py::bytes& handle) { return std::make_unique<Event>(pools().of(device), handle); },
          py::arg("device"), py::arg("handle"), "The event that another process exported.")
      .def("record", &Event::record, release(), py::arg("stream") = 0)
      .def("would_be_captured", &Event::would_be_captured, release(), py::arg("stream") = 0,
           "Whether a record on this stream would go into a CUDA graph that is being captured.")
      .def(
          "wait",
          [](const Event& self, uint64_t stream, std::optional<int> device) {
            self.wait(stream, device.value_or(self.device()));
          },
          release(), py::arg("stream") = 0, py::arg("device") = py::none(),
          "Holds a stream's later work back; `device` says whose default stream is meant (the event's).")
      .def("query", &Event::query, release(), "Whether the GPU has reached it; True before the first record.")
      .def("synchronize", &Event::synchronize, release(), "Waits until it is reached; seconds waited.")
      .def("elapsed_time", &Event::elapsed_time, release(), py::arg("end"), "Milliseconds to the other event.")
      .def(
          "ipc_handle", [](const Event& self) { return py::bytes(self.ipc_handle()); }, "64 bytes.")
      .def_property_readonly("handle", &Event::handle, "The CUevent as a number.")
      .def_property_readonly("device", &Event::device)
      .def_property_readonly("recorded", &Event::recorded);
}

void bind_host_anchors(py::module_& module) {
  using device::HostAnchors;
  using Anchor = std::tuple<std::unique_ptr<device::Event>, int64_t, int64_t>;
  py::class_<HostAnchors>(module, "HostAnchors", "Places a device's events on the clock of time.perf_counter_ns().")
      .def(py::init([](int device) { return std::make_unique<HostAnchors>(pools().of(device)); }),
           py::arg("device") = 0)
      .def(
          "take",
          [](const HostAnchors& self, int64_t timeout_ns) -> std::optional<Anchor> {
            device::HostAnchor anchor;
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

}  // namespace

void bind_timing(py::module_& module) {
  bind_event(module);
  bind_host_anchors(module);
  module.def(
      "find_device", [](int device) { return device::find_device(vendor().cuda, device); }, py::arg("device") = 0,
      "The device itself; raises NotAvailable where there is no such GPU. Makes no context.");
  module.def(
      "synchronize",
      [](int device) {
        const driver::Cuda& cuda = vendor().cuda;
        const py::gil_scoped_release released;
        return device::synchronize(cuda, device);
      },
      py::arg("device") = 0, "Waits for everything on a device's primary context; seconds waited.");
  module.def(
      "synchronize_stream",
      [](uint64_t stream, int device) {
        const driver::Cuda& cuda = vendor().cuda;
        const py::gil_scoped_release released;
        return device::synchronize_stream(cuda, stream, device);
      },
      py::arg("stream"), py::arg("device") = 0, "Waits for one stream; seconds waited.");
  module.def(
      "stream_device", [](uint64_t stream) { return device::stream_device(vendor().cuda, stream); }, py::arg("stream"),
      "The device of a stream; of a default stream that of the current context, or 0.");
  module.def(
      "event_pool",
      [](int device) {
        const device::EventPool::Counts counts = pools().counts(device);
        py::dict result;
        result["created"] = counts.created;
        result["in_use"] = counts.in_use;
        result["free"] = counts.free;
        return result;
      },
      py::arg("device") = 0, "How many pooled events a device has.");
}

}  // namespace gpuscope::bindings
