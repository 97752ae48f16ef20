// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/function_names.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"

#ifdef GPUSCOPE_KNOWS_FRAMES

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

// Bounds the memory of programs that make code or modules without end.
constexpr std::size_t kMaxKept = std::size_t{1} << 16;

bool is_own(const PyCFunctionObject& function) {
  constexpr std::string_view kPackage = "gpuscope.";
  std::string module;
  if (function.m_module != nullptr && PyUnicode_Check(function.m_module)) {
    append_utf8(module, function.m_module);
  }
  return module.starts_with(kPackage) || (function.m_self != nullptr && !PyModule_Check(function.m_self) &&
                                          std::string_view(Py_TYPE(function.m_self)->tp_name).starts_with(kPackage));
}

}  // namespace

void FunctionNames::start(std::vector<std::string> prefixes, py::object module_call, py::object is_wanted) {
  prefixes_ = std::move(prefixes);
  module_call_ = std::move(module_call);
  is_wanted_ = std::move(is_wanted);
  garbage_ = base::Names::process().intern("Python GC");
}

void FunctionNames::stop() {
  clear();
  module_call_ = py::object();
  is_wanted_ = py::object();
}

uint32_t FunctionNames::of_running(PyFrameObject* frame) {
  PyCodeObject* code = code_of(frame_of(frame));
  std::string file;
  append_utf8(file, code->co_filename);
  return file.starts_with(own_folder()) ? kOwn : intern(code, file, PyFrame_GetLineNumber(frame));
}

uint32_t FunctionNames::add_code(PyCodeObject* code) {
  make_room();
  keep(reinterpret_cast<PyObject*>(code));
  std::string file;
  append_utf8(file, code->co_filename);
  uint32_t name = file.starts_with(own_folder()) ? kOwn : intern(code, file, code->co_firstlineno);
  if (is_module_call(code)) {
    module_call_name_ = std::exchange(name, kModuleCall);
  }
  codes_.set(reinterpret_cast<uintptr_t>(code), name);
  return name;
}

uint32_t FunctionNames::add_built_in(const PyMethodDef* method, PyObject* function, PyObject* self) {
  make_room();
  auto bound = py::reinterpret_borrow<py::object>(function);
  if (Py_IS_TYPE(function, &PyMethodDescr_Type) && self != nullptr) {
    bound = py::reinterpret_steal<py::object>(
        Py_TYPE(function)->tp_descr_get(function, self, reinterpret_cast<PyObject*>(Py_TYPE(self))));
  }
  uint32_t name = kOwn;
  if (!bound || !PyCFunction_Check(bound.ptr()) || !is_own(*reinterpret_cast<PyCFunctionObject*>(bound.ptr()))) {
    const auto text = py::reinterpret_steal<py::object>(bound ? PyObject_Repr(bound.ptr()) : nullptr);
    std::string repr = method->ml_name;
    if (text) {  // repr of a built-in runs no code of the program
      repr.clear();
      append_utf8(repr, text.ptr());
    } else {
      PyErr_Clear();
    }
    name = name_of(repr);
  }
  built_in_.set(reinterpret_cast<uintptr_t>(method), name);
  return name;
}

/// A new module, or one at the address of a deleted module.
FunctionNames::Module FunctionNames::add_module(PyObject* module) {
  make_room();
  keep(reinterpret_cast<PyObject*>(Py_TYPE(module)));
  const std::string_view type = Py_TYPE(module)->tp_name;
  uint32_t& count = instances_.find_or_make(reinterpret_cast<uintptr_t>(Py_TYPE(module)), [] { return 0U; });
  std::string name = "nn.Module: ";
  name.append(type.substr(type.rfind('.') + 1)).append("_").append(std::to_string(count));
  const Module made = {base::Names::process().intern(name), count++, Py_TYPE(module)};
  modules_.set(reinterpret_cast<uintptr_t>(module), made);
  return made;
}

void FunctionNames::make_room() {
  if (kept_.size() > kMaxKept || built_in_.size() > kMaxKept || modules_.size() > kMaxKept) {
    clear();
  }
}

/// Releases all code. Addresses may be reused afterwards.
void FunctionNames::clear() {
  std::vector<py::object> kept = std::exchange(kept_, {});  // finalizers may call functions
  codes_.clear();
  built_in_.clear();
  modules_.clear();
  instances_.clear();
}

uint32_t FunctionNames::intern(PyCodeObject* code, std::string_view file, int line) {
  std::size_t skipped = 0;
  for (const std::string& prefix : prefixes_) {
    if (file.starts_with(prefix)) {
      skipped = std::max(skipped, prefix.size());
    }
  }
  std::string name(file.substr(skipped));
  name.append("(").append(std::to_string(line)).append("): ");
  append_utf8(name, code->co_name);
  return name_of(name);
}

/// Its id, or kUnwanted.
uint32_t FunctionNames::name_of(const std::string& text) {
  return !chooses() || is_wanted(text) ? base::Names::process().intern(text) : kUnwanted;
}

bool FunctionNames::is_wanted(const std::string& text) const {
  const auto name = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  const auto answer =
      py::reinterpret_steal<py::object>(name ? PyObject_CallOneArg(is_wanted_.ptr(), name.ptr()) : nullptr);
  if (!answer) {
    PyErr_Clear();
  }
  return answer && PyObject_IsTrue(answer.ptr()) == 1;
}

}  // namespace gpuscope::bindings

#endif
