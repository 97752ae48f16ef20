// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/session.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "gpuscope/base/errors.h"
#include "gpuscope/bindings/bind.h"

namespace py = pybind11;

namespace gpuscope::bindings {

namespace {

// The slot's holder is torch.profiler when torch is there; it is idle when its profiler is off.
bool torch_profiler_is_idle() {
  const py::dict modules = py::module_::import("sys").attr("modules");
  if (!modules.contains("torch.autograd")) {
    return false;
  }
  const py::object enabled = py::getattr(modules["torch.autograd"], "_profiler_enabled", py::none());
  return !enabled.is_none() && !enabled().cast<bool>();
}

attribution::Mode mode_of(const std::string& name) {
  const auto* found = std::ranges::find(attribution::kModeNames, name);
  if (found != attribution::kModeNames.end()) {
    return static_cast<attribution::Mode>(found - attribution::kModeNames.begin());
  }
  throw base::InvalidArgument("mode must be 'full', 'ring' or 'aggregate', not '" + name + "'");
}

bool merges_graphs(const std::string& name) {
  if (name != "node" && name != "launch") {
    throw base::InvalidArgument("graphs must be 'node' or 'launch', not '" + name + "'");
  }
  return name == "launch";
}

std::unique_ptr<session::Session> start(bool cuda, const std::string& mode, const std::string& graphs, bool sync,
                                        uint64_t max_bytes, int64_t ring_ns, bool stacks, bool memory,
                                        const std::set<std::string>& left_out) {
  session::Options options;
  options.settings.mode = mode_of(mode);
  options.settings.merge_graphs = merges_graphs(graphs);
  options.settings.max_bytes = max_bytes;
  options.settings.ring_ns = ring_ns;
  options.settings.no_kernels = left_out.count("kernel") != 0;
  options.settings.no_copies = left_out.count("memcpy") != 0;
  options.settings.no_fills = left_out.count("memset") != 0;
  options.settings.no_calls = left_out.count("api") != 0;
  options.cuda = cuda;
  options.no_cuda_reason = cuda ? "" : "the profiler was not asked for CUDA activity";
  options.synchronization = sync;
  options.stacks = stacks && watch_stacks();
  options.memory = memory;
  options.may_share_cupti = torch_profiler_is_idle();
  session::Vendor& libraries = vendor();
  const py::gil_scoped_release nogil;
  return std::make_unique<session::Session>(libraries, options);
}

std::shared_ptr<store::Store> cut(session::Session& session) {
  const py::gil_scoped_release nogil;
  std::shared_ptr<store::Store> store = session.cut();
  if (store == nullptr) {
    throw base::InvalidArgument("cut() needs an open window: call open() first");
  }
  return store;
}

}  // namespace

void bind_session(py::module_& module) {
  using session::Session;
  module.def("knows_stacks", &knows_stacks, "Whether Python frames can be read in this version of Python.");
  py::class_<Session>(module, "Session", "One span of collecting, with any number of recorded windows in it.")
      .def(py::init(&start), py::kw_only(), py::arg("cuda") = true, py::arg("mode") = "full",
           py::arg("graphs") = "node", py::arg("sync") = false, py::arg("max_bytes") = uint64_t{1} << 30,
           py::arg("ring_ns") = int64_t{10'000'000'000}, py::arg("stacks") = false, py::arg("memory") = false,
           py::arg("left_out") = std::set<std::string>{},
           "Starts collecting; nothing is recorded until open(). `left_out`: tables of kernel, memcpy, memset and api "
           "that get no rows.")
      .def("open", &Session::open, py::call_guard<py::gil_scoped_release>(), "Begins a recorded window.")
      .def("cut", &cut, "Ends the window and returns its Store; waits for its GPU work, at most two seconds.")
      .def(
          "stop",
          [](Session& session) {
            const py::gil_scoped_release nogil;
            return std::shared_ptr<store::Store>(session.stop());
          },
          "Ends collecting; returns the open window's Store, if one is open. Further calls return None.")
      .def("release_cupti", &Session::release_cupti, py::call_guard<py::gil_scoped_release>(),
           "Ends the recording of GPU work for the rest of the session, as another client needs CUPTI; False when none "
           "was recorded.")
      .def("switch_gpu", &Session::switch_gpu, py::arg("on"), py::call_guard<py::gil_scoped_release>(),
           "Whether driver calls and GPU work are recorded from now on, within the open window.")
      .def("switch_regions", &Session::switch_regions, py::arg("on"), py::call_guard<py::gil_scoped_release>(),
           "Whether regions, operators and marks are recorded from now on, within the open window.")
      .def_property_readonly("tier", &Session::tier, "cupti, cupti-shared, events or cpu.")
      .def_property_readonly("tier_reason", &Session::tier_reason, "Why it is not cupti.")
      .def_static("active", &Session::active, "True while a session collects in this process.");
}

}  // namespace gpuscope::bindings
