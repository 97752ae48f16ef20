// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "gpuscope/base/black_box.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/tasks.h"
#include "gpuscope/timing/region_timer.h"
#include "gpuscope/torch/operators.h"

namespace gpuscope::bindings {
namespace {

using base::EnterDetail;
using base::EventLog;
using base::EventLogs;
using base::Op;
using base::OpenRegions;
using timing::RegionTimer;

/// The base::Names ids of recent strings, by the string's address. With the GIL.
class NameIds {
 public:
  /// False with a Python error set.
  static bool find(PyObject* text, uint32_t period, uint32_t* id) {
    const auto address = reinterpret_cast<uintptr_t>(text);
    Known& known = known_[(address >> 4 ^ address >> 14) % known_.size()];
    if ((known.text != text || known.period != period) && !learn(text, period, known)) [[unlikely]] {
      return false;
    }
    *id = known.id;
    return true;
  }

 private:
  // Owns its string, so that no other string gets its address.
  struct Known {
    PyObject* text;
    uint32_t id;
    uint32_t period;  // of base::Names
  };
  static bool learn(PyObject* text, uint32_t period, Known& known);

  static std::array<Known, 1024> known_;
};

constinit std::array<NameIds::Known, 1024> NameIds::known_{};

bool NameIds::learn(PyObject* text, uint32_t period, Known& known) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size);
  PyObject* encoded = nullptr;
  if (utf8 == nullptr) {  // lone surrogates have no UTF-8
    PyErr_Clear();
    encoded = PyUnicode_AsEncodedString(text, "utf-8", "replace");
    if (encoded == nullptr) {
      return false;
    }
    utf8 = PyBytes_AS_STRING(encoded);
    size = PyBytes_GET_SIZE(encoded);
  }
  // Memory that is tracked by region, and a black box, outlive periods, so the id is then permanent.
  base::Names& names = base::Names::process();
  const std::string_view name(utf8, static_cast<std::size_t>(size));
  bool is_known = true;
  try {
    const bool is_kept = OpenRegions::wanted_by_memory() || base::BlackBox::has_room();
    known.id = is_kept ? names.intern(name) : names.intern_for_period(name);
    known.period = period;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    is_known = false;
  }
  Py_XDECREF(encoded);
  if (!is_known) {
    known.period = 0;
    return false;
  }
  Py_INCREF(text);
  Py_XSETREF(known.text, text);
  return true;
}

// A raw CPython type: a `with` is three calls, and pybind11's overhead would exceed the work. All functions run with
// the GIL.
struct RecordFunction {
  PyObject_HEAD;
  PyObject* name;
  PyObject* args;    // text for execution traces, null for none
  uint64_t strand;   // the task that entered. kAnyTask if several have the region open
  uint32_t thread;   // order of the log that entered. kAnyThread if several have
  uint32_t id;       // of the name, 0 until known
  uint32_t period;   // of base::Names, in which `id` is valid
  uint32_t session;  // of the last enter
  uint32_t open;     // enters of that session without an exit
  uint32_t pair;     // of CUDA events, while a pair times this region
  uint32_t detail;   // base::EnterDetail
};

constexpr uint32_t kNoId = UINT32_MAX;
constexpr uint32_t kAnyThread = UINT32_MAX;

// Programs make many regions, but few are alive at the same time.
std::array<RecordFunction*, 64> free_list{};
std::size_t free_count = 0;

// Threads that work for the program's threads (autograd's) have no regions and run no Python.
uint32_t current_region() noexcept {
  const PyThreadState* thread = this_thread();
  return thread != nullptr && runs_python(thread) ? OpenRegions::of_task(thread->context) : OpenRegions::of_program();
}

extern PyTypeObject record_function_type;

/// Whether this thread is excluded from the recording.
bool left_out(uint32_t listening) noexcept {
  return (listening & base::kListenProfiled) != 0 && !torch::OperatorRanges::profiled_here();
}

