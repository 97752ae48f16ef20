// SPDX-License-Identifier: Apache-2.0
// Calls of Python functions: an event in the thread's log at each call and return.
//
// They come from sys.monitoring where Python has it (3.12), as it costs half of CPython's profile hook and leaves that
// to others; from the profile hook before. All of it runs with the GIL, which guards what is kept here.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_log.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/frames.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

#ifdef GPUSCOPE_KNOWS_FRAMES

using base::EventLog;
using base::FunctionDetail;
using base::FunctionKind;
using base::Op;

constexpr uint32_t kOwn = UINT32_MAX;  // instead of a name: a function of this package, which is left out
// A program that makes code or modules for ever must not fill the memory.
constexpr std::size_t kMaxKept = std::size_t{1} << 16;

/// What functions are called, as Names ids, found by address.
class FunctionNames {
 public:
  void start(std::vector<std::string> prefixes, py::object module_call) {
    prefixes_ = std::move(prefixes);
    module_call_ = std::move(module_call);
    garbage_ = base::Names::process().intern("Python GC");
  }
  /// Releases all code, so that addresses may come to mean something else.
  void clear() {
    std::vector<py::object> kept = std::exchange(kept_, {});  // what ends with them may call functions
    codes_.clear();
    built_in_.clear();
    modules_.clear();
    instances_.clear();
    is_full_ = false;
  }
  void stop() {
    clear();
    module_call_ = py::object();
  }

  /// kOwn for functions of this package.
  uint32_t of_code(PyCodeObject* code) {
    return codes_.find_or_make(reinterpret_cast<uintptr_t>(code), [&] {
      keep(reinterpret_cast<PyObject*>(code));
      std::string file;
      append_utf8(file, code->co_filename);
      return file.starts_with(own_folder()) ? kOwn : intern(code, file, code->co_firstlineno);
    });
  }
  /// The name of a function that is running, by torch's rule with the line where it is.
  uint32_t of_running(PyFrameObject* frame) {
    PyCodeObject* code = code_of(frame_of(frame));
    std::string file;
    append_utf8(file, code->co_filename);
    return file.starts_with(own_folder()) ? kOwn : intern(code, file, PyFrame_GetLineNumber(frame));
  }
  /// Of a function that is written in C, or a method with what it is called on; kOwn for what is neither too.
  uint32_t of_built_in(PyObject* function, PyObject* self) {
    const bool is_method = Py_IS_TYPE(function, &PyMethodDescr_Type);
    if (!is_method && !PyCFunction_Check(function)) {
      return kOwn;
    }
    // The method outlives the objects that it is bound to; one of these must not be kept alive.
    const PyMethodDef* method = is_method ? reinterpret_cast<PyMethodDescrObject*>(function)->d_method
                                          : reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
    return built_in_.find_or_make(reinterpret_cast<uintptr_t>(method), [&] {
      is_full_ |= built_in_.size() > kMaxKept;
      auto bound = py::reinterpret_borrow<py::object>(function);
      if (is_method && self != nullptr) {
        bound = py::reinterpret_steal<py::object>(
            Py_TYPE(function)->tp_descr_get(function, self, reinterpret_cast<PyObject*>(Py_TYPE(self))));
      }
      if (bound && PyCFunction_Check(bound.ptr()) && is_own(*reinterpret_cast<PyCFunctionObject*>(bound.ptr()))) {
        return kOwn;
      }
      const auto text = py::reinterpret_steal<py::object>(bound ? PyObject_Repr(bound.ptr()) : nullptr);
      std::string name;
      if (text) {  // which ran no code of the program
        append_utf8(name, text.ptr());
      } else {
        PyErr_Clear();
        name = method->ml_name;
      }
      return base::Names::process().intern(name);
    });
  }
  uint32_t garbage() const noexcept { return garbage_; }

