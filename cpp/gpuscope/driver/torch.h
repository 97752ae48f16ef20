// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "gpuscope/driver/library.h"

namespace gpuscope::driver {

/// at::RecordFunctionCallback, as torch declares it since 1.11.
struct TorchCallback {
  struct Context {
    virtual ~Context() = default;
  };
  std::unique_ptr<Context> (*start)(const void* function) = nullptr;
  void (*end)(const void* function, Context*) = nullptr;
  double sampling = 1.0;
  std::array<bool, 10> scopes{};  // at::RecordScope
  bool needs_inputs = false;
  bool needs_outputs = false;
  bool needs_ids = false;
};

/// What libtorch offers to tools: callbacks around every operator, where its profiler sends operator ranges, and the
/// state of a profiler on the calling thread. nullptr where a version lacks it. `kind` is a c10::DebugInfoKind,
/// `function` an at::RecordFunction.
struct Torch {
  std::add_pointer_t<uint64_t(TorchCallback)> add_callback = nullptr;
  std::add_pointer_t<void(uint64_t handle)> remove_callback = nullptr;
  std::add_pointer_t<const char*(const void* function)> function_name = nullptr;
  std::add_pointer_t<uint64_t()> next_sequence = nullptr;
  const void* undefined_tensor = nullptr;  // what a tensor that is not there points to

  std::add_pointer_t<void(void* stubs)> register_cuda_methods = nullptr;
  std::add_pointer_t<void*()> cuda_stubs = nullptr;
  std::add_pointer_t<void*(void* kind)> debug_info = nullptr;
  std::add_pointer_t<void(void* state)> remove_ranges = nullptr;  // a profiler's, whose state stays
  void* profiler_state = nullptr;                                 // the kind

  Library cpu;
  Library c10;

  bool has_callbacks() const noexcept {
    return add_callback != nullptr && remove_callback != nullptr && function_name != nullptr &&
           next_sequence != nullptr;
  }
  bool has_ranges() const noexcept { return register_cuda_methods != nullptr && cuda_stubs != nullptr; }
  /// The libtorch that the process has loaded.
  static Torch open();
};

}  // namespace gpuscope::driver