bool is_name(PyObject* name) {
  if (!PyUnicode_Check(name)) {
    PyErr_Format(PyExc_TypeError, "name must be a str, not %.200s", Py_TYPE(name)->tp_name);
    return false;
  }
  return true;
}

PyObject* make(PyObject* name, PyTypeObject* type = &record_function_type) {
  if (!is_name(name)) {
    return nullptr;
  }
  RecordFunction* self = nullptr;
  if (type != &record_function_type) {  // a class derived in Python
    self = reinterpret_cast<RecordFunction*>(type->tp_alloc(type, 0));
  } else if (free_count != 0) {
    self = free_list[--free_count];
    (void)PyObject_Init(reinterpret_cast<PyObject*>(self), type);
  } else {
    self = PyObject_New(RecordFunction, type);
  }
  if (self == nullptr) {
    return nullptr;
  }
  Py_INCREF(name);
  self->name = name;
  self->args = nullptr;
  self->id = kNoId;
  self->period = 0;
  self->session = 0;
  self->strand = kAnyTask;
  self->thread = kAnyThread;
  self->open = 0;
  self->pair = RegionTimer::kNoPair;
  self->detail = 0;
  return reinterpret_cast<PyObject*>(self);
}

PyObject* type_vectorcall(PyObject* type, PyObject* const* arguments, size_t flagged_count, PyObject* names) {
  if (PyVectorcall_NARGS(flagged_count) == 1 && names == nullptr) [[likely]] {
    return make(arguments[0]);
  }
  PyObject* positional = PyTuple_New(PyVectorcall_NARGS(flagged_count));
  PyObject* keywords = names != nullptr ? PyDict_New() : nullptr;
  if (positional == nullptr || (names != nullptr && keywords == nullptr)) {
    Py_XDECREF(positional);
    return nullptr;
  }
  const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
  for (Py_ssize_t index = 0; index < count; ++index) {
    PyTuple_SET_ITEM(positional, index, Py_NewRef(arguments[index]));
  }
  bool good = true;
  for (Py_ssize_t index = 0; names != nullptr && index < PyTuple_GET_SIZE(names); ++index) {
    good = good && PyDict_SetItem(keywords, PyTuple_GET_ITEM(names, index), arguments[count + index]) == 0;
  }
  PyObject* made =
      good ? reinterpret_cast<PyTypeObject*>(type)->tp_new(reinterpret_cast<PyTypeObject*>(type), positional, keywords)
           : nullptr;
  Py_DECREF(positional);
  Py_XDECREF(keywords);
  return made;
}

/// The name and args from the arguments, borrowed. Without a name a Python error is set.
std::pair<PyObject*, PyObject*> parse(PyObject* arguments, PyObject* keywords) {
  static const char* accepted[] = {"name", "args", nullptr};
  PyObject* name = nullptr;
  PyObject* args = nullptr;
  const int good = PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O:record_function", const_cast<char**>(accepted),
                                               &name, &args);
  return {good != 0 && is_name(name) ? name : nullptr, args != Py_None ? args : nullptr};
}

PyObject* type_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  if (type == &record_function_type) {
    const auto [name, args] = parse(arguments, keywords);
    PyObject* made = name != nullptr ? make(name) : nullptr;
    if (made != nullptr) {
      reinterpret_cast<RecordFunction*>(made)->args = Py_XNewRef(args);
    }
    return made;
  }
  // A derived class may take other arguments. Its __init__ calls ours with a name.
  PyObject* unnamed = PyUnicode_FromString("");
  PyObject* made = unnamed != nullptr ? make(unnamed, type) : nullptr;
  Py_XDECREF(unnamed);
  return made;
}

int initialize(PyObject* object, PyObject* arguments, PyObject* keywords) {
  const auto [name, args] = parse(arguments, keywords);
  if (name == nullptr) {
    return -1;
  }
  auto* self = reinterpret_cast<RecordFunction*>(object);
  Py_INCREF(name);
  Py_XSETREF(self->name, name);
  Py_XSETREF(self->args, Py_XNewRef(args));
  self->id = kNoId;
  self->period = 0;
  return 0;
}

