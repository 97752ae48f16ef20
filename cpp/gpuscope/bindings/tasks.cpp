// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/tasks.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "gpuscope/base/event_log.h"
#include "gpuscope/bindings/bind.h"

namespace gpuscope::bindings {
namespace {

using base::EventLog;
using base::Op;

// x86-64 and AArch64 programs have addresses of 47 or 48 bits.
constexpr int kAddressBits = 48;

/// PyContext. Its first fields are the same in Python 3.10 to 3.15.
struct Context {
  PyObject_HEAD;
  PyObject* around;
  PyObject* variables;
  PyObject* weak_references;
  int entered;  // by Context.run. 0 for the context with which a thread began
};

PyTypeObject make_origin_type() {
  PyTypeObject type{};
  type.ob_base = PyVarObject{PyObject_HEAD_INIT(nullptr) 0};
  type.tp_name = "gpuscope._core.Origin";
  type.tp_basicsize = sizeof(Origin);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_dealloc = [](PyObject* object) {
    Py_XDECREF(reinterpret_cast<Origin*>(object)->context);
    Py_XDECREF(reinterpret_cast<Origin*>(object)->variables);
    PyObject_Free(object);
  };
  return type;
}

PyTypeObject origin_type = make_origin_type();
PyObject* origin_variable = nullptr;
uint32_t last_origin = 0;

// The session's number is part of the key, so that every session logs the task again.
uint64_t strand_of(const PyObject* context, uint32_t session) noexcept {
  return reinterpret_cast<uint64_t>(context) ^ (static_cast<uint64_t>(session) << kAddressBits);
}

/// The key for no context. Keys of contexts are even.
uint64_t no_strand(uint32_t session) noexcept { return strand_of(nullptr, session) | 1; }

PyObject* variables_of(const PyObject* context) noexcept {
  return reinterpret_cast<const Context*>(context)->variables;
}

/// Searches an origin in a node of the map. Uses tp_traverse like the garbage collector, as nodes are internal to
/// CPython.
struct Search {
  const Origin* wanted;
  PyObject* entry = nullptr;  // of the node

  bool visit(PyObject* node) noexcept {
    const traverseproc traverse = Py_TYPE(node)->tp_traverse;
    return traverse != nullptr && traverse(node, take, this) != 0;
  }
  static int take(PyObject* object, void* argument) noexcept {
    auto* search = static_cast<Search*>(argument);
    search->entry = object;
    if (object == reinterpret_cast<const PyObject*>(search->wanted)) {
      return 1;
    }
    Search inside{search->wanted};
    return std::string_view(Py_TYPE(object)->tp_name).starts_with("hamt_") && inside.visit(object) &&
                   inside.entry == reinterpret_cast<const PyObject*>(search->wanted)
               ? 1
               : 0;
  }
};

/// Finds the origin in the map of its context.
void locate(const PyObject* context, Origin* origin) noexcept {
  PyObject* root = nullptr;
  PyObject* variables = variables_of(context);
  (void)Py_TYPE(variables)->tp_traverse(
      variables,
      [](PyObject* object, void* found) {
        *static_cast<PyObject**>(found) = object;
        return 1;
      },
      &root);
  Search search{origin};
  PyObject* seen = PyWeakref_NewRef(variables, nullptr);
  if (seen != nullptr && root != nullptr && search.visit(root)) {
    origin->entry = search.entry;
    origin->references = search.entry == reinterpret_cast<PyObject*>(origin) ? 2 : 1;
    Py_SETREF(origin->variables, seen);
  } else {  // out of memory, or a map with hundreds of variables
    PyErr_Clear();
    Py_XDECREF(seen);
    origin->references = Origin::kShared;
  }
}

/// A new origin for tasks that the current context creates from now on. Null if memory ran out. Owned.
Origin* renew_origin(uint32_t session) noexcept {
  PyObject* context = PyThreadState_Get()->context;
  auto* origin = PyObject_New(Origin, &origin_type);
  PyObject* token = nullptr;
  if (origin != nullptr) {
    last_origin += last_origin == UINT32_MAX ? 2 : 1;
    origin->context = PyWeakref_NewRef(context, nullptr);
    origin->variables = Py_XNewRef(origin->context);
    origin->entry = reinterpret_cast<PyObject*>(origin);
    origin->references = Origin::kShared;
    origin->session = session;
    origin->number = last_origin;
    token =
        origin->context != nullptr ? PyContextVar_Set(origin_variable, reinterpret_cast<PyObject*>(origin)) : nullptr;
    Py_XDECREF(token);
  }
  if (token == nullptr) {
    PyErr_Clear();
    Py_CLEAR(origin);
  } else {
    locate(context, origin);
  }
  return origin;
}

/// Disables the garbage collector. Before Python 3.12 any allocation may start it, and finalizers may open and close
/// regions. With the GIL.
class NoCollection {
 public:
  NoCollection() noexcept : was_enabled_(PyGC_Disable() != 0) {}
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;
  ~NoCollection() {
    if (was_enabled_) {
      PyGC_Enable();
    }
  }

