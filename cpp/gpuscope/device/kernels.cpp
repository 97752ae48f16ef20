// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/kernels.h"

#include <algorithm>

namespace gpuscope::device {
namespace {

constexpr unsigned kThreads = 256;

// PTX 6.0 for compute capability 5.0: every driver that CUPTI 12 accepts compiles it.
constexpr const char* kPtx = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry gpuscope_spin(.param .u64 nanoseconds)
{
  .reg .u64 %now, %end, %wanted;
  .reg .pred %done;
  ld.param.u64 %wanted, [nanoseconds];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %now, %wanted;
wait:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %done, %now, %end;
  @%done bra wait;
  ret;
}

.visible .entry gpuscope_saxpy(.param .u64 x, .param .u64 y, .param .u32 elements)
{
  .reg .u32 %index, %block, %size, %lane, %count;
  .reg .u64 %from, %to, %offset;
  .reg .f32 %a, %b;
  .reg .pred %outside;
  ld.param.u64 %from, [x];
  ld.param.u64 %to, [y];
  ld.param.u32 %count, [elements];
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %lane, %tid.x;
  mad.lo.u32 %index, %block, %size, %lane;
  setp.ge.u32 %outside, %index, %count;
  @%outside ret;
  mul.wide.u32 %offset, %index, 4;
  add.u64 %from, %from, %offset;
  add.u64 %to, %to, %offset;
  ld.global.f32 %a, [%from];
  ld.global.f32 %b, [%to];
  fma.rn.f32 %b, %a, 0f40000000, %b;
  st.global.f32 [%to], %b;
  ret;
}

.visible .entry gpuscope_reduce(.param .u64 x, .param .u64 sum, .param .u32 elements)
{
  .reg .u32 %index, %block, %size, %lane, %count;
  .reg .u64 %from, %to, %offset;
  .reg .f32 %a, %old;
  .reg .pred %outside;
  ld.param.u64 %from, [x];
  ld.param.u64 %to, [sum];
  ld.param.u32 %count, [elements];
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %lane, %tid.x;
  mad.lo.u32 %index, %block, %size, %lane;
  setp.ge.u32 %outside, %index, %count;
  @%outside ret;
  mul.wide.u32 %offset, %index, 4;
  add.u64 %from, %from, %offset;
  ld.global.f32 %a, [%from];
  atom.global.add.f32 %old, [%to], %a;
  ret;
}
)";

driver::CuStream as_stream(uint64_t handle) { return reinterpret_cast<driver::CuStream>(handle); }

}  // namespace

Kernels::Kernels(const driver::Cuda& cuda, int ordinal) : context_(cuda, ordinal) {
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), module_load_data, &module_, kPtx);
  GPUSCOPE_CUDA(context_.cuda(), module_get_function, &spin_, module_, "gpuscope_spin");
  GPUSCOPE_CUDA(context_.cuda(), module_get_function, &saxpy_, module_, "gpuscope_saxpy");
  GPUSCOPE_CUDA(context_.cuda(), module_get_function, &reduce_, module_, "gpuscope_reduce");
}

Kernels::~Kernels() {
  const driver::Cuda& cuda = context_.cuda();
  driver::CuContext popped = nullptr;
  if (cuda.context_push(context_.handle()) == 0) {
    if (memory_ != 0) {
      cuda.mem_free(memory_);
    }
    cuda.module_unload(module_);
    cuda.context_pop(&popped);
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

void Kernels::launch(driver::CuFunction function, unsigned blocks, unsigned threads, uint64_t stream,
                     void** arguments) {
  GPUSCOPE_CUDA(context_.cuda(), launch_kernel, function, blocks, 1, 1, threads, 1, 1, 0, as_stream(stream), arguments,
                nullptr);
}

void Kernels::spin(uint64_t nanoseconds, uint64_t stream, unsigned count) {
  const PrimaryContext::Current current(context_);
  void* arguments[] = {&nanoseconds};
  for (unsigned launched = 0; launched < count; ++launched) {
    launch(spin_, 1, 1, stream, arguments);
  }
}

void Kernels::saxpy(uint32_t elements, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  driver::CuPointer x = buffer(uint64_t{elements} * 2 * sizeof(float));
  driver::CuPointer y = x + uint64_t{elements} * sizeof(float);
  void* arguments[] = {&x, &y, &elements};
  launch(saxpy_, std::max(1U, (elements + kThreads - 1) / kThreads), kThreads, stream, arguments);
}

void Kernels::reduce(uint32_t elements, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  driver::CuPointer x = buffer((uint64_t{elements} + 1) * sizeof(float));
  driver::CuPointer sum = x + uint64_t{elements} * sizeof(float);
  void* arguments[] = {&x, &sum, &elements};
  launch(reduce_, std::max(1U, (elements + kThreads - 1) / kThreads), kThreads, stream, arguments);
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

void Kernels::synchronize() {
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), context_synchronize);
}

}  // namespace gpuscope::device
