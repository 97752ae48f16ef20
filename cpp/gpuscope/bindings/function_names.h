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

/// Names ids of functions, found by address. With the GIL.
class FunctionNames {
 public:
  // Values instead of a name. kOwn: a function of this package, excluded. kModuleCall: torch.nn.Module.__call__.
  // kUnwanted: a function that was not requested.
  static constexpr uint32_t kOwn = UINT32_MAX;
  static constexpr uint32_t kModuleCall = UINT32_MAX - 1;
  static constexpr uint32_t kUnwanted = UINT32_MAX - 2;

  /// `prefixes`: removed from file names. `module_call`: the code of torch.nn.Module.__call__, or None. `is_wanted`:
  /// called with each function name, true for requested functions. None requests all.
  void start(std::vector<std::string> prefixes, pybind11::object module_call, pybind11::object is_wanted);
  void stop();

  /// Whether only some functions are requested.
  bool chooses() const noexcept { return is_wanted_ && !is_wanted_.is_none(); }

  /// kOwn, kModuleCall, kUnwanted or the name.
  uint32_t of_code(PyCodeObject* code) {
    const uint32_t* known = codes_.find(reinterpret_cast<uintptr_t>(code));
    return known != nullptr ? *known : add_code(code);
  }
  /// The name of a running function, by torch's rule with its current line. Or kOwn or kUnwanted.
  uint32_t of_running(PyFrameObject* frame);
  /// The name of a C function, or kOwn or kUnwanted. `self`: the receiver, for an unbound method.
  uint32_t of_built_in(const PyMethodDef* method, PyObject* function, PyObject* self) {
    const uint32_t* known = built_in_.find(reinterpret_cast<uintptr_t>(method));
    return known != nullptr ? *known : add_built_in(method, function, self);
  }
  uint32_t garbage() const noexcept { return garbage_; }

  /// The module of a call of torch.nn.Module.__call__.
  struct Module {
    uint32_t name = 0;
    uint32_t number = 0;  // within its class
    const PyTypeObject* type = nullptr;
  };
  bool is_module_call(const PyCodeObject* code) const noexcept {
    return reinterpret_cast<const PyObject*>(code) == module_call_.ptr();
  }
  Module of_module(PyObject* module) {
    const Module* known = modules_.find(reinterpret_cast<uintptr_t>(module));
    return known != nullptr && known->type == Py_TYPE(module) ? *known : add_module(module);
  }
  /// The name for a call of torch.nn.Module.__call__ with an unknown module.
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
  std::vector<pybind11::object> kept_;  // keeps their addresses valid
  std::vector<std::string> prefixes_;
  pybind11::object module_call_;  // the code of torch.nn.Module.__call__
  pybind11::object is_wanted_;    // None or null for all
  uint32_t garbage_ = 0;
  uint32_t module_call_name_ = 0;
};

}  // namespace gpuscope::bindings

#endif
