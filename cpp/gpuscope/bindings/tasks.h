// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "gpuscope/base/event_log.h"

namespace gpuscope::bindings {

// Each asyncio task runs in a context of its own, as does what asyncio.to_thread runs; regions of one task nest among
// themselves, and its outermost ones lie in what was open where the context was copied.
//
// A context variable carries that place: its value is an Origin, which is replaced before a region opens or closes, but
// only if the context may have been copied since. Setting a variable each time would cost more than the region. Copies
// share the immutable map of the variables, and maps made of it share its nodes: as long as the map and what lies in it
// on the way to the Origin have one owner each, nobody else has that.
//
// All of it runs with the GIL.

constexpr uint64_t kAnyTask = 0;  // a session's number is part of every task's key, and none is 0

/// Py_None once the object is gone. PyWeakref_GetObject went in Python 3.15, its successor costs a reference.
inline const PyObject* target_of(const PyObject* weak_reference) noexcept {
  return reinterpret_cast<const PyWeakReference*>(weak_reference)->wr_object;
}

/// The value of the context variable: where the tasks that a task creates begin.
struct Origin {
  PyObject_HEAD;
  PyObject* context;      // a weak reference to that which it is of: another may get the address
  PyObject* variables;    // likewise to the map that `entry` is of
  PyObject* entry;        // what the map's root has on the way here: this, or a node where hashes agree; not owned
  Py_ssize_t references;  // that `entry` has while nothing is shared; kShared
  uint32_t session;
  uint32_t number;  // base::Op::Origin

  // Another task has logged that it is of this origin, or that could not be told.
  static constexpr Py_ssize_t kShared = -1;

  bool is_of(const PyObject* of) const noexcept { return target_of(context) == of; }
  /// Whether no task can have the origin but the one that it is of, which the log refers to as well. What that task had
  /// when it was looked into is what it has: of another map, it would share the entry. (None has references enough.)
  bool is_alone() const noexcept {
    return Py_REFCNT(target_of(variables)) == 1 && Py_REFCNT(entry) == references && Py_REFCNT(this) == 2;
  }
};

/// Makes what the others need, once in a process: false with a Python error set.
bool prepare_tasks();

/// Logs that the events which follow are the current task's, and which origin its own tasks have.
void begin_task(base::EventLog& log, uint32_t session) noexcept;

/// Has the events that follow be those of the current task. Returns its key; kAnyTask when memory ran out.
inline uint64_t select_task(base::EventLog& log, uint32_t session) noexcept {
  const PyObject* context = PyThreadState_Get()->context;
  const auto* origin = static_cast<const Origin*>(log.task);
  // A log that another thread had has the origin of that one's task, and no strand yet.
  if (origin == nullptr || log.strand == 0 || !origin->is_of(context) || origin->session != session ||
      !origin->is_alone()) [[unlikely]] {
    begin_task(log, session);
    return log.task != nullptr ? log.strand : kAnyTask;
  }
  return log.strand;
}

/// As select_strand, which it is the rare part of.
void select_another(base::EventLog& log, uint64_t strand, uint32_t session) noexcept;

/// Likewise those of the task with that key, which need not be the current one.
inline void select_strand(base::EventLog& log, uint64_t strand, uint32_t session) noexcept {
  const auto* origin = static_cast<const Origin*>(log.task);
  if (log.strand != strand || origin == nullptr || !origin->is_alone()) [[unlikely]] {
    select_another(log, strand, session);
  }
}

}  // namespace gpuscope::bindings
