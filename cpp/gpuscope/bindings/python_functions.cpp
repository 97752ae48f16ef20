// SPDX-License-Identifier: Apache-2.0
// Logs calls and returns of Python functions in the thread's event log.
//
// Python 3.12 and later report them through sys.monitoring, which leaves the profile hook to other tools. Earlier
// versions use the profile hook. Everything here runs with the GIL, which guards the state.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/frames.h"
#include "gpuscope/bindings/function_names.h"
#include "gpuscope/bindings/torch_modules.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

#ifdef GPUSCOPE_KNOWS_FRAMES

using base::EventLog;
using base::FunctionDetail;
using base::FunctionKind;
using base::Op;

constexpr uint32_t kOwn = FunctionNames::kOwn;
constexpr uint32_t kUnwanted = FunctionNames::kUnwanted;

/// The definition of a C function, null for other callables. It outlives the objects to which it is bound, which must
/// not be kept alive.
const PyMethodDef* method_of(PyObject* function) noexcept {
  if (Py_IS_TYPE(function, &PyMethodDescr_Type)) {
    return reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
  }
  const bool is_function = Py_IS_TYPE(function, &PyCFunction_Type) || Py_IS_TYPE(function, &PyCMethod_Type);
  return is_function ? reinterpret_cast<PyCFunctionObject*>(function)->m_ml : nullptr;
}

constinit FunctionNames* names = nullptr;  // leaked: threads may call functions at process exit
bool is_on = false;
bool hears_calls = false;           // calls, not only garbage collections
PyObject* module_failed = nullptr;  // called with a module and an error. Null if modules are not recorded

/// CPython's own cost to report an event, in ns, measured. The profile hook makes a frame object for each called frame,
/// but not for a resumed frame or a C function.
struct EventCosts {
  uint32_t call = 0, resume = 0, built_in = 0;
};
EventCosts costs;
bool knows_costs = false;

uint32_t cost_of(const InterpreterFrame* frame) noexcept {
  constexpr int kResumed = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
  return (code_of(frame)->co_flags & kResumed) != 0 ? costs.resume : costs.call;
}

uint32_t detail_of(const InterpreterFrame* frame, FunctionKind kind = FunctionKind::Python,
                   uint32_t flags = 0) noexcept {
  return FunctionDetail::make(kind, reinterpret_cast<uintptr_t>(frame), flags);
}

/// Logs the module of a torch.nn.Module.__call__ that is logged next. Returns its name, or `otherwise`.
uint32_t log_module(EventLog& log, const InterpreterFrame* frame, uint32_t otherwise) {
  PyObject* module = first_argument(frame);
  if (module == nullptr) {
    return otherwise;
  }
  const FunctionNames::Module known = names->of_module(module);
  log.add_argument(base::Argument::Module, 0, known.number + 1);
  return known.name;
}

/// The thread has left all functions.
void clear(CalledFrames& functions) {
  functions.clear();
  if (functions.modules != nullptr) {
    functions.modules->close();
  }
}

/// Opens the region of the module that the innermost function calls. False if there is no module.
bool enter_module(CalledFrames& functions, const InterpreterFrame* frame) {
  const auto module = py::reinterpret_borrow<py::object>(first_argument(frame));
  if (!module) {
    return false;
  }
  try {
    if (functions.modules == nullptr) {
      functions.modules = &ModuleCalls::of_thread();
      functions.modules->close();  // left by an earlier recording that did not see the end
    }
    functions.modules->enter_next(module);
    return true;
  } catch (py::error_already_set& error) {
    py::reinterpret_borrow<py::object>(module_failed)(module, error.value());
    return false;
  }
}

/// Logs the functions that were running when the recording began, except `called`.
[[gnu::noinline]] void log_running(EventLog& log, const InterpreterFrame* called) {
  std::vector<py::object> frames;
  auto next = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (next) {
    frames.push_back(next);
    next = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(next.ptr()))));
  }
  const uint64_t ticks = base::ticks();
  for (; !frames.empty(); frames.pop_back()) {
    auto* running = reinterpret_cast<PyFrameObject*>(frames.back().ptr());
    const InterpreterFrame* frame = frame_of(running);
    uint32_t name = frame != called ? names->of_running(running) : kOwn;
    if (name == kOwn) {
      continue;
    }
    if (names->is_module_call(code_of(frame))) {
      name = log_module(log, frame, name);
    }
    log.append(ticks, name, Op::FunctionEnter, detail_of(frame, FunctionKind::Python, FunctionDetail::kRunning));
  }
}

