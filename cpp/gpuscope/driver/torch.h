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

inline Torch Torch::open() {
  Torch torch;
  torch.cpu = Library::open({"libtorch_cpu.so"}, {});
  torch.c10 = Library::open({"libc10.so"}, {});
  torch.cpu.load("_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE", torch.add_callback);
  torch.cpu.load("_ZN2at14removeCallbackEm", torch.remove_callback);
  torch.cpu.load("_ZNK2at14RecordFunction4nameEv", torch.function_name);
  torch.cpu.load("_ZN2at15sequence_number4peekEv", torch.next_sequence);
  torch.undefined_tensor = torch.c10.symbol("_ZN3c1019UndefinedTensorImpl10_singletonE");
  torch.cpu.load("_ZN5torch8profiler4impl19registerCUDAMethodsEPNS1_13ProfilerStubsE", torch.register_cuda_methods);
  torch.cpu.load("_ZN5torch8profiler4impl9cudaStubsEv", torch.cuda_stubs);
  torch.c10.load("_ZN3c1020ThreadLocalDebugInfo3getENS_13DebugInfoKindE", torch.debug_info);
  torch.cpu.load("_ZN5torch8profiler4impl17ProfilerStateBase14removeCallbackEv", torch.remove_ranges);
  // Up to torch 2.11 the kinds are an enumeration, in which this is the profiler's state; later ones are addresses.
  constexpr std::uintptr_t kProfilerState = 2;
  auto* const* kind = static_cast<void* const*>(torch.c10.symbol("_ZN3c1013DebugInfoKind14PROFILER_STATEE"));
  torch.profiler_state = kind != nullptr ? *kind : reinterpret_cast<void*>(kProfilerState);
  return torch;
}

}  // namespace gpuscope::driver
