// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/kernels.h"

#include <algorithm>
#include <string>

#include "gpuscope/device/kernels_ptx.h"
#include "gpuscope/device/limits.h"

namespace gpuscope::device {
namespace {

constexpr unsigned kThreads = 256;
// Four of 256 threads are on a multiprocessor at once on every GPU since compute capability 5.0.
constexpr unsigned kFmaBlocksPerMultiprocessor = 4;

}  // namespace

Kernels::Kernels(const driver::Cuda& cuda, int ordinal)
    : context_(cuda, ordinal),
      module_(context_, kernels_ptx().c_str()),
      spin_(module_.function("gpuscope_spin")),
      saxpy_(module_.function("gpuscope_saxpy")),
      reduce_(module_.function("gpuscope_reduce")),
      copy_(module_.function("gpuscope_copy")),
      fma_(module_.function("gpuscope_fma")),
      spun_(module_.variable("gpuscope_spun")),
      fma_blocks_(read_limits(cuda, ordinal).multiprocessors * kFmaBlocksPerMultiprocessor) {}

Kernels::~Kernels() {
  driver::CuContext popped = nullptr;
  if (memory_ != 0 && context_.cuda().context_push(context_.handle()) == 0) {
    context_.cuda().mem_free(memory_);
    context_.cuda().context_pop(&popped);
  }
}

driver::CuPointer Kernels::buffer(uint64_t bytes) {
  if (bytes > memory_bytes_) {
    driver::CuPointer grown = 0;
    GPUSCOPE_CUDA(context_.cuda(), mem_alloc, &grown, bytes);
    if (memory_ != 0) {
      context_.cuda().mem_free(memory_);
    }
    memory_ = grown;
    memory_bytes_ = bytes;
  }
  return memory_;
}

void Kernels::spin(uint64_t nanoseconds, uint64_t stream, unsigned count) {
  const PrimaryContext::Current current(context_);
  void* arguments[] = {&nanoseconds};
  for (unsigned launched = 0; launched < count; ++launched) {
    module_.launch(spin_, 1, 1, stream, arguments);
  }
}

Kernels::Spun Kernels::spun() {
  const PrimaryContext::Current current(context_);
  Spun spun{};
  GPUSCOPE_CUDA(context_.cuda(), context_synchronize);
  GPUSCOPE_CUDA(context_.cuda(), copy_to_host, &spun, spun_, sizeof(spun), nullptr);
  GPUSCOPE_CUDA(context_.cuda(), fill, spun_, 0, sizeof(spun), nullptr);
  GPUSCOPE_CUDA(context_.cuda(), context_synchronize);
  return spun;
}

void Kernels::saxpy(uint32_t elements, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  driver::CuPointer x = buffer(uint64_t{elements} * 2 * sizeof(float));
  driver::CuPointer y = x + uint64_t{elements} * sizeof(float);
  void* arguments[] = {&x, &y, &elements};
  module_.launch(saxpy_, std::max(1U, (elements + kThreads - 1) / kThreads), kThreads, stream, arguments);
}

void Kernels::reduce(uint32_t elements, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  driver::CuPointer x = buffer((uint64_t{elements} + 1) * sizeof(float));
  driver::CuPointer sum = x + uint64_t{elements} * sizeof(float);
  void* arguments[] = {&x, &sum, &elements};
  module_.launch(reduce_, std::max(1U, (elements + kThreads - 1) / kThreads), kThreads, stream, arguments);
}

void Kernels::copy_in(uint64_t bytes, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  host_.resize(std::max<std::size_t>(host_.size(), bytes));
  GPUSCOPE_CUDA(context_.cuda(), copy_to_device, buffer(bytes), host_.data(), bytes, as_stream(stream));
}

void Kernels::copy_out(uint64_t bytes, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  host_.resize(std::max<std::size_t>(host_.size(), bytes));
  GPUSCOPE_CUDA(context_.cuda(), copy_to_host, host_.data(), buffer(bytes), bytes, as_stream(stream));
}

void Kernels::fill(uint64_t bytes, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), fill, buffer(bytes), 0, bytes, as_stream(stream));
}

void Kernels::copy(uint64_t bytes, uint64_t stream) {
  constexpr uint64_t kVector = 16;
  constexpr uint64_t kMostBlocks = INT32_MAX;
  uint64_t vectors = bytes / kVector;
  const uint64_t blocks = (vectors + kThreads - 1) / kThreads;
  if (vectors == 0 || bytes % kVector != 0 || blocks > kMostBlocks) {
    std::string text = "bytes is ";
    throw base::InvalidArgument(text.append(std::to_string(bytes)).append("; accepted are positive multiples of 16"));
  }
  const PrimaryContext::Current current(context_);
  driver::CuPointer from = buffer(2 * bytes);
  driver::CuPointer to = from + bytes;
  void* arguments[] = {&from, &to, &vectors};
  module_.launch(copy_, static_cast<unsigned>(blocks), kThreads, stream, arguments);
}

void Kernels::fma(uint32_t rounds, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  void* arguments[] = {&rounds};
  module_.launch(fma_, fma_blocks_, kThreads, stream, arguments);
}

uint64_t Kernels::fma_flops(uint32_t rounds) const noexcept {
  return uint64_t{2} * rounds * kFmasPerRound * fma_blocks_ * kThreads;
}

void Kernels::synchronize() {
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), context_synchronize);
}

}  // namespace gpuscope::device
