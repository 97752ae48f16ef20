// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>

#include "gpuscope/timing/sampler.h"

namespace gpuscope::timing {
namespace {

// The minimum run time: the GPU's clock has steps of 32 ns on Hopper and 1 us before.
constexpr uint64_t kWindowNs = 20'000;
constexpr uint64_t kShortestNs = 10'000;
constexpr uint64_t kMeterTimeoutNs = 1'000'000;

// Both readings wait for a step of the clock, so that its width has no influence. One thread on one SM reads
// %globaltimer and %clock64.
constexpr const char* kWatch = R"((
  .param .u64 words, .param .u64 window, .param .u64 timeout)
{
  .reg .u64 %words, %window, %timeout, %start, %now, %before, %cycles, %passed;
  .reg .u32 %open, %outcome;
  .reg .pred %again, %late, %shut;
  ld.param.u64 %words, [words];
  ld.param.u64 %window, [window];
  ld.param.u64 %timeout, [timeout];
  mov.u64 %before, %globaltimer;
first:
  mov.u64 %start, %globaltimer;
  mov.u64 %cycles, %clock64;
  setp.eq.u64 %again, %start, %before;
  @%again bra first;
  st.volatile.global.u64 [%words+8], %start;
  st.volatile.global.u64 [%words+16], %cycles;
watch:
  ld.volatile.global.u32 %open, [%words];
  mov.u64 %now, %globaltimer;
  sub.u64 %passed, %now, %start;
  setp.ge.u64 %late, %passed, %timeout;
  @%late bra leave;
  setp.eq.u32 %shut, %open, 0;
  @%shut bra watch;
  setp.lt.u64 %again, %passed, %window;
  @%again bra watch;
leave:
  mov.u64 %before, %globaltimer;
last:
  mov.u64 %now, %globaltimer;
  mov.u64 %cycles, %clock64;
  setp.eq.u64 %again, %now, %before;
  @%again bra last;
  st.volatile.global.u64 [%words+24], %now;
  st.volatile.global.u64 [%words+32], %cycles;
  setp.eq.u32 %shut, %open, 0;
  selp.u32 %outcome, 2, 1, %shut;
  st.volatile.global.u32 [%words+4], %outcome;
  ret;
}
)";

static_assert(offsetof(Gate::Words, outcome) == 4 && offsetof(Gate::Words, start_ns) == 8 &&
              offsetof(Gate::Words, start_cycles) == 16 && offsetof(Gate::Words, end_ns) == 24 &&
              offsetof(Gate::Words, end_cycles) == 32);

// Two names for one kernel: profiles show whether it waited or measured.
std::string ptx() {
  std::string text;
  for (const char* name : {"gpuscope_gate", "gpuscope_meter"}) {
    text.append(".visible .entry ").append(name).append(kWatch);
  }
  return text;
}

}  // namespace

Gate::Gate(const PrimaryContext& context)
    : context_(context),
      module_(context, ptx()),
      gate_(module_.function("gpuscope_gate")),
      meter_(module_.function("gpuscope_meter")) {
  const PrimaryContext::Current current(context_);
  void* words = nullptr;
  GPUSCOPE_CUDA(context_.cuda(), mem_host_alloc, &words, sizeof(Words), kPortableAndMapped);
  words_ = static_cast<Words*>(words);
  *words_ = {};
  if (const int code = context_.cuda().mem_host_get_device_pointer(&address_, words, 0); code != 0) {
    context_.cuda().mem_free_host(words);
    throw base::CudaError("mem_host_get_device_pointer", code, context_.cuda().error_name(code));
  }
}

Gate::~Gate() {
  if (!context_.was_reset()) {  // otherwise the words are gone
    open();
  }
  context_.release_in([&](const driver::Cuda& cuda) { cuda.mem_free_host(words_); });
}

void Gate::launch(driver::CuFunction function, uint64_t stream, uint32_t open, uint64_t timeout_ns) {
  *words_ = {};
  std::atomic_ref(words_->open).store(open, std::memory_order_release);
  uint64_t window_ns = kWindowNs;
  void* arguments[] = {&address_, &window_ns, &timeout_ns};
  module_.launch(function, 1, 1, stream, arguments);
}

void Gate::close(uint64_t stream, uint64_t timeout_ns) { launch(gate_, stream, 0, timeout_ns); }

void Gate::measure(uint64_t stream) { launch(meter_, stream, 1, kMeterTimeoutNs); }

void Gate::open() noexcept { std::atomic_ref(words_->open).store(1, std::memory_order_release); }

bool Gate::held() const noexcept { return std::atomic_ref(words_->outcome).load(std::memory_order_acquire) == kOpened; }

double Gate::clock_hz() const noexcept {
  constexpr double kNsPerSecond = 1e9;
  if (std::atomic_ref(words_->outcome).load(std::memory_order_acquire) == 0 ||
      words_->end_ns < words_->start_ns + kShortestNs) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return static_cast<double>(words_->end_cycles - words_->start_cycles) * kNsPerSecond /
         static_cast<double>(words_->end_ns - words_->start_ns);
}

}  // namespace gpuscope::timing