void dealloc(PyObject* object) {
  auto* self = reinterpret_cast<RecordFunction*>(object);
  Py_CLEAR(self->name);
  Py_CLEAR(self->args);
  if (Py_TYPE(object) != &record_function_type) {
    Py_TYPE(object)->tp_free(object);
  } else if (free_count < free_list.size()) {
    free_list[free_count++] = self;
  } else {
    PyObject_Free(self);
  }
}

// Functions called before a region opens and after it closes, on the same thread. With the GIL.
struct Observers {
  bool in_sessions = false;
  bool elsewhere = false;            // while no session records
  std::size_t open = 0;              // regions whose opening was observed
  PyObject* before_enter = nullptr;  // owned
  PyObject* after_exit = nullptr;    // likewise
};
Observers observers;

/// The function's result. False if it fails.
bool call_about(PyObject* function, PyObject* region) {
  const torch::OperatorCallbacks::StandIn stand_in;
  PyObject* done = PyObject_CallOneArg(function, region);
  if (done == nullptr) {
    PyErr_WriteUnraisable(function);
  }
  Py_XDECREF(done);
  return done == Py_True;
}

PyObject* enter(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<RecordFunction*>(object);
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  if ((listening != 0 ? observers.in_sessions : observers.elsewhere) &&
      EnterDetail::kind(self->detail) == base::RegionKind::Region) [[unlikely]] {
    observers.open += call_about(observers.before_enter, object) ? 1 : 0;
  }
  const bool asked = OpenRegions::wanted();
  if (listening != 0 || asked) {
    const uint32_t period = base::Names::period();
    if (self->period != period) {
      if (!NameIds::find(self->name, period, &self->id)) {
        return nullptr;
      }
      self->period = period;
    }
  }
  if (asked) {
    OpenRegions::enter(self->id, PyThreadState_Get()->context);
  }
  if (listening != 0) {
    const uint32_t session = listening >> base::kListenBits;
    if (self->session != session) {
      self->session = session;
      self->open = 0;
      self->pair = RegionTimer::kNoPair;  // the timer took it back when the session began
    }
    if (EventLog* log = left_out(listening) ? nullptr : EventLogs::current(); log != nullptr) [[likely]] {
      const uint64_t strand = select_task(*log, session);
      self->strand = self->open == 0 || self->strand == strand ? strand : kAnyTask;
      const uint32_t thread = log->order.load(std::memory_order_relaxed);
      self->thread = self->open == 0 || self->thread == thread ? thread : kAnyThread;
      ++self->open;
      if ((listening & base::kListenStacks) != 0) [[unlikely]] {
        base::append_stack(*log);
      }
      if (self->args != nullptr && torch::OperatorCallbacks::process().logs_inputs()) [[unlikely]] {
        torch::log_text_input(*log);
      }
      log->append(base::ticks(), self->id, Op::Enter, self->detail);
      if ((listening & base::kListenGpuTime) != 0 && self->pair == RegionTimer::kNoPair) [[unlikely]] {
        RegionTimer* timer = RegionTimer::current().load(std::memory_order_acquire);
        self->pair = timer != nullptr ? timer->begin() : RegionTimer::kNoPair;
      }
    }
  }
  return Py_NewRef(object);
}