  /// A call of a torch.nn.Module.
  struct Module {
    uint32_t name = 0;
    uint32_t number = 0;  // of those of its class
    const PyTypeObject* type = nullptr;
  };
  bool is_module_call(const PyCodeObject* code) const noexcept {
    return reinterpret_cast<const PyObject*>(code) == module_call_.ptr();
  }
  Module of_module(PyObject* module) {
    Module& known = modules_.find_or_make(reinterpret_cast<uintptr_t>(module), [] { return Module{}; });
    if (known.type != Py_TYPE(module)) {  // new, or at the address of one that is gone
      is_full_ |= modules_.size() > kMaxKept;
      keep(reinterpret_cast<PyObject*>(Py_TYPE(module)));
      const std::string_view type = Py_TYPE(module)->tp_name;
      uint32_t& count = instances_.find_or_make(reinterpret_cast<uintptr_t>(Py_TYPE(module)), [] { return 0U; });
      std::string name = "nn.Module: ";
      name.append(type.substr(type.rfind('.') + 1)).append("_").append(std::to_string(count));
      known = {base::Names::process().intern(name), count++, Py_TYPE(module)};
    }
    return known;
  }
  bool is_full() const noexcept { return is_full_; }

 private:
  static bool is_own(const PyCFunctionObject& function) {
    constexpr std::string_view kPackage = "gpuscope.";
    std::string module;
    if (function.m_module != nullptr && PyUnicode_Check(function.m_module)) {
      append_utf8(module, function.m_module);
    }
    return module.starts_with(kPackage) || (function.m_self != nullptr && !PyModule_Check(function.m_self) &&
                                            std::string_view(Py_TYPE(function.m_self)->tp_name).starts_with(kPackage));
  }

  void keep(PyObject* object) {
    kept_.push_back(py::reinterpret_borrow<py::object>(object));
    is_full_ |= kept_.size() > kMaxKept;
  }

  uint32_t intern(PyCodeObject* code, std::string_view file, int line) {
    std::size_t skipped = 0;
    for (const std::string& prefix : prefixes_) {
      if (file.starts_with(prefix)) {
        skipped = std::max(skipped, prefix.size());
      }
    }
    std::string name(file.substr(skipped));
    name.append("(").append(std::to_string(line)).append("): ");
    append_utf8(name, code->co_name);
    return base::Names::process().intern(name);
  }

  base::FlatMap<uint32_t> codes_, built_in_, instances_;
  base::FlatMap<Module> modules_;
  std::vector<py::object> kept_;  // as long as their addresses stand for them
  std::vector<std::string> prefixes_;
  py::object module_call_;  // the code of torch.nn.Module.__call__
  uint32_t garbage_ = 0;
  bool is_full_ = false;
};

constinit FunctionNames* names = nullptr;  // leaked: threads may call functions while the process is torn down
bool is_on = false;
uint32_t recordings = 0;
#if defined(__x86_64__) || defined(__aarch64__)
[[gnu::tls_model("initial-exec")]]
#endif
constinit thread_local uint32_t seen = 0;  // the latest of them in which the thread logged what it was in

void log_enter(EventLog& log, uint64_t ticks, const InterpreterFrame* frame, uint32_t name, uint32_t flags) {
  if (names->is_module_call(code_of(frame))) [[unlikely]] {
    if (PyObject* module = first_argument(frame); module != nullptr) {
      const FunctionNames::Module known = names->of_module(module);
      log.add_argument(base::Argument::Module, 0, known.number + 1);
      name = known.name;
    }
  }
  log.append(ticks, name, Op::FunctionEnter,
             FunctionDetail::make(FunctionKind::Python, reinterpret_cast<uintptr_t>(frame), flags));
}

/// What the thread was in when the recording began, but for a function that is called just now.
void log_running(EventLog& log, const InterpreterFrame* called) {
  std::vector<py::object> frames;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    frames.push_back(frame);
    frame = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
  }
  const uint64_t ticks = base::ticks();
  for (; !frames.empty(); frames.pop_back()) {
    auto* running = reinterpret_cast<PyFrameObject*>(frames.back().ptr());
    const uint32_t name = frame_of(running) != called ? names->of_running(running) : kOwn;
    if (name != kOwn) {
      log_enter(log, ticks, frame_of(running), name, FunctionDetail::kRunning);
    }
  }
}

/// What happens: a function is called or returns, of Python or in C.
enum class Step : uint8_t { Call, Return, BuiltInCall, BuiltInReturn };

