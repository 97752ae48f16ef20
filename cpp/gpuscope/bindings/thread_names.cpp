// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/bindings/bind.h"

namespace gpuscope::bindings {
namespace {

// The threading.Thread of each thread that opened a region since the last query. A thread may get its name late, and
// may have ended by then.
PyObject* named_threads = nullptr;
constexpr Py_ssize_t kMaxNamedThreads = 4096;  // bounds the memory of programs that start threads without end

}  // namespace

void note_thread() noexcept {
  static PyObject* const module_name = PyUnicode_InternFromString("threading");
  PyObject* threading = module_name != nullptr ? PyImport_GetModule(module_name) : nullptr;
  // Not current_thread(), which would make an object for a foreign thread.
  PyObject* active = threading != nullptr ? PyObject_GetAttrString(threading, "_active") : nullptr;
  PyObject* key = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
  PyObject* thread =
      active != nullptr && PyDict_Check(active) && key != nullptr ? PyDict_GetItemWithError(active, key) : nullptr;
  if (thread != nullptr) {
    named_threads = named_threads != nullptr ? named_threads : PyList_New(0);
    if (named_threads != nullptr && PyList_GET_SIZE(named_threads) < kMaxNamedThreads) {
      (void)PyList_Append(named_threads, thread);
    }
  }
  Py_XDECREF(key);
  Py_XDECREF(active);
  Py_XDECREF(threading);
  PyErr_Clear();
}

std::vector<ThreadName> python_thread_names() {
  namespace py = pybind11;
  std::vector<ThreadName> names;
  try {
    const py::dict modules = py::module_::import("sys").attr("modules");
    if (!modules.contains("threading")) {
      return names;
    }
    const py::object threading = modules["threading"];
    const py::object main_thread = threading.attr("main_thread")();
    const auto add = [&](const py::handle& thread) {
      const py::object system_id = py::getattr(thread, "native_id", py::none());
      const py::str name = thread.attr("name");
      const bool is_given = !(thread.is(main_thread) && name.equal(py::str("MainThread"))) &&
                            !py::str(py::type::of(thread).attr("__name__")).equal(py::str("_DummyThread"));
      if (is_given && !system_id.is_none()) {
        const auto encoded = name.attr("encode")("utf-8", "replace").cast<std::string>();
        names.push_back({system_id.cast<uint64_t>(), encoded});
      }
    };
    for (const py::handle thread : threading.attr("enumerate")()) {
      add(thread);
    }
    const auto noted = py::reinterpret_steal<py::list>(std::exchange(named_threads, nullptr));
    py::list alive;
    for (std::size_t index = 0; noted && index < noted.size(); ++index) {
      const py::object thread = noted[index];
      if (thread.attr("is_alive")().cast<bool>()) {
        alive.append(thread);
      } else {
        add(thread);
      }
    }
    named_threads = alive.release().ptr();
  } catch (const py::error_already_set& error) {  // a thread object of the program's own class: the system's names stay
    if (!error.matches(PyExc_Exception)) {
      throw;  // KeyboardInterrupt belongs to the program
    }
    return names;
  }
  return names;
}

}  // namespace gpuscope::bindings