PyObject* exit(PyObject* object, PyObject* const* exception, Py_ssize_t count) {
  auto* self = reinterpret_cast<RecordFunction*>(object);
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  if (OpenRegions::wanted() && self->id != kNoId) {
    OpenRegions::exit(self->id, PyThreadState_Get()->context);
  }
  // Regions entered before this recording, or while nothing is recorded, end nothing here.
  if (listening != 0 && self->session == listening >> base::kListenBits && self->open != 0) {
    --self->open;
    if (EventLog* log = left_out(listening) ? nullptr : EventLogs::current(); log != nullptr) [[likely]] {
      // Selects the task that entered: another task may close a generator. For shared regions, selects the current
      // task.
      const bool is_elsewhere = self->thread != log->order.load(std::memory_order_relaxed) &&
                                self->thread != kAnyThread && self->strand != kAnyTask;
      select_strand(*log, self->strand, self->session);
      if (self->pair != RegionTimer::kNoPair) [[unlikely]] {
        RegionTimer* timer = RegionTimer::current().load(std::memory_order_acquire);
        if (timer != nullptr && timer->end(self->pair)) {
          log->append(self->pair, self->id, Op::GpuTime);
        }
        self->pair = RegionTimer::kNoPair;
      }
      uint32_t detail = base::ExitDetail::of_call(self->detail);
      detail |= count != 0 && exception[0] != Py_None ? base::ExitDetail::kByException : 0;
      const uint64_t ticks = base::ticks();
      if (is_elsewhere) [[unlikely]] {
        log->append(ticks, self->id, Op::Exit, detail | base::ExitDetail::kElsewhere);
        base::EndsElsewhere::process().add(ticks);
      } else {
        log->append(ticks, self->id, Op::Exit, detail);
      }
    }
  }
  if (observers.open != 0 && EnterDetail::kind(self->detail) == base::RegionKind::Region) [[unlikely]] {
    observers.open -= call_about(observers.after_exit, object) ? 1 : 0;
  }
  Py_RETURN_NONE;
}

PyObject* observe_regions(PyObject*, PyObject* arguments) {
  PyObject* before = nullptr;
  PyObject* after = nullptr;
  int in_sessions = 0;
  int elsewhere = 0;
  if (PyArg_ParseTuple(arguments, "OOpp:observe_regions", &before, &after, &in_sessions, &elsewhere) == 0) {
    return nullptr;
  }
  observers.in_sessions = in_sessions != 0;
  observers.elsewhere = elsewhere != 0;
  Py_XSETREF(observers.before_enter, Py_NewRef(before));
  Py_XSETREF(observers.after_exit, Py_NewRef(after));
  Py_RETURN_NONE;
}

PyObject* decorate(PyObject* object, PyObject* arguments, PyObject* keywords) {
  PyObject* function = nullptr;
  static const char* accepted[] = {"func", nullptr};
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O", const_cast<char**>(accepted), &function) == 0) {
    return nullptr;
  }
  PyObject* regions = PyImport_ImportModule("gpuscope.regions");
  if (regions == nullptr) {
    return nullptr;
  }
  PyObject* decorated = PyObject_CallMethod(regions, "decorate", "OO", object, function);
  Py_DECREF(regions);
  return decorated;
}

PyObject* get_name(PyObject* object, void*) { return Py_NewRef(reinterpret_cast<RecordFunction*>(object)->name); }

PyObject* get_args(PyObject* object, void*) {
  PyObject* args = reinterpret_cast<RecordFunction*>(object)->args;
  return Py_NewRef(args != nullptr ? args : Py_None);
}

PyObject* represent(PyObject* object) {
  return PyUnicode_FromFormat("record_function(%R)", reinterpret_cast<RecordFunction*>(object)->name);
}

/// A new region of the same name: a copy has nothing open.
PyObject* reduce(PyObject* object, PyObject*) {
  const auto* self = reinterpret_cast<RecordFunction*>(object);
  return self->args != nullptr ? Py_BuildValue("(O(OO))", Py_TYPE(object), self->name, self->args)
                               : Py_BuildValue("(O(O))", Py_TYPE(object), self->name);
}

PyObject* region_of_kind(PyObject*, PyObject* arguments) {
  PyObject* name = nullptr;
  int kind = 0;
  if (PyArg_ParseTuple(arguments, "Oi:region_of_kind", &name, &kind) == 0) {
    return nullptr;
  }
  if (kind < 0 || kind > static_cast<int>(base::RegionKind::Module)) {
    PyErr_Format(PyExc_ValueError, "kind is %d; kinds are 0 to %d", kind, static_cast<int>(base::RegionKind::Module));
    return nullptr;
  }
  PyObject* region = make(name);
  if (region != nullptr) {
    reinterpret_cast<RecordFunction*>(region)->detail = EnterDetail::make(base::RegionKind{static_cast<uint8_t>(kind)});
  }
  return region;
}

