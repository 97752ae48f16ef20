// SPDX-License-Identifier: Apache-2.0
// Calls of Python functions, by CPython's profile hook: an event in the thread's log at each call and return.
//
// All of it runs with the GIL, which guards what is kept here.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
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

// The layout of frames is internal to CPython: it was checked for these versions.
#if PY_VERSION_HEX < 0x030E0000 && !defined(PYPY_VERSION) && !defined(Py_GIL_DISABLED)
#define GPUSCOPE_KNOWS_FRAMES 1
#if PY_VERSION_HEX >= 0x030B0000
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#else
#include <frameobject.h>
#endif
#endif

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

PyCodeObject* code_of(PyFrameObject* frame) noexcept {  // borrowed, unlike PyFrame_GetCode's
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_code;
#elif PY_VERSION_HEX < 0x030D0000
  return frame->f_frame->f_code;
#else
  return _PyFrame_GetCode(frame->f_frame);
#endif
}

/// The first argument; null where it is not there any more.
PyObject* first_argument(PyFrameObject* frame) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_localsplus[0];
#else
  return frame->f_frame->localsplus[0];
#endif
}

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
    PyCodeObject* code = code_of(frame);
    std::string file;
    append_utf8(file, code->co_filename);
    return file.starts_with(own_folder()) ? kOwn : intern(code, file, PyFrame_GetLineNumber(frame));
  }
  uint32_t of_built_in(PyObject* function) {
    if (!PyCFunction_Check(function)) {
      return kOwn;
    }
    // The method outlives the objects that it is bound to; one of these must not be kept alive.
    const PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
    return built_in_.find_or_make(reinterpret_cast<uintptr_t>(method), [&] {
      is_full_ |= built_in_.size() > kMaxKept;
      if (is_own(*reinterpret_cast<PyCFunctionObject*>(function))) {
        return kOwn;
      }
      const auto text = py::reinterpret_steal<py::object>(PyObject_Repr(function));  // runs no code of the program
      std::string name;
      if (text) {
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

void log_enter(EventLog& log, uint64_t ticks, PyFrameObject* frame, uint32_t name, uint32_t flags) {
  PyCodeObject* code = code_of(frame);
  if (names->is_module_call(code)) [[unlikely]] {
    if (PyObject* module = first_argument(frame); module != nullptr) {
      const FunctionNames::Module known = names->of_module(module);
      log.add_argument(base::Argument::Module, 0, known.number + 1);
      name = known.name;
    }
  }
  log.append(ticks, name, Op::FunctionEnter,
             FunctionDetail::make(FunctionKind::Python, reinterpret_cast<uintptr_t>(frame), flags));
}

/// What the thread was in when the recording began.
void log_running(EventLog& log, PyFrameObject* innermost) {
  std::vector<py::object> frames;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(innermost));
  while (frame) {
    frames.push_back(frame);
    frame = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
  }
  const uint64_t ticks = base::ticks();
  for (; !frames.empty(); frames.pop_back()) {
    auto* running = reinterpret_cast<PyFrameObject*>(frames.back().ptr());
    if (const uint32_t name = names->of_running(running); name != kOwn) {
      log_enter(log, ticks, running, name, FunctionDetail::kRunning);
    }
  }
}

void log_event(EventLog& log, PyFrameObject* frame, int what, PyObject* argument) {
  const auto place = reinterpret_cast<uintptr_t>(frame);
  if (names->is_full()) [[unlikely]] {
    names->clear();
  }
  if (seen != recordings) [[unlikely]] {
    seen = recordings;
    const bool is_new = what == PyTrace_CALL;
    const auto caller = py::reinterpret_steal<py::object>(is_new ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame))
                                                                 : Py_NewRef(reinterpret_cast<PyObject*>(frame)));
    log_running(log, reinterpret_cast<PyFrameObject*>(caller.ptr()));
  }
  switch (what) {
    case PyTrace_CALL:
      if (const uint32_t name = names->of_code(code_of(frame)); name != kOwn) {
        log_enter(log, base::ticks(), frame, name, 0);
      }
      break;
    case PyTrace_RETURN:
      if (names->of_code(code_of(frame)) != kOwn) {
        log.append(base::ticks(), 0, Op::FunctionExit, FunctionDetail::make(FunctionKind::Python, place));
      }
      break;
    case PyTrace_C_CALL:
      if (names->of_code(code_of(frame)) != kOwn) {
        if (const uint32_t name = names->of_built_in(argument); name != kOwn) {
          log.append(base::ticks(), name, Op::FunctionEnter, FunctionDetail::make(FunctionKind::BuiltIn, place));
        }
      }
      break;
    case PyTrace_C_RETURN:
    case PyTrace_C_EXCEPTION:
      log.append(base::ticks(), 0, Op::FunctionExit, FunctionDetail::make(FunctionKind::BuiltIn, place));
      break;
    default:
      break;
  }
}

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) noexcept {
  // Not in a forked child, nor when the session was given up.
  if ((base::listening.load(std::memory_order_relaxed) & base::kListenStacks) == 0) [[unlikely]] {
    return 0;
  }
  if (EventLog* log = base::EventLogs::current(); log != nullptr) [[likely]] {
    try {
      log_event(*log, frame, what, argument);
    } catch (const std::exception&) {  // no memory: this call is missing
    }
  }
  return 0;
}

