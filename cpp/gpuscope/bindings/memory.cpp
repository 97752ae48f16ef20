// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/activity/collector.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/memory/history.h"
#include "gpuscope/memory/ledger.h"
#include "gpuscope/memory/numpy_handler.h"
#include "gpuscope/session/allocation_watch.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

/// Regions by base::current_region, as a column of indices into a list of names. The first name is "", no region.
class RegionColumn {
 public:
  uint32_t number_of(uint32_t region) {
    const auto [found, is_new] = numbers_.try_emplace(region, static_cast<uint32_t>(names_.size()));
    if (is_new) {
      names_.emplace_back(base::Names::process().text(region - 1));
    }
    return found->second;
  }
  const std::vector<std::string>& names() const noexcept { return names_; }

 private:
  std::unordered_map<uint32_t, uint32_t> numbers_{{0, 0}};
  std::vector<std::string> names_{""};
};

using memory::History, memory::PeakMemory;
using py::literals::operator""_a;

void start_history(int64_t max_entries, bool stacks) {
  if (max_entries < 1 || max_entries > static_cast<int64_t>(History::kMax)) {
    throw base::InvalidArgument(std::string("max_entries is ") + std::to_string(max_entries) +
                                "; accepted are whole numbers from 1 to " + std::to_string(History::kMax));
  }
  base::survive_forks();
  History::process().start(static_cast<uint64_t>(max_entries), stacks && watch_stacks());
}

py::dict history_state() {
  const History& history = History::process();
  return py::dict("recording"_a = history.recording(), "capacity"_a = history.capacity(),
                  "recorded"_a = history.recorded(), "lost"_a = history.overwritten(),
                  "resident_bytes"_a = history.resident_bytes());
}

py::dict read_history() {
  memory::HistoryColumns history = History::process().read();
  RegionColumn regions;
  for (uint32_t& region : history.region) {
    region = regions.number_of(region);
  }
  return py::dict("time_ns"_a = to_array(history.time_ns), "address"_a = to_array(history.address),
                  "bytes"_a = to_array(history.bytes), "allocated"_a = to_array(history.allocated),
                  "reserved"_a = to_array(history.reserved), "device"_a = to_array(history.device),
                  "stack"_a = to_array(history.stack), "region"_a = to_array(history.region),
                  "regions"_a = regions.names(), "thread"_a = to_array(history.thread),
                  "source"_a = to_array(history.source), "lost"_a = history.lost);
}

void record_memory(int source, int device, uint64_t address, int64_t bytes, int64_t allocated, int64_t reserved) {
  if (source < 0 || source > static_cast<int>(memory::Source::Numpy)) {
    throw base::InvalidArgument(std::string("source is ") + std::to_string(source) +
                                "; accepted are the numbers of SOURCES, 0 to 4");
  }
  History::process().record(
      {address, bytes, allocated, reserved, device, static_cast<memory::Source>(static_cast<uint8_t>(source))});
  if (allocated > 0) {
    memory::Peaks::process().report(device, allocated);
  }
}

std::vector<py::typing::Tuple<py::str, py::str, py::int_>> stack_frames(uint32_t stack) {
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
    throw base::NotAvailable("PeakMemory", std::to_string(memory::Peaks::kMax).append(" are open already"),
                             "close() those that are done");
  }
  return peak;
}

