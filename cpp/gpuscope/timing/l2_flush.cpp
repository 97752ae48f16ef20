// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gpuscope/driver/devices.h"
#include "gpuscope/timing/sampler.h"

namespace gpuscope::timing {
namespace {

constexpr unsigned kBlockThreads = 256;
constexpr unsigned kBlocksPerMultiprocessor = 8;  // 2048 threads, the maximum of any multiprocessor
constexpr uint64_t kVector = 16;

// Written values differ between flushes and places: every store has an effect, and no line can be compressed. The part
// to read holds zeros, so the sum's store never happens. The compiler cannot know.
constexpr const char* kPtx = R"(

.visible .global .align 4 .u32 gpuscope_sum;

.visible .entry gpuscope_flush_write(.param .u64 memory, .param .u64 vectors, .param .u32 salt)
{
  .reg .u32 %block, %blocks, %size, %lane, %a, %b, %c, %d, %salt;
  .reg .u64 %at, %index, %count, %step, %wide, %offset;
  .reg .pred %outside;
  ld.param.u64 %at, [memory];
  ld.param.u64 %count, [vectors];
  ld.param.u32 %salt, [salt];
  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %lane, %tid.x;
  mul.wide.u32 %step, %blocks, %size;
  cvt.u64.u32 %wide, %lane;
  mad.wide.u32 %index, %block, %size, %wide;
write:
  setp.ge.u64 %outside, %index, %count;
  @%outside ret;
  cvt.u32.u64 %a, %index;
  mad.lo.u32 %a, %a, 0x9E3779B1, %salt;
  xor.b32 %b, %a, 0x85EBCA77;
  mul.lo.u32 %c, %a, 0xC2B2AE3D;
  mul.lo.u32 %d, %b, 0x27D4EB2F;
  shl.b64 %offset, %index, 4;
  add.u64 %offset, %at, %offset;
  st.global.v4.u32 [%offset], {%a, %b, %c, %d};
  add.u64 %index, %index, %step;
  bra write;
}

.visible .entry gpuscope_flush_read(.param .u64 memory, .param .u64 vectors)
{
  .reg .u32 %block, %blocks, %size, %lane, %a, %b, %c, %d, %sum;
  .reg .u64 %at, %index, %count, %step, %wide, %offset;
  .reg .pred %outside, %found;
  ld.param.u64 %at, [memory];
  ld.param.u64 %count, [vectors];
  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %lane, %tid.x;
  mul.wide.u32 %step, %blocks, %size;
  cvt.u64.u32 %wide, %lane;
  mad.wide.u32 %index, %block, %size, %wide;
  mov.u32 %sum, 0;
read:
  setp.ge.u64 %outside, %index, %count;
  @%outside bra keep;
  shl.b64 %offset, %index, 4;
  add.u64 %offset, %at, %offset;
  ld.global.v4.u32 {%a, %b, %c, %d}, [%offset];
  add.u32 %a, %a, %b;
  add.u32 %c, %c, %d;
  add.u32 %sum, %sum, %a;
  add.u32 %sum, %sum, %c;
  add.u64 %index, %index, %step;
  bra read;
keep:
  setp.ne.u32 %found, %sum, 0;
  @%found st.global.u32 [gpuscope_sum], %sum;
  ret;
}
)";

}  // namespace

L2Flush::L2Flush(const PrimaryContext& context, int device, uint64_t bytes)
    : context_(context),
      module_(context, kPtx),
      write_(module_.function("gpuscope_flush_write")),
      read_(module_.function("gpuscope_flush_read")) {
  const driver::Limits limits = driver::read_limits(context.cuda(), device);
  l2_bytes_ = limits.l2_bytes;
  written_bytes_ = (bytes == kTwiceTheL2 ? 2 * l2_bytes_ : bytes) / kVector * kVector;
  read_bytes_ = written_bytes_ * 3 / 4 / kVector * kVector;
  blocks_ = std::max(1U, limits.multiprocessors) * kBlocksPerMultiprocessor;
}

L2Flush::~L2Flush() {
  if (memory_ != 0) {
    context_.release_in([&](const driver::Cuda& cuda) { cuda.mem_free(memory_); });
  }
}

void L2Flush::prepare() {
  if (memory_ == 0 && written_bytes_ != 0) {
    GPUSCOPE_CUDA(context_.cuda(), mem_alloc, &memory_, read_bytes_ + written_bytes_);
    GPUSCOPE_CUDA(context_.cuda(), fill, memory_, 0, read_bytes_, nullptr);
    GPUSCOPE_CUDA(context_.cuda(), context_synchronize);
  }
  if (context_.cuda().reset_persisting_l2 != nullptr) {
    context_.cuda().reset_persisting_l2();  // refused if lines cannot persist
  }
}

void L2Flush::run(uint64_t stream) {
  if (memory_ == 0) {
    return;
  }
  driver::CuPointer written = memory_ + read_bytes_;
  uint64_t vectors = written_bytes_ / kVector;
  ++salt_;
  void* write_arguments[] = {&written, &vectors, &salt_};
  module_.launch(write_, blocks_, kBlockThreads, stream, write_arguments);
  uint64_t read_vectors = read_bytes_ / kVector;
  void* read_arguments[] = {&memory_, &read_vectors};
  module_.launch(read_, blocks_, kBlockThreads, stream, read_arguments);
}

}  // namespace gpuscope::timing