/// The name of the function in which it happens.
template <Step kStep>
uint32_t name_in(const InterpreterFrame* frame) {
  CalledFrames* called = CalledFrames::current();
  if (called == nullptr) [[unlikely]] {
    return names->of_code(code_of(frame));
  }
  const uint32_t* known = kStep != Step::Call ? called->name_of(frame) : nullptr;
  const uint32_t name = known != nullptr ? *known : names->of_code(code_of(frame));
  if constexpr (kStep == Step::Call) {
    called->enter(frame, name);
  } else if constexpr (kStep == Step::Return) {
    called->leave(frame);
  }
  return name;
}

/// `function`, `self`: of a call in C what is called, and on what where that is not bound to it.
template <Step kStep>
void log_step(const InterpreterFrame* frame, PyObject* function, PyObject* self) noexcept {
  // Not in a forked child, nor when the session was given up.
  if ((base::listening.load(std::memory_order_relaxed) & base::kListenStacks) == 0) [[unlikely]] {
    if (CalledFrames* called = CalledFrames::current(); called != nullptr) {
      called->clear();
    }
    return;
  }
  EventLog* log = base::EventLogs::current();
  if (log == nullptr) [[unlikely]] {
    return;
  }
  try {
    if (names->is_full()) [[unlikely]] {
      names->clear();
    }
    if (seen != recordings) [[unlikely]] {
      seen = recordings;
      log_running(*log, kStep == Step::Call ? frame : nullptr);
    }
    const uint32_t name = name_in<kStep>(frame);
    const auto place = reinterpret_cast<uintptr_t>(frame);
    if (name == kOwn) {
      return;
    }
    if constexpr (kStep == Step::Call) {
      log_enter(*log, base::ticks(), frame, name, 0);
    } else if constexpr (kStep == Step::Return) {
      log->append(base::ticks(), 0, Op::FunctionExit, FunctionDetail::make(FunctionKind::Python, place));
    } else if (const uint32_t its = names->of_built_in(function, self); its != kOwn) {
      constexpr bool kIsCall = kStep == Step::BuiltInCall;
      log->append(base::ticks(), kIsCall ? its : 0, kIsCall ? Op::FunctionEnter : Op::FunctionExit,
                  FunctionDetail::make(FunctionKind::BuiltIn, place));
    }
  } catch (const std::exception&) {  // no memory: this call is missing
  }
}

#ifdef GPUSCOPE_MONITORS

/// The arguments of an event of a function: its code, where in it.
template <Step kStep>
PyObject* on_function(PyObject*, PyObject* const*, Py_ssize_t) noexcept {
  log_step<kStep>(innermost_frame(_PyThreadState_UncheckedGet()), nullptr, nullptr);
  return Py_NewRef(Py_None);
}

/// Of a call: the code, where in it, what is called, its first argument or sys.monitoring.MISSING.
template <Step kStep>
PyObject* on_call(PyObject*, PyObject* const* arguments, Py_ssize_t count) noexcept {
  if (count >= 4 && (PyCFunction_Check(arguments[2]) || Py_IS_TYPE(arguments[2], &PyMethodDescr_Type))) {
    log_step<kStep>(innermost_frame(_PyThreadState_UncheckedGet()), arguments[2], arguments[3]);
  }
  return Py_NewRef(Py_None);
}

using Callback = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
struct MonitoredEvent {
  const char* name;
  Callback callback;
  bool chosen = true;  // false: it comes with CALL
};
constexpr std::array<MonitoredEvent, 9> kEvents = {{{"PY_START", &on_function<Step::Call>},
                                                    {"PY_RESUME", &on_function<Step::Call>},
                                                    {"PY_THROW", &on_function<Step::Call>},
                                                    {"PY_RETURN", &on_function<Step::Return>},
                                                    {"PY_YIELD", &on_function<Step::Return>},
                                                    {"PY_UNWIND", &on_function<Step::Return>},
                                                    {"CALL", &on_call<Step::BuiltInCall>},
                                                    {"C_RETURN", &on_call<Step::BuiltInReturn>, false},
                                                    {"C_RAISE", &on_call<Step::BuiltInReturn>, false}}};
// Neither of these is set aside for debuggers, coverage, profilers (cProfile) or optimizers, which may come later.
constexpr std::array<int, 2> kTools = {4, 3};
int tool = -1;

py::object monitoring() { return py::module_::import("sys").attr("monitoring"); }

