// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <vector>

namespace gpuscope::bindings {

/// The open calls of torch.nn.Module of a thread, outermost first, as regions: "ResNet.layer1.0.conv1". They come from
/// torch's hooks, or from recorded calls of Python functions. With the GIL. Calls no Python function: torch.compile
/// would compile it with the program's.
class ModuleCalls {
 public:
  /// Of the calling thread. Lives as long as Python's state of the thread. Throws error_already_set, like all methods.
  static ModuleCalls& of_thread();
  /// The number of open calls of all threads.
  static std::size_t open() noexcept { return open_; }

  ModuleCalls() = default;
  ~ModuleCalls() { open_ -= calls_.size(); }
  ModuleCalls(const ModuleCalls&) = delete;
  ModuleCalls& operator=(const ModuleCalls&) = delete;

  /// From a hook.
  void enter(const pybind11::object& module);
  /// From a hook. Also leaves the calls inside, whose end torch did not report.
  void leave(const pybind11::object& module);
  /// From a hook: ends the calls that are not around it. After KeyboardInterrupt and similar, torch calls no hook.
  void drop_ended();

  /// A call that ends by `leave_last`.
  void enter_next(const pybind11::object& module) { add(module, path_in_caller(module), {}); }
  void leave_last();

  void close();

 private:
  /// The frame that calls a hook, and its code, as another frame may get its address.
  struct Place {
    const void* frame = nullptr;
    const void* code = nullptr;

    bool operator==(const Place&) const = default;
  };
  struct ModuleCall {
    pybind11::object module;
    pybind11::object path;
    pybind11::object region;  // null if the surrounding call has it
    Place place;
  };

  static Place place_of_call() noexcept;
  static bool is_running(const Place& place) noexcept;
  void add(const pybind11::object& module, pybind11::object path, const Place& place);
  pybind11::object path_in_caller(const pybind11::object& module) const;

  inline static std::size_t open_ = 0;
  std::vector<ModuleCall> calls_;
};

}  // namespace gpuscope::bindings
