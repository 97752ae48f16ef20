// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/labels.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include "gpuscope/store/values.h"

namespace gpuscope::exporters {
namespace {

constexpr std::array<std::pair<uint16_t, std::string_view>, 6> kFlags = {
    {{store::kZeroTime, "no timestamps"},
     {store::kBackwardTime, "ended before it began"},
     {store::kIncomplete, "incomplete"},
     {store::kNoLaunch, "launch not seen"},
     {store::kOpen, "still open at the end"},
     {store::kClipped, "open before the beginning"}}};

// Pairs of functions that do the same, of cuda.h and cuda_runtime_api.h.
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

uint64_t process_id(const store::Store& store, uint64_t otherwise) {
  const std::string_view text = store.find_info("process.id");
  std::from_chars(text.data(), text.data() + text.size(), otherwise);
  return otherwise;
}

std::string_view process_label(const store::Store& store) {
  const std::string_view name = store.find_info("process.argv");
  return name.empty() ? "python" : name;
}

std::string thread_label(const store::Store& store, uint32_t thread) {
  const std::string_view name = store.strings[store.thread.name[thread]];
  return name.empty() ? "thread " + std::to_string(store.thread.system_id[thread]) : std::string(name);
}

uint32_t device_ordinal(const store::Store& store, uint32_t device) {
  return device < store.device.size() ? store.device.ordinal[device] : device;
}

std::string_view device_name(const store::Store& store, uint32_t ordinal) {
  const auto& ordinals = store.device.ordinal;
  const auto row = static_cast<std::size_t>(std::find(ordinals.begin(), ordinals.end(), ordinal) - ordinals.begin());
  return row < store.device.size() ? store.strings[store.device.name[row]] : "";
}

std::string stream_label(const store::Store& store, uint32_t track) {
  const uint32_t stream = store.track.stream[track];
  return stream == store::kNone ? "context" : "stream " + std::to_string(stream);
}

std::string lane_label(const std::string& track, uint32_t lane) {
  return lane == 0 ? track : track + " (lane " + std::to_string(lane + 1) + ")";
}

std::string_view region_category(base::RegionKind kind) {
  switch (kind) {
    case base::RegionKind::Op:
      return "cpu_op";
    case base::RegionKind::Module:
      return "python_function";
    default:
      return "user_annotation";
  }
}

std::string stack_label(const store::Store& store, uint32_t stack) {
  std::string label;
  for (; stack != store::kNone; stack = store.stack.parent[stack]) {
    label += label.empty() ? "" : ";";
    label += store.strings[store.stack.file[stack]];
    label += '(';
    label += std::to_string(store.stack.line[stack]);
    label += "): ";
    label += store.strings[store.stack.function[stack]];
  }
  return label;
}

std::string flag_label(uint16_t flags) {
  std::string label;
  for (const auto& [flag, text] : kFlags) {
    if ((flags & flag) != 0) {
      label += label.empty() ? "" : ", ";
      label += text;
    }
  }
  return label;
}

std::string_view runtime_name(std::string_view driver_call) noexcept {
  for (const auto& [driver, runtime] : kSame) {
    if (driver == driver_call) {
      return runtime;
    }
  }
  // cuMemsetD8, cuMemsetD2D32Async, ...: one function of the runtime for the three widths.
  if (driver_call.starts_with("cuMemset")) {
    const bool async = driver_call.ends_with("Async");
    const bool flat = !driver_call.starts_with("cuMemsetD2D");
    return flat ? (async ? "cudaMemsetAsync" : "cudaMemset") : (async ? "cudaMemset2DAsync" : "cudaMemset2D");
  }
  return {};
}

}  // namespace gpuscope::exporters