/// The calling thread's log and open functions.
struct ThreadFunctions {
  EventLog* log = nullptr;
  CalledFrames* functions = nullptr;
};

/// Has no log if nothing is recorded: in a forked child, or after the session was abandoned. `called`: the function
/// that is being called.
ThreadFunctions recorded_thread(const InterpreterFrame* called) {
  CalledFrames* functions = CalledFrames::current();
  EventLog* log = base::EventLogs::current();
  if (functions == nullptr || log == nullptr || !is_on) [[unlikely]] {
    return {};
  }
  if ((base::listening.load(std::memory_order_relaxed) & base::kListenStacks) == 0) [[unlikely]] {
    functions->clear();
    return {};
  }
  if (functions->is_outdated()) [[unlikely]] {
    functions->renew();
    if (!names->chooses()) {
      log_running(*log, called);
    }
  }
  return {log, functions};
}

/// For a function whose call was not seen.
[[gnu::noinline]] bool is_own(const InterpreterFrame* frame) { return names->of_code(code_of(frame)) == kOwn; }
[[gnu::noinline]] bool is_unlogged(const InterpreterFrame* frame) {
  const uint32_t name = names->of_code(code_of(frame));
  return name == kOwn || name == kUnwanted;
}

// Each returns whether it needs further events of this place in the program.

bool enter_function(const InterpreterFrame* frame) noexcept {
  try {
    const auto [log, functions] = recorded_thread(frame);
    if (log == nullptr) {
      return true;
    }
    base::WorkTimer timer(*log, base::WorkTimer::Of::Function, cost_of(frame));
    uint32_t name = names->of_code(code_of(frame));
    if (names->chooses()) {  // calls of other functions are not reported, so there is no stack
      if (name == kOwn || name == kUnwanted) {
        return false;
      }
    } else {
      functions->enter(frame, name == kOwn);
    }
    const bool is_module = name == FunctionNames::kModuleCall;
    if (is_module) {
      name = log_module(*log, frame, names->module_call());
    }
    if (name != kOwn) {
      const uint32_t detail = detail_of(frame);
      timer.stop();
      log->append(base::ticks(), name, Op::FunctionEnter, detail);
    }
    if (is_module && module_failed != nullptr && enter_module(*functions, frame)) {
      functions->find(frame)->is_module = true;
    }
  } catch (const std::exception&) {  // out of memory: this call is missing
  }
  return true;
}

bool leave_function(const InterpreterFrame* frame) noexcept {
  try {
    const auto [log, functions] = recorded_thread(nullptr);
    if (log == nullptr) {
      return true;
    }
    base::WorkTimer timer(*log, base::WorkTimer::Of::Function, cost_of(frame));
    const CalledFrames::Called* called = functions->find(frame);
    const bool is_left_out = called != nullptr ? called->is_own : is_unlogged(frame);
    if (called != nullptr) {
      if (called->is_module) {
        functions->modules->leave_last();
      }
      functions->leave();
    } else {
      clear(*functions);
    }
    if (!is_left_out) {
      const uint32_t detail = detail_of(frame);
      timer.stop();
      log->append(base::ticks(), 0, Op::FunctionExit, detail);
    }
    return !is_left_out;
  } catch (const std::exception&) {
  }
  return true;
}

/// For a call that was not seen.
bool is_logged(const InterpreterFrame* frame, const PyMethodDef* method, PyObject* function, PyObject* self) {
  const uint32_t name = is_own(frame) ? kOwn : names->of_built_in(method, function, self);
  return name != kOwn && name != kUnwanted;
}

/// `frame`: the caller. `method`: the definition of `function`. `self`: the receiver, for an unbound method.
bool enter_built_in(const InterpreterFrame* frame, const PyMethodDef* method, PyObject* function,
                    PyObject* self) noexcept {
  try {
    const auto [log, functions] = recorded_thread(nullptr);
    if (log == nullptr) {
      return true;
    }
    base::WorkTimer timer(*log, base::WorkTimer::Of::Function, costs.built_in);
    CalledFrames::Called* called = functions->find(frame);
    const bool is_left_out = called != nullptr ? called->is_own : is_own(frame);
    const uint32_t name = is_left_out ? kOwn : names->of_built_in(method, function, self);
    if (name == kOwn || name == kUnwanted) {
      return false;
    }
    if (called != nullptr) {
      called->in_built_in = true;
    }
    const uint32_t detail = detail_of(frame, FunctionKind::BuiltIn);
    timer.stop();
    log->append(base::ticks(), name, Op::FunctionEnter, detail);
  } catch (const std::exception&) {
  }
  return true;
}