// Calls are numbered in turn, so that a running call never shares its number with one that ended long ago.
uint32_t last_call = 0;

PyObject* region_of_call(PyObject*, PyObject* object) {
  if (!PyObject_TypeCheck(object, &record_function_type)) {
    PyErr_Format(PyExc_TypeError, "region must be a record_function, not %.200s", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  const auto* whole = reinterpret_cast<RecordFunction*>(object);
  PyObject* made = make(whole->name);
  if (made != nullptr) {
    auto* part = reinterpret_cast<RecordFunction*>(made);
    last_call = last_call + 1 == EnterDetail::kDomains ? 1 : last_call + 1;
    part->args = Py_XNewRef(whole->args);
    part->id = whole->id;
    part->period = whole->period;
    part->detail = EnterDetail::make(EnterDetail::kind(whole->detail), 0, last_call);
  }
  return made;
}

PyObject* mark(PyObject*, PyObject* name) {
  if (!PyUnicode_Check(name)) {
    PyErr_Format(PyExc_TypeError, "name must be a str, not %.200s", Py_TYPE(name)->tp_name);
    return nullptr;
  }
  uint32_t id = 0;
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  if (listening != 0) {
    if (!NameIds::find(name, base::Names::period(), &id)) {
      return nullptr;
    }
    if (EventLog* log = left_out(listening) ? nullptr : EventLogs::current(); log != nullptr) {
      select_task(*log, listening >> base::kListenBits);
      log->append(base::ticks(), id, Op::Mark);
    }
  }
  Py_RETURN_NONE;
}

/// Calls the function, and a second time if an exception ended it. Then raises that exception.
PyObject* call_resumed(PyObject* function, PyObject* const* arguments, Py_ssize_t count) {
  PyObject* result = PyObject_Vectorcall(function, arguments, static_cast<std::size_t>(count), nullptr);
  if (result == nullptr) {
    PyObject* type = nullptr;
    PyObject* value = nullptr;
    PyObject* traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject* again = PyObject_Vectorcall(function, arguments, static_cast<std::size_t>(count), nullptr);
    if (again == nullptr) {
      PyErr_Clear();
    }
    Py_XDECREF(again);
    PyErr_Restore(type, value, traceback);
  }
  return result;
}

PyMethodDef resumed_call = {"resumed", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_resumed)),
                            METH_FASTCALL, nullptr};

PyObject* resumed(PyObject*, PyObject* function) {
  PyObject* call = PyCFunction_New(&resumed_call, function);
  PyObject* method = call != nullptr ? PyInstanceMethod_New(call) : nullptr;
  Py_XDECREF(call);
  return method;
}

PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, "Opens the region."},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(exit)), METH_FASTCALL,
     "Closes the region; exceptions pass through."},
    {"__reduce__", reduce, METH_NOARGS, "For copy and pickle: a region of the same name."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef getters[] = {{"name", get_name, nullptr, "The region's name.", nullptr},
                         {"args", get_args, nullptr, "Text beside the name, for execution traces; or None.", nullptr},
                         {nullptr, nullptr, nullptr, nullptr, nullptr}};
// Docstrings begin with the signature for inspect.signature, then the typed signature for the stub.
PyMethodDef mark_method = {
    "mark", mark, METH_O,
    "mark(name, /)\n--\n\nmark(name: str, /) -> None\n\nNotes an instant on the calling thread's timeline."};

PyMethodDef region_of_kind_method = {
    "region_of_kind", region_of_kind, METH_VARARGS,
    "region_of_kind(name, kind, /)\n--\n\nregion_of_kind(name: str, kind: int, /) -> record_function\n\n"
    "A region of another kind than the user's own: 1 an operator, 2 a library's annotation, 3 a module."};

PyMethodDef region_of_call_method = {"region_of_call", region_of_call, METH_O,
                                     "region_of_call(region, /)\n--\n\n"
                                     "region_of_call(region: object, /) -> record_function\n\n"
                                     "The region for one call of a coroutine or generator, to be open whenever its "
                                     "body runs: all count as one, and the\n"
                                     "call ends when an exception, such as StopIteration, leaves it."};

PyMethodDef observe_regions_method = {
    "observe_regions", observe_regions, METH_VARARGS,
    "observe_regions(before_enter, after_exit, in_sessions, elsewhere, /)\n--\n\n"
    "observe_regions(before_enter: object, after_exit: object, in_sessions: bool, elsewhere: bool, /) -> None\n\n"
    "Has each region of the program given to these while a session collects, while none does, both or neither. Each "
    "returns whether it did anything: while nothing is open the second is not called."};

PyMethodDef resumed_method = {
    "resumed", resumed, METH_O,
    "resumed(function, /)\n--\n\nresumed(function: object, /) -> typing.Any\n\n"
    "A method that calls the function again when an exception ended it, and raises that: for what goes on where it was "
    "interrupted. A Ctrl-C on the way into a function of Python would otherwise keep all of it from happening."};

constexpr const char* kDoc =
    "record_function(name, args=None)\n--\n\n"
    "A named region of the program: a context manager, reusable and re-entrant, and a decorator.\n\n"
    "GPU work launched inside is attributed to it. While no profiler runs it costs next to nothing.";

PyTypeObject make_type() {
  PyTypeObject type{};
  type.ob_base = PyVarObject{PyObject_HEAD_INIT(nullptr) 0};
  type.tp_name = "gpuscope._core.record_function";
  type.tp_doc = kDoc;
  type.tp_basicsize = sizeof(RecordFunction);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  type.tp_new = type_new;
  type.tp_init = initialize;
  type.tp_vectorcall = type_vectorcall;
  type.tp_dealloc = dealloc;
  type.tp_call = decorate;
  type.tp_repr = represent;
  type.tp_methods = methods;
  type.tp_getset = getters;
  return type;
}

PyTypeObject record_function_type = make_type();

}  // namespace

pybind11::object enter_region(PyObject* name, base::RegionKind kind) {
  auto region = pybind11::reinterpret_steal<pybind11::object>(make(name));
  if (region) {
    reinterpret_cast<RecordFunction*>(region.ptr())->detail = EnterDetail::make(kind);
  }
  PyObject* const entered = region ? enter(region.ptr(), nullptr) : nullptr;
  if (entered == nullptr) {
    throw pybind11::error_already_set();
  }
  Py_DECREF(entered);
  return region;
}

void exit_region(PyObject* region) noexcept {
  PyObject* const left = exit(region, nullptr, 0);
  if (left == nullptr) {
    PyErr_WriteUnraisable(region);
  }
  Py_XDECREF(left);
}

void bind_regions(pybind11::module_& module) {
  base::region_source.store(current_region, std::memory_order_release);
  if (!prepare_tasks() || PyType_Ready(&record_function_type) < 0) {
    throw pybind11::error_already_set();
  }
  module.add_object("record_function",
                    pybind11::reinterpret_borrow<pybind11::object>(reinterpret_cast<PyObject*>(&record_function_type)));
  for (PyMethodDef* method :
       {&mark_method, &region_of_kind_method, &region_of_call_method, &observe_regions_method, &resumed_method}) {
    PyObject* function = PyCFunction_NewEx(method, nullptr, pybind11::str("gpuscope._core").ptr());
    if (function == nullptr) {
      throw pybind11::error_already_set();
    }
    module.add_object(method->ml_name, pybind11::reinterpret_steal<pybind11::object>(function));
  }
}

}  // namespace gpuscope::bindings
