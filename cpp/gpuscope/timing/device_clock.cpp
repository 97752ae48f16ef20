// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/device_clock.h"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/pages.h"

namespace gpuscope::timing {
namespace {

constexpr uint64_t kKernelLimitNs = 2'000'000;  // longer if the host's thread loses its CPU

// An answer waits for a step of the clock. So the step's width has no influence, and no two answers are equal.
constexpr const char* kClockKernel = R"(
.visible .entry gpuscope_clock(.param .u64 words, .param .u32 questions, .param .u64 limit)
{
  .reg .u64 %words, %limit, %start, %now, %before, %passed;
  .reg .u32 %asked, %number, %questions;
  .reg .pred %again, %late;
  ld.param.u64 %words, [words];
  ld.param.u32 %questions, [questions];
  ld.param.u64 %limit, [limit];
  mov.u64 %start, %globaltimer;
  mov.u32 %number, 1;
wait:
  ld.volatile.global.u32 %asked, [%words];
  mov.u64 %before, %globaltimer;
  sub.u64 %passed, %before, %start;
  setp.ge.u64 %late, %passed, %limit;
  @%late bra leave;
  setp.lt.u32 %again, %asked, %number;
  @%again bra wait;
step:
  mov.u64 %now, %globaltimer;
  setp.eq.u64 %again, %now, %before;
  @%again bra step;
  st.volatile.global.u64 [%words+8], %now;
  add.u32 %number, %number, 1;
  setp.le.u32 %again, %number, %questions;
  @%again bra wait;
leave:
  st.volatile.global.u32 [%words+4], 1;
  ret;
}
)";

static_assert(offsetof(DeviceClock::Words, ended) == 4 && offsetof(DeviceClock::Words, device_ns) == 8);

/// The first answer that differs from the last one. 0 if none comes in time.
uint64_t wait_for_answer(DeviceClock::Words& words, uint64_t last, std::chrono::nanoseconds limit) noexcept {
  const int64_t until_ns = base::Clock::process().now_ns() + limit.count();
  do {
    if (const uint64_t answer = std::atomic_ref(words.device_ns).load(std::memory_order_acquire); answer != last) {
      return answer;
    }
  } while (base::Clock::process().now_ns() < until_ns);
  return 0;
}

/// Keeps the module for ever.
void leave_behind(std::unique_ptr<Module> module) noexcept {
  try {
    static auto* const left = new std::vector<std::unique_ptr<Module>>;
    left->push_back(nullptr);
    left->back() = std::move(module);
  } catch (const std::bad_alloc&) {
    (void)module.release();
  }
}

}  // namespace

DeviceClock::DeviceClock(const driver::Cuda& cuda, int ordinal) : context_(cuda, ordinal) {
  const PrimaryContext::Current current(context_);
  module_ = std::make_unique<Module>(context_, kClockKernel);
  function_ = module_->function(kKernel);
  void* page = mmap(nullptr, base::kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    throw std::bad_alloc();
  }
  madvise(page, base::kPageBytes, MADV_DONTFORK);  // copy-on-write would separate our page from the GPU's
  words_.reset(new (page) Words{.asked = 0, .ended = 1, .device_ns = 0});
  GPUSCOPE_CUDA(cuda, mem_host_register, page, base::kPageBytes, kPortableAndMapped);
  int code = cuda.mem_host_get_device_pointer(&address_, page, 0);
  code = code == 0 ? cuda.stream_create(&stream_, kNonBlocking) : code;
  if (code != 0) {
    cuda.mem_host_unregister(page);
    throw base::CudaError("cuMemHostGetDevicePointer or cuStreamCreate", code, cuda.error_name(code));
  }
}

void DeviceClock::Free::operator()(Words* words) const noexcept { munmap(words, base::kPageBytes); }

DeviceClock::~DeviceClock() {
  Words* words = words_.release();  // the GPU may write to them until it is known to have ended
  if (context_.was_reset()) {
    leave_behind(std::move(module_));
    return;
  }
  std::atomic_ref(words->asked).store(kNoMore, std::memory_order_release);
  if (std::atomic_ref(words->ended).load(std::memory_order_acquire) == 0) {
    // A kernel that waits behind the program's work will read the words. Unloading it could take for ever.
    leave_behind(std::move(module_));
    return;
  }
  context_.release_in([&](const driver::Cuda& cuda) {
    cuda.stream_destroy(stream_);
    if (cuda.mem_host_unregister(words) == 0) {
      words_.reset(words);
    }
  });
}

std::optional<DeviceClock::Reading> DeviceClock::read(std::chrono::nanoseconds limit) {
  if (context_.was_reset()) {
    return std::nullopt;
  }
  if (std::atomic_ref(words_->ended).load(std::memory_order_acquire) == 0) {
    return std::nullopt;  // the kernel of an earlier reading has not begun
  }
  *words_ = {};
  uint32_t questions = kQuestions;
  uint64_t kernel_limit_ns = kKernelLimitNs;
  void* arguments[] = {&address_, &questions, &kernel_limit_ns};
  const PrimaryContext::Current current(context_);
  std::atomic_ref asked(words_->asked);
  asked.store(1, std::memory_order_release);
  try {
    module_->launch(function_, 1, 1, reinterpret_cast<uint64_t>(stream_), arguments);
  } catch (...) {  // no kernel will end
    std::atomic_ref(words_->ended).store(1, std::memory_order_release);
    throw;
  }
  // The first answer shows that the kernel runs.
  uint64_t last = wait_for_answer(*words_, 0, limit);
  std::optional<Reading> best;
  const base::Clock& clock = base::Clock::process();
  for (uint32_t number = 2; number <= kQuestions && last != 0; ++number) {
    const int64_t begin_ns = clock.now_ns();
    asked.store(number, std::memory_order_release);
    last = wait_for_answer(*words_, last, limit);
    const int64_t width_ns = clock.now_ns() - begin_ns;
    if (last != 0 && (!best || width_ns < best->width_ns)) {
      best = {last, begin_ns + width_ns / 2, width_ns};
    }
  }
  asked.store(kNoMore, std::memory_order_release);
  return best;
}

}  // namespace gpuscope::timing
