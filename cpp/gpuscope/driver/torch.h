// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "gpuscope/driver/library.h"

namespace gpuscope::driver {

/// What libtorch offers for a device's tools: where its profiler sends operator ranges, and the state of a profiler on
/// the calling thread. nullptr where a version lacks it. `kind` is a c10::DebugInfoKind.
struct Torch {
  std::add_pointer_t<void(void* stubs)> register_cuda_methods = nullptr;
  std::add_pointer_t<void*()> cuda_stubs = nullptr;
  std::add_pointer_t<void*(void* kind)> debug_info = nullptr;
  void* profiler_state = nullptr;  // the kind

  Library cpu;
  Library c10;

  explicit operator bool() const noexcept { return register_cuda_methods != nullptr && cuda_stubs != nullptr; }
  /// The libtorch that the process has loaded.
  static Torch open();
};

}  // namespace gpuscope::driver
