// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/torch.h"

#include <cstdint>

namespace gpuscope::driver {
namespace {

// Up to torch 2.11 the kinds are an enumeration, in which this is the profiler's state; later ones are addresses.
constexpr std::uintptr_t kProfilerState = 2;

template <class Function>
void load(const Library& library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(library.symbol(symbol));
}

}  // namespace

Torch Torch::open() {
  Torch torch;
  torch.cpu = Library::open({"libtorch_cpu.so"}, {});
  torch.c10 = Library::open({"libc10.so"}, {});
  load(torch.cpu, "_ZN5torch8profiler4impl19registerCUDAMethodsEPNS1_13ProfilerStubsE", torch.register_cuda_methods);
  load(torch.cpu, "_ZN5torch8profiler4impl9cudaStubsEv", torch.cuda_stubs);
  load(torch.c10, "_ZN3c1020ThreadLocalDebugInfo3getENS_13DebugInfoKindE", torch.debug_info);
  auto* const* kind = static_cast<void* const*>(torch.c10.symbol("_ZN3c1013DebugInfoKind14PROFILER_STATEE"));
  torch.profiler_state = kind != nullptr ? *kind : reinterpret_cast<void*>(kProfilerState);
  return torch;
}

}  // namespace gpuscope::driver
