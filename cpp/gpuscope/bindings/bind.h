// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpuscope/base/hooks.h"
#include "gpuscope/session/session.h"

/// Texts of drivers, files and the system need not be UTF-8: in all that goes to Python what is none becomes U+FFFD.
template <>
struct pybind11::detail::type_caster<std::string> : string_caster<std::string> {
  static handle cast(const std::string& text, return_value_policy /*policy*/, handle /*parent*/) {
    PyObject* const made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (made == nullptr) {
      throw error_already_set();
    }
    return made;
  }
};

namespace gpuscope::bindings {

// One function a file of this folder; module.cpp calls them in this order.
void bind_store(pybind11::module_& module);
void bind_analysis(pybind11::module_& module);
void bind_readers(pybind11::module_& module);
void bind_regions(pybind11::module_& module);
void bind_timing(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_counters(pybind11::module_& module);
void bind_signals(pybind11::module_& module);
void bind_torch(pybind11::module_& module);
void bind_torch_modules(pybind11::module_& module);
void bind_python_functions(pybind11::module_& module);
void bind_python_samples(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_nvml(pybind11::module_& module);
void bind_environment(pybind11::module_& module);

/// The process's libcuda and libcupti, opened at the first call, never closed. With the GIL.
session::Vendor& vendor();

/// Likewise libnvidia-ml. Any thread.
const driver::Nvml& libnvidia_ml();

/// A copy of the values.
template <class T>
pybind11::array_t<T> to_array(const std::vector<T>& values) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

/// Opens a region of that kind on the calling thread. With the GIL; throws error_already_set.
pybind11::object enter_region(PyObject* name, base::RegionKind kind);
/// Closes it; what fails is told by sys.unraisablehook.
void exit_region(PyObject* region) noexcept;

/// Whether Python frames can be read in this version of Python.
bool knows_stacks() noexcept;

/// Makes the Python frames of the calling thread the base::stack_source. Needs the GIL; false where they cannot be
/// read.
bool watch_stacks();

/// The folder of this package, with a slash at its end. With the GIL at the first call.
const std::string& own_folder();

/// Appends a text of Python; without the GIL too, as CPython's own conversion, which keeps its result, is not.
void append_utf8(std::string& utf8, PyObject* text);

/// What Python calls a thread.
struct ThreadName {
  uint64_t system_id;
  std::string name;
};
/// The threads that run now, and those that opened a region since the last call; without the main thread if it has the
/// name that Python gave it. With the GIL.
std::vector<ThreadName> python_thread_names();
/// Keeps the calling thread's threading.Thread for python_thread_names, which then knows its name when it is gone. With
/// the GIL.
void note_thread() noexcept;

/// What Python keeps of the calling thread; null where it never ran Python, and while Python ends. Without the GIL.
const PyThreadState* this_thread() noexcept;

/// Whether a thread is somewhere in a Python program; always true where frames cannot be read.
bool runs_python(const PyThreadState* thread) noexcept;

}  // namespace gpuscope::bindings