void bind_memory_history(py::module_& module) {
  module.def("start_memory_history", &start_history, py::arg("max_entries"), py::arg("stacks"),
             "Begins a history of what allocators report, anew; it keeps the last max_entries reports.");
  module.def(
      "stop_memory_history", [] { History::process().stop(); },
      "Ends it. What was recorded stays readable until the next start.");
  module.def("memory_history", &history_state,
             "Whether one is recorded, its capacity, the reports since its start, how many were overwritten, and the "
             "memory that it takes itself.");
  module.def("read_memory_history", &read_history,
             "The columns of MemoryEvents, oldest first, the names that region counts, and how many events are lost.");
  module.def(
      "largest_allocator",
      [](uint64_t since, int device) {
        const memory::Largest largest = History::process().largest(since, device);
        return py::make_tuple(largest.stack, largest.bytes);
      },
      py::arg("since"), py::arg("device"),
      "(stack, bytes) of the stack with most of what lives on a device and was allocated since that many reports.");
  module.def("record_memory", &record_memory, py::arg("source"), py::arg("device"), py::arg("address"),
             py::arg("bytes"), py::arg("allocated") = 0, py::arg("reserved") = 0,
             "Adds a report of any allocator to the history and the peaks; bytes is negative for a release.");
  module.def("stack_frames", &stack_frames, py::arg("stack"), "(function, file, line) of a stack, innermost first.");
  py::class_<PeakMemory>(module, "PeakMemory", "The most that is reported to be handed out on a device, from now on.")
      .def(py::init(&open_peak), py::arg("device"), "device is a GPU's ordinal, -1 for the host.")
      .def_property_readonly("bytes", &PeakMemory::bytes, "The highest report; None when none has come.")
      .def("close", &PeakMemory::close, "Ends it; what was the highest stays known.");
}

using memory::NumpyDefault, memory::NumpyHandler, memory::NumpyWrapper;

constexpr const char* kHandlerCapsule = "mem_handler";

/// The needed functions of NumPy's C API, by their indices in numpy/__multiarray_api.h.
class NumpyApi {
 public:
  explicit NumpyApi(const py::capsule& capsule) : table_(capsule.get_pointer<void*>()) {}

  /// Whether this is NumPy 1.22 or later, with a known binary interface.
  bool is_known() const {
    const unsigned int interface = function<unsigned int (*)()>(0)();
    return (interface == 0x01000009 || interface == 0x02000000) && function<unsigned int (*)()>(211)() >= 0x0F;
  }
  py::object current() const { return checked(function<PyObject* (*)()>(305)()); }
  /// The default handler of a new context, such as that of a new thread.
  py::object standard() const {
    const py::object context = checked(PyContext_New());
    PyContext_Enter(context.ptr());
    PyObject* found = function<PyObject* (*)()>(305)();
    PyContext_Exit(context.ptr());
    return checked(found);
  }
  void make_current(const py::object& capsule) const {
    checked(function<PyObject* (*)(PyObject*)>(304)(capsule.ptr()));
  }

 private:
  template <class F>
  F function(std::size_t place) const {
    return reinterpret_cast<F>(table_[place]);
  }
  static py::object checked(PyObject* made) {
    if (made == nullptr) {
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(made);
  }

  void* const* table_;
};

NumpyHandler& handler_in(const py::object& capsule) {
  void* handler = PyCapsule_GetPointer(capsule.ptr(), kHandlerCapsule);
  if (handler == nullptr) {
    throw py::error_already_set();
  }
  return *static_cast<NumpyHandler*>(handler);
}

/// The program's own handler inside our handler. NumPy gets ours, and arrays keep the capsule.
struct Wrapped {
  explicit Wrapped(const py::object& capsule) : program(capsule), wrapper(handler_in(capsule)) {}

