// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpuscope/base/hooks.h"
#include "gpuscope/session/session.h"

/// Texts of drivers, files and the system may be invalid UTF-8. Python gets U+FFFD for invalid bytes.
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

// One function per file of this folder. module.cpp calls them in this order.
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
void bind_black_box(pybind11::module_& module);

/// The process's libcuda and libcupti, opened by the first call and never closed. With the GIL.
session::Vendor& vendor();

/// Likewise libnvidia-ml. Any thread.
const driver::Nvml& libnvidia_ml();

/// A copy of the values.
template <class T>
pybind11::array_t<T> to_array(const std::vector<T>& values) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

/// Opens a region of the given kind on the calling thread. With the GIL. Throws error_already_set.
pybind11::object enter_region(PyObject* name, base::RegionKind kind);
/// Closes the region. sys.unraisablehook gets errors.
void exit_region(PyObject* region) noexcept;

/// Whether this version of Python has readable frames.
bool knows_stacks() noexcept;

/// Makes the Python frames of the calling thread the base::stack_source. With the GIL. False if frames cannot be read.
bool watch_stacks();

/// The folder of this package, with a trailing slash. The first call needs the GIL.
const std::string& own_folder();

/// Appends a Python text as UTF-8. Works without the GIL: CPython's own conversion does not, as it caches its result.
void append_utf8(std::string& utf8, PyObject* text);

/// Python's name of a thread.
struct ThreadName {
  uint64_t system_id;
  std::string name;
};
/// The threads that run now and those that opened a region since the last call. Omits the main thread if it has
/// Python's default name. With the GIL.
std::vector<ThreadName> python_thread_names();
/// Keeps the calling thread's threading.Thread, so that python_thread_names knows its name after it ends. With the GIL.
void note_thread() noexcept;

/// Python's state of the calling thread. Null if it never ran Python, or Python is ending. Without the GIL.
const PyThreadState* this_thread() noexcept;

/// Whether a thread is inside a Python program. Always true if frames cannot be read.
bool runs_python(const PyThreadState* thread) noexcept;

}  // namespace gpuscope::bindings