void leave_built_in(const InterpreterFrame* frame, const PyMethodDef* method, PyObject* function,
                    PyObject* self) noexcept {
  try {
    const auto [log, functions] = recorded_thread(nullptr);
    if (log == nullptr) {
      return;
    }
    base::WorkTimer timer(*log, base::WorkTimer::Of::Function, costs.built_in);
    CalledFrames::Called* called = functions->find(frame);
    if (called != nullptr ? std::exchange(called->in_built_in, false) : is_logged(frame, method, function, self)) {
      const uint32_t detail = detail_of(frame, FunctionKind::BuiltIn);
      timer.stop();
      log->append(base::ticks(), 0, Op::FunctionExit, detail);
    }
  } catch (const std::exception&) {
  }
}

#ifdef GPUSCOPE_MONITORS

/// A callback for sys.monitoring: a plain vectorcall object, without the checks of a PyCFunction.
struct Callback {
  PyObject_HEAD vectorcallfunc call;
};

py::object callback_type() {
  static std::array<PyMemberDef, 2> members = {
      {{"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Callback, call), Py_READONLY, nullptr}, {}}};
  static std::array<PyType_Slot, 3> slots = {
      {{Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)}, {Py_tp_members, members.data()}, {0, nullptr}}};
  static PyType_Spec spec = {"gpuscope._core.Callback", sizeof(Callback), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             slots.data()};
  return py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
}

py::object make_callback(const py::object& type, vectorcallfunc call) {
  auto* made = PyObject_New(Callback, reinterpret_cast<PyTypeObject*>(type.ptr()));
  if (made == nullptr) {
    throw py::error_already_set();
  }
  made->call = call;
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(made));
}

PyObject* disable = nullptr;  // sys.monitoring.DISABLE: no further events of that place
/// DISABLE if only some functions are requested: the other places are then reported once. Otherwise None, as a line may
/// call a different function each time.
PyObject* answer = nullptr;

/// The arguments of a function event: the code and its offset. `kMayEnd`: DISABLE is accepted.
template <bool (*kStep)(const InterpreterFrame*) noexcept, bool kMayEnd = true>
PyObject* on_function(PyObject*, PyObject* const*, std::size_t, PyObject*) noexcept {
  const bool goes_on = kStep(innermost_frame(running_thread()));
  return Py_NewRef(goes_on || !kMayEnd ? Py_None : answer);
}

/// Whether a call is that of torch.nn.Module._call_impl, made by the only calling line of torch.nn.Module.__call__. It
/// is always a Python function, which reports its own call.
bool is_call_of_module(PyObject* code, PyObject* function) noexcept {
  return names->is_module_call(reinterpret_cast<const PyCodeObject*>(code)) && PyMethod_Check(function) &&
         PyFunction_Check(PyMethod_GET_FUNCTION(function));
}

// Arguments: the code, the offset, the callable, its first argument or sys.monitoring.MISSING.

PyObject* on_call(PyObject*, PyObject* const* arguments, std::size_t count, PyObject*) noexcept {
  if (PyVectorcall_NARGS(count) < 4) {
    return Py_NewRef(Py_None);
  }
  PyObject* function = arguments[2];
  const PyMethodDef* method = method_of(function);
  if (method == nullptr) {
    return Py_NewRef(is_call_of_module(arguments[0], function) ? disable : answer);
  }
  const InterpreterFrame* frame = innermost_frame(running_thread());
  return Py_NewRef(enter_built_in(frame, method, function, arguments[3]) ? Py_None : answer);
}

PyObject* on_call_ends(PyObject*, PyObject* const* arguments, std::size_t count, PyObject*) noexcept {
  const PyMethodDef* method = PyVectorcall_NARGS(count) < 4 ? nullptr : method_of(arguments[2]);
  if (method != nullptr) {
    leave_built_in(innermost_frame(running_thread()), method, arguments[2], arguments[3]);
  }
  return Py_NewRef(Py_None);
}

struct MonitoredEvent {
  const char* name;
  vectorcallfunc callback;
  bool chosen = true;  // false: CALL reports it
};
constexpr std::array<MonitoredEvent, 9> kEvents = {{{"PY_START", &on_function<enter_function>},
                                                    {"PY_RESUME", &on_function<enter_function>},
                                                    {"PY_THROW", &on_function<enter_function, false>},
                                                    {"PY_RETURN", &on_function<leave_function>},
                                                    {"PY_YIELD", &on_function<leave_function>},
                                                    {"PY_UNWIND", &on_function<leave_function, false>},
                                                    {"CALL", &on_call},
                                                    {"C_RETURN", &on_call_ends, false},
                                                    {"C_RAISE", &on_call_ends, false}}};
// Neither tool id is reserved for debuggers, coverage, cProfile or optimizers, which may start later.
constexpr std::array<int, 2> kTools = {4, 3};
int tool = -1;

py::object monitoring() { return py::module_::import("sys").attr("monitoring"); }

/// Registers the callbacks on all threads. False if other tools hold both ids.
bool switch_on() {
  const py::object monitor = monitoring();
  const auto free = std::ranges::find_if(kTools, [&](int id) { return monitor.attr("get_tool")(id).is_none(); });
  if (free == kTools.end()) {
    return false;
  }
  const py::object type = callback_type();
  monitor.attr("use_tool_id")(*free, "gpuscope");
  tool = *free;
  disable = monitor.attr("DISABLE").ptr();
  answer = names->chooses() ? disable : Py_None;
  int events = 0;
  for (const auto& [name, callback, chosen] : kEvents) {
    const auto event = monitor.attr("events").attr(name).cast<int>();
    monitor.attr("register_callback")(tool, event, make_callback(type, callback));
    events |= chosen ? event : 0;
  }
  monitor.attr("set_events")(tool, events);
  return true;
}

void switch_off() {
  const py::object monitor = monitoring();
  monitor.attr("set_events")(tool, 0);
  for (const MonitoredEvent& event : kEvents) {
    monitor.attr("register_callback")(tool, monitor.attr("events").attr(event.name), py::none());
  }
  monitor.attr("free_tool_id")(std::exchange(tool, -1));
  monitor.attr("restart_events")();  // otherwise disabled places report no further calls
}

bool is_heard() noexcept { return true; }

void join_thread(const py::object&, const std::string&, const py::object&) {}  // all threads are monitored

#else

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) noexcept {
  const bool is_built_in = what == PyTrace_C_CALL || what == PyTrace_C_RETURN || what == PyTrace_C_EXCEPTION;
  const PyMethodDef* method = is_built_in ? method_of(argument) : nullptr;
  if (is_built_in && method == nullptr) {
    return 0;
  }
  switch (what) {
    case PyTrace_CALL:
      enter_function(frame_of(frame));
      break;
    case PyTrace_RETURN:
      leave_function(frame_of(frame));
      break;
    case PyTrace_C_CALL:
      enter_built_in(frame_of(frame), method, argument, nullptr);
      break;
    case PyTrace_C_RETURN:
    case PyTrace_C_EXCEPTION:
      leave_built_in(frame_of(frame), method, argument, nullptr);
      break;
    default:
      break;
  }
  return 0;
}

