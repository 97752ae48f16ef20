// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/kernels.h"

#include <algorithm>
#include <string>

#include "gpuscope/driver/devices.h"

namespace gpuscope::timing {
namespace {

constexpr unsigned kThreads = 256;
// Four blocks of 256 threads fit a multiprocessor at once, since compute capability 5.0.
constexpr unsigned kFmaBlocksPerMultiprocessor = 4;
// FP32 FMAs per thread and round of gpuscope_fma.
constexpr unsigned kFmasPerRound = 128;
// More chains than needed to hide the latency of an FMA (4 cycles).
constexpr unsigned kChains = 8;
static_assert(kFmasPerRound % kChains == 0);

constexpr const char* kSimple = R"(
.visible .global .align 8 .u64 gpuscope_spun[2];  // kernels of gpuscope_spin that ended, and their ns
.visible .global .align 4 .f32 gpuscope_sink;     // where results go that nobody wants

.visible .entry gpuscope_spin(.param .u64 nanoseconds)
{
  .reg .u64 %now, %begin, %end, %wanted;
  .reg .pred %early;
  ld.param.u64 %wanted, [nanoseconds];
  mov.u64 %begin, %globaltimer;
  add.u64 %end, %begin, %wanted;
wait:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %early, %now, %end;
  @%early bra wait;
  sub.u64 %now, %now, %begin;
  red.global.add.u64 [gpuscope_spun], 1;
  red.global.add.u64 [gpuscope_spun+8], %now;
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

.visible .entry gpuscope_copy(.param .u64 from, .param .u64 to, .param .u64 vectors)
{
  .reg .u32 %block, %size, %lane, %a, %b, %c, %d;
  .reg .u64 %from, %to, %count, %index, %offset;
  .reg .pred %outside;
  ld.param.u64 %from, [from];
  ld.param.u64 %to, [to];
  ld.param.u64 %count, [vectors];
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %lane, %tid.x;
  cvt.u64.u32 %offset, %lane;
  mad.wide.u32 %index, %block, %size, %offset;
  setp.ge.u64 %outside, %index, %count;
  @%outside ret;
  shl.b64 %offset, %index, 4;
  add.u64 %from, %from, %offset;
  add.u64 %to, %to, %offset;
  ld.global.v4.u32 {%a, %b, %c, %d}, [%from];
  st.global.v4.u32 [%to], {%a, %b, %c, %d};
  ret;
}
)";

// a = a / 2 + y with y > 0 stays positive, so the store never happens. The compiler cannot know. y is in a register
// like a, as it differs between threads.
constexpr const char* kFmaHead = R"(
.visible .entry gpuscope_fma(.param .u32 rounds)
{
  .reg .u32 %left, %lane;
  .reg .f32 %y, %sum, %a<8>;
  .reg .pred %none, %found;
  ld.param.u32 %left, [rounds];
  mov.u32 %lane, %tid.x;
  cvt.rn.f32.u32 %sum, %lane;
  add.f32 %y, %sum, 0f3F800000;
)";
constexpr const char* kFmaTail = R"(
  setp.lt.f32 %found, %sum, 0f00000000;
  @%found st.global.f32 [gpuscope_sink], %sum;
  ret;
}
)";

std::string chain(unsigned number) { return std::string("%a").append(std::to_string(number)); }

std::string fma_text() {
  std::string text = kFmaHead;
  for (unsigned number = 0; number < kChains; ++number) {
    text.append("  add.f32 ").append(chain(number)).append(", %sum, %y;\n  add.f32 %sum, %sum, 0f3F800000;\n");
  }
  text += "round:\n  setp.eq.u32 %none, %left, 0;\n  @%none bra done;\n";
  for (unsigned made = 0; made < kFmasPerRound; ++made) {
    const std::string a = chain(made % kChains);
    text.append("  fma.rn.f32 ").append(a).append(", ").append(a).append(", 0f3F000000, %y;\n");
  }
  text += "  sub.u32 %left, %left, 1;\n  bra round;\ndone:\n";
  for (unsigned number = 0; number < kChains; ++number) {
    text.append("  add.f32 %sum, %sum, ").append(chain(number)).append(";\n");
  }
  return text + kFmaTail;
}

}  // namespace

Kernels::Kernels(const driver::Cuda& cuda, int ordinal)
    : context_(cuda, ordinal),
      module_(context_, kSimple + fma_text()),
      spin_(module_.function("gpuscope_spin")),
      saxpy_(module_.function("gpuscope_saxpy")),
      reduce_(module_.function("gpuscope_reduce")),
      copy_(module_.function("gpuscope_copy")),
      fma_(module_.function("gpuscope_fma")),
      spun_(module_.variable("gpuscope_spun")),
      fma_blocks_(driver::read_limits(cuda, ordinal).multiprocessors * kFmaBlocksPerMultiprocessor) {}

Kernels::~Kernels() {
  if (memory_ != 0) {
    context_.release_in([&](const driver::Cuda& cuda) { cuda.mem_free(memory_); });
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
  GPUSCOPE_CUDA(context_.cuda(), copy_to_device, buffer(bytes), host_.data(), bytes, driver::as_stream(stream));
}

void Kernels::copy_out(uint64_t bytes, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  host_.resize(std::max<std::size_t>(host_.size(), bytes));
  GPUSCOPE_CUDA(context_.cuda(), copy_to_host, host_.data(), buffer(bytes), bytes, driver::as_stream(stream));
}

void Kernels::fill(uint64_t bytes, uint64_t stream) {
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), fill, buffer(bytes), 0, bytes, driver::as_stream(stream));
}

void Kernels::copy(uint64_t bytes, uint64_t stream) {
  constexpr uint64_t kVector = 16;
  constexpr uint64_t kMaxBlocks = INT32_MAX;
  uint64_t vectors = bytes / kVector;
  const uint64_t blocks = (vectors + kThreads - 1) / kThreads;
  if (vectors == 0 || bytes % kVector != 0 || blocks > kMaxBlocks) {
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

}  // namespace gpuscope::timing