 private:
  bool was_enabled_;
};

}  // namespace

bool prepare_tasks() {
  origin_variable = PyContextVar_New("gpuscope.origin", nullptr);
  return origin_variable != nullptr && PyType_Ready(&origin_type) == 0;
}

void begin_task(EventLog& log, uint32_t session) noexcept {
  const NoCollection no_collection;
  if (PyThreadState_Get()->context == nullptr) {  // a thread has no context before the first use
    Py_XDECREF(PyContext_CopyCurrent());
    PyErr_Clear();
  }
  PyObject* context = PyThreadState_Get()->context;
  PyObject* found = nullptr;
  if (context == nullptr || PyContextVar_Get(origin_variable, nullptr, &found) < 0) {
    PyErr_Clear();
  }
  auto* origin = reinterpret_cast<Origin*>(found);
  if (origin != nullptr && origin->session != session) {
    Py_CLEAR(origin);
  }
  const bool begins = origin == nullptr || !origin->is_of(context);
  const uint64_t strand = strand_of(context, session);
  if ((log.strand ^ strand) >> kAddressBits != 0) {
    note_thread();  // another session
  }
  if (begins || log.strand != strand) {
    const bool is_task = context != nullptr && reinterpret_cast<Context*>(context)->entered != 0;
    log.strand = strand;
    log.append(strand, origin != nullptr ? origin->number : 0, Op::Strand,
               (begins ? base::kStrandBegins : 0U) | (is_task ? base::kStrandIsTask : 0U));
  }
  if (begins && origin != nullptr) {
    origin->references = Origin::kShared;
  }
  Py_XDECREF(static_cast<PyObject*>(std::exchange(log.task, origin)));
  if (!begins && origin->references != Origin::kShared && target_of(origin->variables) != variables_of(context)) {
    locate(context, origin);
  }
  if (context != nullptr && (begins || !origin->is_alone())) {
    Origin* renewed = renew_origin(session);
    log.append(0, renewed != nullptr ? renewed->number : 0, Op::Origin);
    Py_XDECREF(static_cast<PyObject*>(std::exchange(log.task, renewed)));
  }
  if (log.task == nullptr) {
    log.strand = no_strand(session);
  }
}

void select_another(EventLog& log, uint64_t strand, uint32_t session) noexcept {
  if (strand == kAnyTask || strand == strand_of(PyThreadState_Get()->context, session)) {
    select_task(log, session);
  } else {  // the origin stays: tasks it created that have not begun use its place from now on
    log.append(strand, 0, Op::Strand, base::kStrandIsTask);
    log.strand = no_strand(session);
    Py_XDECREF(static_cast<PyObject*>(std::exchange(log.task, nullptr)));
  }
}

}  // namespace gpuscope::bindings