/// Replaces one hook by the other on every thread.
void swap_hooks(Py_tracefunc before, Py_tracefunc hook) {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    if (thread->c_profilefunc == before && _PyEval_SetProfile(thread, hook, nullptr) != 0) {
      PyErr_Clear();  // an audit hook refused it
    }
  }
}

/// False if another profiler has the hook of this thread.
bool switch_on() {
  if (PyThreadState_Get()->c_profilefunc != nullptr) {
    return false;
  }
  swap_hooks(nullptr, on_event);
  return true;
}

void switch_off() { swap_hooks(on_event, nullptr); }

bool is_heard() noexcept { return PyThreadState_Get()->c_profilefunc == on_event; }

// For threading.setprofile: the first event of a thread that began after `start`.
void join_thread(const py::object& frame, const std::string& event, const py::object&) {
  PyEval_SetProfile(is_on ? on_event : nullptr, nullptr);
  if (is_on) {
    if (CalledFrames* functions = CalledFrames::current(); functions != nullptr) {
      functions->renew();  // it was in nothing
    }
    if (event == "call") {
      enter_function(frame_of(reinterpret_cast<PyFrameObject*>(frame.ptr())));
    }
  }
}

#endif

void make_names() {
  if (names == nullptr) {
    names = new FunctionNames;
  }
}

/// The least CPU time per event of several runs of `work`, in ns.
double time_of_event(const py::handle& work, int events) {
  constexpr int kRounds = 5;
  int64_t least = INT64_MAX;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t began = base::thread_cpu_ns();
    work();
    least = std::min(least, base::thread_cpu_ns() - began);
  }
  return static_cast<double>(least) / events;
}

