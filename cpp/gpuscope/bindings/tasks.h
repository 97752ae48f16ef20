// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "gpuscope/base/event_log.h"

namespace gpuscope::bindings {

// Each asyncio task, and each function of asyncio.to_thread, runs in its own context. Regions of a task nest within
// each other. The outermost ones nest in the regions that were open when the context was copied.
//
// A context variable contains this place as an Origin. It is replaced before a region opens or closes, but only if the
// context may have been copied since. Setting a variable each time would cost more than the region. Copies share the
// immutable map of variables, and derived maps share its nodes. So while the map, and each node on the path to the
// Origin, has one owner, no other context has the Origin.
//
// Everything runs with the GIL.

constexpr uint64_t kAnyTask = 0;  // not a key: keys contain a session number, never 0

/// Py_None if the object is gone. Python 3.15 removed PyWeakref_GetObject, and its successor costs a reference.
inline const PyObject* target_of(const PyObject* weak_reference) noexcept {
  return reinterpret_cast<const PyWeakReference*>(weak_reference)->wr_object;
}

/// The value of the context variable: the place where tasks created by a task begin.
struct Origin {
  PyObject_HEAD;
  PyObject* context;      // weak reference to its context, as another context may get the address
  PyObject* variables;    // weak reference to the map of `entry`
  PyObject* entry;        // the map root's entry on the path: this object, or a node if hashes agree. Not owned
  Py_ssize_t references;  // references to `entry` while nothing is shared, or kShared
  uint32_t session;
  uint32_t number;  // base::Op::Origin

  // Another task has logged this origin, or sharing is unknown.
  static constexpr Py_ssize_t kShared = -1;

  bool is_of(const PyObject* of) const noexcept { return target_of(context) == of; }
  /// Whether no other task can have the origin. The log holds the second reference. Another map would share the entry,
  /// so its reference count is unchanged only if the task's map is. (None has many references.)
  bool is_alone() const noexcept {
    return Py_REFCNT(target_of(variables)) == 1 && Py_REFCNT(entry) == references && Py_REFCNT(this) == 2;
  }
};

/// Prepares the process for tasks, once. False with a Python error set.
bool prepare_tasks();

/// Logs that the next events belong to the current task, and the origin for its new tasks.
void begin_task(base::EventLog& log, uint32_t session) noexcept;

/// Assigns the next events to the current task. Returns its key, or kAnyTask if memory ran out.
inline uint64_t select_task(base::EventLog& log, uint32_t session) noexcept {
  const PyObject* context = PyThreadState_Get()->context;
  const auto* origin = static_cast<const Origin*>(log.task);
  // A log taken over from another thread has that thread's origin, and no strand yet.
  if (origin == nullptr || log.strand == 0 || !origin->is_of(context) || origin->session != session ||
      !origin->is_alone()) [[unlikely]] {
    begin_task(log, session);
    return log.task != nullptr ? log.strand : kAnyTask;
  }
  return log.strand;
}

/// The slow path of select_strand.
void select_another(base::EventLog& log, uint64_t strand, uint32_t session) noexcept;

/// Assigns the next events to the task with this key, which need not be the current one.
inline void select_strand(base::EventLog& log, uint64_t strand, uint32_t session) noexcept {
  const auto* origin = static_cast<const Origin*>(log.task);
  if (log.strand != strand || origin == nullptr || !origin->is_alone()) [[unlikely]] {
    select_another(log, strand, session);
  }
}

}  // namespace gpuscope::bindings
