// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <vector>

namespace gpuscope::bindings {

/// The calls of torch.nn.Module that a thread is in, outermost first, as regions: "ResNet.layer1.0.conv1". They come
/// from hooks of torch's, or from the calls of Python functions where these are recorded. With the GIL. No function of
/// Python is called: torch.compile would compile it where it compiles what the program calls.
class ModuleCalls {
 public:
  /// Of the calling thread; it lives as long as Python's state of the thread. Throws error_already_set, as all do.
  static ModuleCalls& of_thread();
  /// How many calls of all threads are open.
  static std::size_t open() noexcept { return open_; }

  ModuleCalls() = default;
  ~ModuleCalls() { open_ -= calls_.size(); }
  ModuleCalls(const ModuleCalls&) = delete;
  ModuleCalls& operator=(const ModuleCalls&) = delete;

  /// From a hook.
  void enter(const pybind11::object& module);
  /// From a hook, with those inside of it, which were left without torch saying so.
  void leave(const pybind11::object& module);
  /// From a hook: ends the calls that are not around it. torch calls none after KeyboardInterrupt and its like.
  void drop_ended();

  /// A call that ends by `leave_last`.
  void enter_next(const pybind11::object& module) { add(module, path_in_caller(module), {}); }
  void leave_last();

  void close();

 private:
  /// What lies around a hook: the frame that calls it, and its code, as another frame may get its address.
  struct Place {
    const void* frame = nullptr;
    const void* code = nullptr;

    bool operator==(const Place&) const = default;
  };
  struct Call {
    pybind11::object module;
    pybind11::object path;
    pybind11::object region;  // null where the call around it has it
    Place place;
  };

  static Place place_of_call() noexcept;
  static bool is_running(const Place& place) noexcept;
  void add(const pybind11::object& module, pybind11::object path, const Place& place);
  pybind11::object path_in_caller(const pybind11::object& module) const;

  inline static std::size_t open_ = 0;
  std::vector<Call> calls_;
};

}  // namespace gpuscope::bindings