/// Whether another profiler has the hook of a thread.
bool is_taken(const PyThreadState* thread) {
  return thread->c_profilefunc != nullptr && thread->c_profilefunc != on_event;
}

template <class F>
void for_each_thread(F&& act) {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    act(thread);
  }
}

/// The hook of every thread that has none; null takes ours away again.
void hook_threads(Py_tracefunc hook) {
#if PY_VERSION_HEX >= 0x030C0000
  bool any_taken = false;
  for_each_thread([&](const PyThreadState* thread) { any_taken = any_taken || is_taken(thread); });
  if (!any_taken) {
    PyEval_SetProfileAllThreads(hook, nullptr);
  } else if (!is_taken(PyThreadState_Get())) {  // the other's would be replaced; ours does nothing where it stays
    PyEval_SetProfile(hook, nullptr);
  }
#else
  const Py_tracefunc before = hook == nullptr ? on_event : nullptr;
  for_each_thread([&](PyThreadState* thread) {
    if (thread->c_profilefunc == before && _PyEval_SetProfile(thread, hook, nullptr) != 0) {
      PyErr_Clear();  // an audit hook refused it
    }
  });
#endif
}

bool start(std::vector<std::string> prefixes, py::object module_call) {
  if (is_on || is_taken(PyThreadState_Get())) {
    return false;
  }
  if (names == nullptr) {
    names = new FunctionNames;
  }
  names->start(std::move(prefixes), std::move(module_call));
  ++recordings;
  is_on = true;
  hook_threads(on_event);
  return true;
}

void stop() {
  if (std::exchange(is_on, false)) {
    hook_threads(nullptr);
    names->stop();
  }
}

// For threading.setprofile: the first event of a thread that began after `start`.
void join_thread(const py::object& frame, const std::string& event, const py::object& argument) {
  PyEval_SetProfile(is_on ? on_event : nullptr, nullptr);
  if (is_on) {
    seen = recordings;  // it was in nothing
    if (event == "call") {
      on_event(nullptr, reinterpret_cast<PyFrameObject*>(frame.ptr()), PyTrace_CALL, argument.ptr());
    }
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
                  "Has every call logged; False where another profiler has the hook of this thread, or frames are not "
                  "known. `prefixes`: what the names of files are given without; `module_call`: the code of "
                  "torch.nn.Module.__call__, or None.")
      .def_static("stop", &stop, "Ends that.")
      .def_static("join_thread", &join_thread, py::arg("frame"), py::arg("event"), py::arg("argument"),
                  "For threading.setprofile.")
      .def_static("on_garbage", &on_garbage, py::arg("phase"), py::arg("info"), "For gc.callbacks.");
}

}  // namespace gpuscope::bindings
