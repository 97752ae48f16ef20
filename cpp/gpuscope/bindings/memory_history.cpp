// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/forks.h"
#include "gpuscope/base/names.h"
#include "gpuscope/base/stacks.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/frames.h"
#include "gpuscope/bindings/region_column.h"
#include "gpuscope/memory/history.h"
#include "gpuscope/memory/peaks.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using memory::History, memory::PeakMemory;

void start(int64_t max_entries, bool stacks) {
  if (max_entries < 1 || max_entries > static_cast<int64_t>(History::kMost)) {
    throw base::InvalidArgument(std::string("max_entries is ") + std::to_string(max_entries) +
                                "; accepted are whole numbers from 1 to " + std::to_string(History::kMost));
  }
  base::survive_forks();
  History::process().start(static_cast<uint64_t>(max_entries), stacks && watch_stacks());
}

py::dict state() {
  const History& history = History::process();
  py::dict state;
  state["recording"] = history.recording();
  state["capacity"] = history.capacity();
  state["recorded"] = history.recorded();
  state["lost"] = history.overwritten();
  return state;
}

template <class T>
py::array_t<T> array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::dict read() {
  memory::HistoryColumns history = History::process().read();
  py::dict columns;
  columns["time_ns"] = array(history.time_ns);
  columns["address"] = array(history.address);
  columns["bytes"] = array(history.bytes);
  columns["allocated"] = array(history.allocated);
  columns["reserved"] = array(history.reserved);
  columns["device"] = array(history.device);
  columns["stack"] = array(history.stack);
  RegionColumn regions;
  for (uint32_t& region : history.region) {
    region = regions.number_of(region);
  }
  columns["region"] = array(history.region);
  columns["regions"] = regions.names();
  columns["thread"] = array(history.thread);
  columns["source"] = array(history.source);
  columns["lost"] = history.lost;
  return columns;
}

void record(int source, int device, uint64_t address, int64_t bytes, int64_t allocated, int64_t reserved) {
  if (source < 0 || source > static_cast<int>(memory::Source::Other)) {
    throw base::InvalidArgument(std::string("source is ") + std::to_string(source) +
                                "; accepted are the numbers of SOURCES, 0 to 3");
  }
  History::process().record(
      {address, bytes, allocated, reserved, device, static_cast<memory::Source>(static_cast<uint8_t>(source))});
  if (allocated > 0) {
    memory::Peaks::process().report(device, allocated);
  }
}

std::vector<py::typing::Tuple<py::str, py::str, py::int_>> frames(uint32_t stack) {
  base::Names& names = base::Names::process();
  std::vector<py::typing::Tuple<py::str, py::str, py::int_>> found;
  while (stack != 0) {
    const base::Frame frame = base::Stacks::process()[stack];
    found.push_back(py::make_tuple(names.text(frame.function), names.text(frame.file), frame.line));
    stack = frame.parent;
  }
  return found;
}

std::unique_ptr<PeakMemory> open_peak(int device) {
  auto peak = std::make_unique<PeakMemory>(device);
  if (!peak->is_open()) {
    throw base::NotAvailable("PeakMemory", std::to_string(memory::Peaks::kMost).append(" are open already"),
                             "close() those that are done");
  }
  return peak;
}

}  // namespace

void bind_memory_history(py::module_& module) {
  module.def("start_memory_history", &start, py::arg("max_entries"), py::arg("stacks"),
             "Begins a history of what allocators report, anew; it keeps the last max_entries reports.");
  module.def(
      "stop_memory_history", [] { History::process().stop(); },
      "Ends it. What was recorded stays readable until the next start.");
  module.def("memory_history", &state,
             "Whether one is recorded, its capacity, the reports since its start and how many were overwritten.");
  module.def("read_memory_history", &read,
             "The columns of MemoryEvents, oldest first, the names that region counts, and how many events are lost.");
  module.def("record_memory", &record, py::arg("source"), py::arg("device"), py::arg("address"), py::arg("bytes"),
             py::arg("allocated") = 0, py::arg("reserved") = 0,
             "Adds a report of any allocator to the history and the peaks; bytes is negative for a release.");
  module.def("stack_frames", &frames, py::arg("stack"), "(function, file, line) of a stack, innermost first.");
  py::class_<PeakMemory>(module, "PeakMemory", "The most that is reported to be handed out on a device, from now on.")
      .def(py::init(&open_peak), py::arg("device"), "device is a GPU's ordinal, -1 for the host.")
      .def_property_readonly("bytes", &PeakMemory::bytes, "The highest report; None when none has come.")
      .def("close", &PeakMemory::close, "Ends it; what was the highest stays known.");
}

}  // namespace gpuscope::bindings
