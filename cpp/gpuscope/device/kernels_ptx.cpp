// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/kernels_ptx.h"

namespace gpuscope::device {
namespace {

// As many chains as hide the latency of an FMA (4 cycles) with room to spare.
constexpr unsigned kChains = 8;
static_assert(kFmasPerRound % kChains == 0);

constexpr const char* kSimple = R"(
.version 6.0
.target sm_50
.address_size 64

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

// a = a / 2 + y with y > 0 stays positive, so the store never happens; the compiler cannot know. y lies in a register
// as a does, for it differs from thread to thread.
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

std::string fma() {
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

std::string kernels_ptx() { return std::string(kSimple) + fma(); }

}  // namespace gpuscope::device