/// Has the callbacks called on every thread; False where other tools hold both places.
bool switch_on() {
  const py::object monitor = monitoring();
  const auto free = std::ranges::find_if(kTools, [&](int id) { return monitor.attr("get_tool")(id).is_none(); });
  if (free == kTools.end()) {
    return false;
  }
  static std::array<PyMethodDef, kEvents.size()> methods{};
  monitor.attr("use_tool_id")(*free, "gpuscope");
  tool = *free;
  int events = 0;
  for (std::size_t index = 0; index < kEvents.size(); ++index) {
    const auto& [name, callback, chosen] = kEvents[index];
    methods[index] = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(callback)), METH_FASTCALL, ""};
    const auto event = monitor.attr("events").attr(name).cast<int>();
    monitor.attr("register_callback")(tool, event,
                                      py::reinterpret_steal<py::object>(PyCFunction_New(&methods[index], nullptr)));
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
}

void join_thread(const py::object&, const std::string&, const py::object&) {}  // all threads are monitored

#else

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) noexcept {
  switch (what) {
    case PyTrace_CALL:
      log_step<Step::Call>(frame_of(frame), nullptr, nullptr);
      break;
    case PyTrace_RETURN:
      log_step<Step::Return>(frame_of(frame), nullptr, nullptr);
      break;
    case PyTrace_C_CALL:
      log_step<Step::BuiltInCall>(frame_of(frame), argument, nullptr);
      break;
    case PyTrace_C_RETURN:
    case PyTrace_C_EXCEPTION:
      log_step<Step::BuiltInReturn>(frame_of(frame), argument, nullptr);
      break;
    default:
      break;
  }
  return 0;
}

/// Gives a hook to every thread that has the other.
void swap_hooks(Py_tracefunc before, Py_tracefunc hook) {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    if (thread->c_profilefunc == before && _PyEval_SetProfile(thread, hook, nullptr) != 0) {
      PyErr_Clear();  // an audit hook refused it
    }
  }
}

/// False where another profiler has the hook of this thread.
bool switch_on() {
  if (PyThreadState_Get()->c_profilefunc != nullptr) {
    return false;
  }
  swap_hooks(nullptr, on_event);
  return true;
}

void switch_off() { swap_hooks(on_event, nullptr); }

// For threading.setprofile: the first event of a thread that began after `start`.
void join_thread(const py::object& frame, const std::string& event, const py::object&) {
  PyEval_SetProfile(is_on ? on_event : nullptr, nullptr);
  if (is_on) {
    seen = recordings;  // it was in nothing
    if (event == "call") {
      log_step<Step::Call>(frame_of(reinterpret_cast<PyFrameObject*>(frame.ptr())), nullptr, nullptr);
    }
  }
}

#endif

bool start(std::vector<std::string> prefixes, py::object module_call) {
  if (is_on) {
    return false;
  }
  if (names == nullptr) {
    names = new FunctionNames;
  }
  names->start(std::move(prefixes), std::move(module_call));
  ++recordings;
  CalledFrames::forget_all();
  is_on = switch_on();
  return is_on;
}

void stop() {
  if (std::exchange(is_on, false)) {
    switch_off();
    CalledFrames::forget_all();
    names->stop();
  }
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

bool start(const std::vector<std::string>&, const py::object&) { return false; }
void stop() {}
void join_thread(const py::object&, const std::string&, const py::object&) {}
void on_garbage(const std::string&, const py::object&) {}

#endif

struct PythonFunctions {};

}  // namespace

void bind_python_functions(py::module_& module) {
  py::class_<PythonFunctions>(module, "PythonFunctions", "Calls of Python functions, of every thread.")
      .def_static("start", &start, py::arg("prefixes"), py::arg("module_call"),
                  "Has every call logged; False where other tools leave no place, or frames are not known. `prefixes`: "
                  "what the names of files are given without; `module_call`: the code of "
                  "torch.nn.Module.__call__, or None.")
      .def_static("stop", &stop, "Ends that.")
      .def_static("join_thread", &join_thread, py::arg("frame"), py::arg("event"), py::arg("argument"),
                  "For threading.setprofile.")
      .def_static("on_garbage", &on_garbage, py::arg("phase"), py::arg("info"), "For gc.callbacks.");
}

}  // namespace gpuscope::bindings