using Times = std::array<double, 3>;

Times times_of_events(const std::array<py::function, 3>& works, int events) {
  Times times{};
  std::ranges::transform(works, times.begin(), [events](const auto& work) { return time_of_event(work, events); });
  return times;
}

void measure(const py::function& calls, const py::function& resumes, const py::function& built_in, int events) {
  if (is_on || knows_costs) {
    return;
  }
  make_names();
  names->start({}, py::none(), py::none());
  const std::array works{calls, resumes, built_in};
  const Times alone = times_of_events(works, events);
  if (switch_on()) {
    Times told{};
    try {
      told = times_of_events(works, events);
    } catch (const py::error_already_set&) {  // Ctrl-C
      switch_off();
      names->stop();
      throw;
    }
    switch_off();
    const auto cost = [&](std::size_t kind) { return static_cast<uint32_t>(std::max(told[kind] - alone[kind], 0.0)); };
    costs = {cost(0), cost(1), cost(2)};
    knows_costs = true;
  }
  names->stop();
}

bool start(std::vector<std::string> prefixes, py::object module_call, py::object is_wanted, bool calls,
           const std::optional<py::function>& failed) {
  if (is_on) {
    return false;
  }
  make_names();
  names->start(std::move(prefixes), std::move(module_call), std::move(is_wanted));
  CalledFrames::forget_all();
  hears_calls = calls;
  module_failed = failed ? Py_NewRef(failed->ptr()) : nullptr;
  is_on = !calls || switch_on();
  return is_on;
}

/// Whether this thread reported events until now. Another profiler may have taken the hook.
bool stop() {
  const bool kept = is_on && (!hears_calls || is_heard());
  if (std::exchange(is_on, false)) {
    if (hears_calls) {
      switch_off();
    }
    if (CalledFrames* functions = CalledFrames::existing(); functions != nullptr && !functions->is_outdated()) {
      clear(*functions);
    }
    Py_CLEAR(module_failed);
    CalledFrames::forget_all();
    names->stop();
  }
  return kept;
}

// For gc.callbacks.
void on_garbage(const std::string& phase, const py::object& /*info*/) {
  EventLog* log = is_on ? base::EventLogs::current() : nullptr;
  if (log != nullptr && (base::listening.load(std::memory_order_relaxed) & base::kListenStacks) != 0) {
    const uint32_t detail = FunctionDetail::make(FunctionKind::Garbage, 0);
    log->append(base::ticks(), names->garbage(), phase == "start" ? Op::FunctionEnter : Op::FunctionExit, detail);
  }
}

#else

void measure(const py::function&, const py::function&, const py::function&, int) {}
bool start(const std::vector<std::string>&, const py::object&, const py::object&, bool,
           const std::optional<py::function>&) {
  return false;
}
bool stop() { return false; }
void join_thread(const py::object&, const std::string&, const py::object&) {}
void on_garbage(const std::string&, const py::object&) {}

#endif

struct PythonFunctions {};

}  // namespace

void bind_python_functions(py::module_& module) {
  py::class_<PythonFunctions>(module, "PythonFunctions", "Calls of Python functions, of every thread.")
      .def_static(
          "measure", &measure, py::arg("calls"), py::arg("resumes"), py::arg("built_in"), py::arg("events"),
          "Measures what CPython takes to tell of an event, which the audit counts: once, by functions that have so "
          "many, of calls of functions that do nothing, of a generator, and of a function that is written in C.")
      .def_static(
          "start", &start, py::arg("prefixes"), py::arg("module_call"), py::arg("is_wanted") = py::none(),
          py::arg("calls") = true, py::arg("module_failed") = py::none(),
          "Has calls logged, or without `calls` garbage collections only; False where other tools leave no place, or "
          "frames are not known. `prefixes`: what the names of files are given without; `module_call`: the code of "
          "torch.nn.Module.__call__, or None; `is_wanted`: called once with the name of each function, true for "
          "those whose calls are logged; None for all. A line that called another first may not be asked "
          "again. `module_failed`: has the calls of modules recorded as regions; called with one and an error.")
      .def_static("stop", &stop, "Ends that; whether calls of this thread were logged up to now.")
      .def_static("join_thread", &join_thread, py::arg("frame"), py::arg("event"), py::arg("argument"),
                  "For threading.setprofile.")
      .def_static("on_garbage", &on_garbage, py::arg("phase"), py::arg("info"), "For gc.callbacks.");
}

}  // namespace gpuscope::bindings