  py::object program;
  NumpyWrapper wrapper;
};

/// The program's handler, if the context has one that is not NumPy's.
bool has_own(const NumpyApi& numpy, const py::object& current) {
  return !current.is(numpy.standard()) && handler_in(current).version == NumpyHandler::kVersion;
}

std::string watch_numpy(const py::capsule& table) {
  const NumpyApi numpy(table);
  if (!numpy.is_known()) {
    return "this version of NumPy has functions that are not known";
  }
  if (std::string why = NumpyDefault::process().watch(handler_in(numpy.standard())); !why.empty()) {
    return why;
  }
  const py::object current = numpy.current();
  if (has_own(numpy, current) && !memory::records(handler_in(current))) {
    auto wrapped = std::make_unique<Wrapped>(current);
    const auto capsule = py::reinterpret_steal<py::object>(
        PyCapsule_New(&wrapped->wrapper.handler(), kHandlerCapsule,
                      [](PyObject* made) { delete static_cast<Wrapped*>(PyCapsule_GetContext(made)); }));
    PyCapsule_SetContext(capsule.ptr(), wrapped.release());
    numpy.make_current(capsule);
  }
  return "";
}

void unwatch_numpy(const py::capsule& table) {
  NumpyDefault::process().unwatch();
  const NumpyApi numpy(table);
  const py::object current = numpy.current();
  if (has_own(numpy, current) && memory::records(handler_in(current))) {
    numpy.make_current(static_cast<Wrapped*>(PyCapsule_GetContext(current.ptr()))->program);
  }
}

void bind_numpy_memory(py::module_& module) {
  module.def("watch_numpy", &watch_numpy, py::arg("table"),
             "Adds what NumPy hands out to the memory history: its default handler on all threads, and the calling "
             "context's own. Takes its _ARRAY_API. Returns why that cannot be; after '', call unwatch_numpy once.");
  module.def("leave_out_numpy", &memory::leave_out_numpy, py::arg("leave_out"),
             "Whether what the calling thread takes from now on is left out; returns what was so before.");
  module.def("unwatch_numpy", &unwatch_numpy, py::arg("table"),
             "One user less; with the last, NumPy has its functions back. The context has its own handler back.");
}

using memory::Allocation;

// Indexed by base::AllocationKind.
constexpr const char* kKinds[] = {"device", "pool", "managed", "pinned", "virtual", "array"};
static_assert(std::size(kKinds) == base::kAllocationKinds);

constexpr std::pair<activity::DeviceService, const char*> kServices[] = {
    {activity::kAssert, "assert"}, {activity::kPrintf, "printf"}, {activity::kMalloc, "malloc"}};

session::AllocationWatch& allocation_watch() { return base::of_process<session::AllocationWatch>(vendor()); }

std::string watch_allocations(bool stacks) {
  const bool with_stacks = stacks && watch_stacks();
  session::AllocationWatch& watch = allocation_watch();
  const py::gil_scoped_release nogil;
  return watch.watch(with_stacks);
}

/// A method of the watch with Python arguments and result. Waits for the watch's lock without the GIL.
template <auto kFunction, class... Arguments>
auto call_watch(Arguments... arguments) {
  session::AllocationWatch& watch = allocation_watch();
  const py::gil_scoped_release nogil;
  return (watch.*kFunction)(arguments...);
}

/// A column with `value`, a member or a function, of each allocation.
template <class T, class F>
py::array_t<T> column(const std::vector<Allocation>& allocations, F&& value) {
  py::array_t<T> values(static_cast<py::ssize_t>(allocations.size()));
  T* next = values.mutable_data();
  for (const Allocation& allocation : allocations) {
    *next++ = static_cast<T>(std::invoke(value, allocation));
  }
  return values;
}

py::dict live_allocations() {
  std::vector<Allocation> allocations;
  std::vector<std::string> libraries;
  session::AllocationWatch& watch = allocation_watch();
  {
    const py::gil_scoped_release nogil;
    allocations = watch.live();
    libraries = memory::NativeLibraries::process().names();
  }
  const auto of_caller = [](auto memory::Caller::*member) {
    return [member](const Allocation& allocation) { return allocation.caller.*member; };
  };
  RegionColumn regions;
  const auto region = [&](const Allocation& allocation) { return regions.number_of(allocation.caller.region); };
  py::dict columns;
  columns["address"] = column<uint64_t>(allocations, &Allocation::address);
  columns["bytes"] = column<int64_t>(allocations, &Allocation::bytes);
  columns["kind"] = column<uint8_t>(allocations, &Allocation::kind);
  columns["device"] = column<int32_t>(allocations, &Allocation::device);
  columns["pool"] = column<uint64_t>(allocations, &Allocation::pool);
  columns["library"] = column<uint32_t>(allocations, of_caller(&memory::Caller::library));
  columns["stack"] = column<uint32_t>(allocations, of_caller(&memory::Caller::stack));
  columns["region"] = column<uint32_t>(allocations, region);
  columns["regions"] = regions.names();
  columns["thread"] = column<uint64_t>(allocations, of_caller(&memory::Caller::thread));
  columns["time_ns"] = column<int64_t>(allocations, &Allocation::time_ns);
  columns["libraries"] = libraries;
  return columns;
}

py::dict watch_state() {
  session::AllocationWatch::State state;
  std::vector<std::string> libraries;
  session::AllocationWatch& watch = allocation_watch();
  {
    const py::gil_scoped_release nogil;
    state = watch.state();
    libraries = memory::NativeLibraries::process().names();
  }
  py::list failed;
  for (const memory::Failure& failure : state.failures) {
    failed.append(py::dict("bytes"_a = failure.bytes, "kind"_a = kKinds[static_cast<std::size_t>(failure.kind)],
                           "device"_a = failure.device, "library"_a = libraries[failure.caller.library],
                           "stack"_a = failure.caller.stack, "time_ns"_a = failure.time_ns,
                           "live_bytes"_a = failure.live_bytes, "result"_a = failure.result));
  }
  py::dict facts;
  facts["watching"] = state.watching;
  facts["why"] = state.why;
  facts["from_start"] = state.from_start;
  facts["gaps"] = state.gaps;
  facts["unknown_releases"] = state.counts.unknown_releases;
  facts["missed"] = state.counts.missed;
  facts["failed"] = failed;
  facts["contexts"] = state.loaded.contexts;
  facts["modules"] = state.loaded.modules;
  facts["code_bytes"] = state.loads_whole_modules ? std::optional(state.loaded.code_bytes) : std::nullopt;
  py::list services;
  for (const auto& [service, name] : kServices) {
    if ((state.loaded.services & service) != 0) {
      services.append(name);
    }
  }
  facts["services"] = services;
  facts["cupti_path"] = vendor().collector.cupti().library.path();
  return facts;
}

void bind_memory_watch(py::module_& module) {
  module.attr("ALLOCATION_KINDS") = py::make_tuple(kKinds[0], kKinds[1], kKinds[2], kKinds[3], kKinds[4], kKinds[5]);
  module.def("watch_allocations", &watch_allocations, py::arg("stacks") = true,
             "Keeps a ledger of what the driver gives out from now on. Returns why that cannot be had; after '', call "
             "unwatch_allocations once.");
  module.def("unwatch_allocations", &call_watch<&session::AllocationWatch::unwatch>,
             "One user less; the ledger is given up with the last.");
  module.def("pause_allocation_watch", &call_watch<&session::AllocationWatch::pause, std::string>, py::arg("why"),
             "Gives CUPTI up to somebody who needs it; `why` is told as the reason until the watch is resumed.");
  module.def("resume_allocation_watch", &call_watch<&session::AllocationWatch::resume>,
             "Goes on after a pause; returns why that cannot be had.");
  module.def("live_allocations", &live_allocations,
             "Columns, a row for each piece of memory that lives, and the names that the columns library and region "
             "count; the first is '', one that is not known. Device -1 is the host, -2 one that is not known.");
  module.def(
      "allocation_watch", &watch_state,
      "How the watch stands, the last 16 allocations that the driver refused, and what was loaded since; code_bytes "
      "is None where functions are loaded one by one, services what kernels call of the driver.");
}

}  // namespace

void bind_memory(py::module_& module) {
  bind_memory_history(module);
  bind_memory_watch(module);
  bind_numpy_memory(module);
}

}  // namespace gpuscope::bindings
