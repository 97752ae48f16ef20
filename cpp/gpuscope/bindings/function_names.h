// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/flat_map.h"
#include "gpuscope/bindings/frames.h"

#ifdef GPUSCOPE_KNOWS_FRAMES

namespace gpuscope::bindings {

/// What functions are called, as Names ids, found by address. With the GIL.
class FunctionNames {
 public:
  // Instead of a name: a function of this package, which is left out; torch.nn.Module.__call__; one nobody asked for.
  static constexpr uint32_t kOwn = UINT32_MAX;
  static constexpr uint32_t kModuleCall = UINT32_MAX - 1;
  static constexpr uint32_t kUnwanted = UINT32_MAX - 2;

  /// `prefixes`: what the names of files are given without; `module_call`: the code of torch.nn.Module.__call__, or
  /// None; `is_wanted`: called with the name of each function, true for those that are asked for; None for all.
  void start(std::vector<std::string> prefixes, pybind11::object module_call, pybind11::object is_wanted);
  void stop();

  /// Whether some functions alone are asked for.
  bool chooses() const noexcept { return is_wanted_ && !is_wanted_.is_none(); }

  /// kOwn, kModuleCall, kUnwanted or the name.
  uint32_t of_code(PyCodeObject* code) {
    const uint32_t* known = codes_.find(reinterpret_cast<uintptr_t>(code));
    return known != nullptr ? *known : add_code(code);
  }
  /// The name of a function that is running, by torch's rule with the line where it is; kOwn or kUnwanted.
  uint32_t of_running(PyFrameObject* frame);
  /// kOwn, kUnwanted or the name of a function that is written in C; `self`: what it is called on where it is not bound
  /// to that.
  uint32_t of_built_in(const PyMethodDef* method, PyObject* function, PyObject* self) {
    const uint32_t* known = built_in_.find(reinterpret_cast<uintptr_t>(method));
    return known != nullptr ? *known : add_built_in(method, function, self);
  }
  uint32_t garbage() const noexcept { return garbage_; }

  /// What a call of torch.nn.Module.__call__ is of.
  struct Module {
    uint32_t name = 0;
    uint32_t number = 0;  // of those of its class
    const PyTypeObject* type = nullptr;
  };
  bool is_module_call(const PyCodeObject* code) const noexcept {
    return reinterpret_cast<const PyObject*>(code) == module_call_.ptr();
  }
  Module of_module(PyObject* module) {
    const Module* known = modules_.find(reinterpret_cast<uintptr_t>(module));
    return known != nullptr && known->type == Py_TYPE(module) ? *known : add_module(module);
  }
  /// Of that code, where it is not known what is called.
  uint32_t module_call() const noexcept { return module_call_name_; }

 private:
  [[gnu::noinline]] uint32_t add_code(PyCodeObject* code);
  [[gnu::noinline]] uint32_t add_built_in(const PyMethodDef* method, PyObject* function, PyObject* self);
  [[gnu::noinline]] Module add_module(PyObject* module);
  void make_room();
  void clear();
  void keep(PyObject* object) { kept_.push_back(pybind11::reinterpret_borrow<pybind11::object>(object)); }
  uint32_t intern(PyCodeObject* code, std::string_view file, int line);
  uint32_t name_of(const std::string& text);
  bool is_wanted(const std::string& text) const;

  base::FlatMap<uint32_t> codes_, built_in_, instances_;
  base::FlatMap<Module> modules_;
  std::vector<pybind11::object> kept_;  // as long as their addresses stand for them
  std::vector<std::string> prefixes_;
  pybind11::object module_call_;  // the code of torch.nn.Module.__call__
  pybind11::object is_wanted_;    // null as well for all
  uint32_t garbage_ = 0;
  uint32_t module_call_name_ = 0;
};

}  // namespace gpuscope::bindings

#endif
