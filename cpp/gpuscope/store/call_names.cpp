// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/call_names.h"

#include <utility>

namespace gpuscope::store {
namespace {

// Pairs of equivalent functions of cuda.h and cuda_runtime_api.h.
constexpr std::pair<std::string_view, std::string_view> kSame[] = {
    {"cuLaunchKernel", "cudaLaunchKernel"},
    {"cuLaunchKernelEx", "cudaLaunchKernelExC"},
    {"cuLaunchCooperativeKernel", "cudaLaunchCooperativeKernel"},
    {"cuLaunchCooperativeKernelMultiDevice", "cudaLaunchCooperativeKernelMultiDevice"},
    {"cuLaunchHostFunc", "cudaLaunchHostFunc"},
    {"cuGraphLaunch", "cudaGraphLaunch"},
    {"cuCtxSynchronize", "cudaDeviceSynchronize"},
    {"cuEventSynchronize", "cudaEventSynchronize"},
    {"cuStreamSynchronize", "cudaStreamSynchronize"},
    {"cuStreamWaitEvent", "cudaStreamWaitEvent"},
    {"cuMemAlloc", "cudaMalloc"},
    {"cuMemAllocPitch", "cudaMallocPitch"},
    {"cuMemAllocManaged", "cudaMallocManaged"},
    {"cuMemAllocHost", "cudaMallocHost"},
    {"cuMemHostAlloc", "cudaHostAlloc"},
    {"cuMemHostRegister", "cudaHostRegister"},
    {"cuMemHostUnregister", "cudaHostUnregister"},
    {"cuMemAllocAsync", "cudaMallocAsync"},
    {"cuMemAllocFromPoolAsync", "cudaMallocFromPoolAsync"},
    {"cuMemFree", "cudaFree"},
    {"cuMemFreeHost", "cudaFreeHost"},
    {"cuMemFreeAsync", "cudaFreeAsync"},
    {"cuMemcpy", "cudaMemcpy"},
    {"cuMemcpyHtoD", "cudaMemcpy"},
    {"cuMemcpyDtoH", "cudaMemcpy"},
    {"cuMemcpyDtoD", "cudaMemcpy"},
    {"cuMemcpyAsync", "cudaMemcpyAsync"},
    {"cuMemcpyHtoDAsync", "cudaMemcpyAsync"},
    {"cuMemcpyDtoHAsync", "cudaMemcpyAsync"},
    {"cuMemcpyDtoDAsync", "cudaMemcpyAsync"},
    {"cuMemcpyBatchAsync", "cudaMemcpyBatchAsync"},
    {"cuMemcpyPeer", "cudaMemcpyPeer"},
    {"cuMemcpyPeerAsync", "cudaMemcpyPeerAsync"},
    {"cuMemcpy2D", "cudaMemcpy2D"},
    {"cuMemcpy2DUnaligned", "cudaMemcpy2D"},
    {"cuMemcpy2DAsync", "cudaMemcpy2DAsync"},
    {"cuMemcpy3D", "cudaMemcpy3D"},
    {"cuMemcpy3DAsync", "cudaMemcpy3DAsync"},
    {"cuMemcpy3DPeer", "cudaMemcpy3DPeer"},
    {"cuMemcpy3DPeerAsync", "cudaMemcpy3DPeerAsync"},
};

}  // namespace

std::string_view runtime_name(std::string_view driver_call) noexcept {
  for (const auto& [driver, runtime] : kSame) {
    if (driver == driver_call) {
      return runtime;
    }
  }
  // cuMemsetD8, cuMemsetD2D32Async, ...: the runtime has one function for the three widths.
  if (driver_call.starts_with("cuMemset")) {
    const bool async = driver_call.ends_with("Async");
    const bool flat = !driver_call.starts_with("cuMemsetD2D");
    return flat ? (async ? "cudaMemsetAsync" : "cudaMemset") : (async ? "cudaMemset2DAsync" : "cudaMemset2D");
  }
  return {};
}

std::string_view call_name(std::string_view driver_call) noexcept {
  const std::string_view runtime = runtime_name(driver_call);
  return runtime.empty() ? driver_call : runtime;
}

}  // namespace gpuscope::store
