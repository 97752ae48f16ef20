// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvtx/ranges.h"

#include <atomic>
#include <new>

namespace gpuscope::nvtx {
namespace {

// A range's number: the low bits of the session above a counter.
constexpr int kCountBits = 40;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
constexpr uint32_t kSessionMask = (1U << (64 - kCountBits)) - 1;
std::atomic<uint64_t> ranges{0};

}  // namespace

constinit thread_local ThreadRanges* ThreadRanges::current_ = nullptr;
thread_local ThreadRanges::End ThreadRanges::end_;
constinit thread_local bool ThreadRanges::ended_ = false;

ThreadRanges::End::~End() {
  ended_ = true;
  delete current_;
  current_ = nullptr;
}

ThreadRanges* ThreadRanges::make() noexcept {
  if (!ended_) {
    current_ = new (std::nothrow) ThreadRanges;
    if (current_ != nullptr) {
      end_.armed = true;  // the access makes its destructor run at the thread's end
    }
  }
  return current_;
}

uint32_t ThreadRanges::text_id(std::string_view bytes, Encoding encoding) noexcept {
  if (texts_ == nullptr) [[unlikely]] {
    texts_.reset(new (std::nothrow) TextCache);
  }
  return texts_ != nullptr ? texts_->id_of(bytes, encoding) : intern_for_period(bytes, encoding);
}

uint64_t new_range(uint32_t session) noexcept {
  const uint64_t count = ranges.fetch_add(1, std::memory_order_relaxed) + 1;
  return (static_cast<uint64_t>(session & kSessionMask) << kCountBits) | (count & kCountMask);
}

uint32_t session_of_range(uint64_t range) noexcept { return static_cast<uint32_t>(range >> kCountBits); }

void end(uint64_t range) noexcept {
  const uint32_t session = base::listening.load(std::memory_order_relaxed) >> base::kListenBits;
  if (session == 0 || session_of_range(range) != (session & kSessionMask)) {
    return;  // nothing is recorded, or nothing was when it began
  }
  if (base::EventLog* log = base::EventLogs::current(); log != nullptr) {
    log->add_argument(base::Argument::RangeId, range);
    log->append(base::ticks(), 0, base::Op::RangeEnd);
  }
}

}  // namespace gpuscope::nvtx
