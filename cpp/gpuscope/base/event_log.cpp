// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/event_log.h"

#include <algorithm>
#include <new>
#include <optional>
#include <span>

#include "gpuscope/base/pages.h"

namespace gpuscope::base {

namespace {

/// Whether the event opens a region that Pop closes.
bool is_pushed(const Event& event) noexcept {
  return static_cast<Op>(event.op) == Op::Enter && (event.detail & EnterDetail::kPopped) != 0;
}

}  // namespace

EventLog::EventLog() : tail_(new EventChunk), published_tail_(tail_), head_(tail_) {}

EventLog::~EventLog() {
  for (EventChunk* first : {head_, spare_.load(std::memory_order_relaxed)}) {
    while (first != nullptr) {
      EventChunk* next = first->next.load(std::memory_order_relaxed);
      delete first;
      first = next;
    }
  }
}

std::counting_semaphore<>& EventLog::wake() noexcept {
  // Leaked: threads may log at process exit. NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
  static auto* of_reader = new std::counting_semaphore<>(0);
  return *of_reader;
}

EventLog::Position EventLog::end() const noexcept {
  const EventChunk* chunk = published_tail_.load(std::memory_order_acquire);
  return {chunk, chunk->size.load(std::memory_order_acquire)};
}

EventChunk* EventLog::grow() noexcept {
  // Only this thread takes from the spares, so popping has no ABA problem.
  EventChunk* chunk = spare_.load(std::memory_order_acquire);
  while (chunk != nullptr &&
         !spare_.compare_exchange_weak(chunk, chunk->next.load(std::memory_order_relaxed), std::memory_order_acquire)) {
  }
  if (chunk == nullptr) {
    const uint32_t chunks = chunks_.load(std::memory_order_relaxed);
    chunk = chunks < kMaxChunks ? new (std::nothrow) EventChunk : nullptr;
    if (chunk == nullptr) {
      wake().release();
      return nullptr;
    }
    chunks_.fetch_add(1, std::memory_order_relaxed);
  }
  if (++grown_ % kKeptChunks == 0) {
    wake().release();
  }
  chunk->next.store(nullptr, std::memory_order_relaxed);
  chunk->size.store(0, std::memory_order_relaxed);
  // Published before it is linked: a reader that has advanced to it must not take its predecessor for the tail.
  published_tail_.store(chunk, std::memory_order_release);
  tail_->next.store(chunk, std::memory_order_release);
  tail_ = chunk;
  filled_ = 0;
  unopened_ = 0;
  if (has_lost_) {
    log_lost();
  }
  return chunk;
}

/// Called when there is room again: logs the current task and regions, and the ends that were lost.
void EventLog::log_lost() noexcept {
  if (lost_.listening == listening.load(std::memory_order_relaxed)) {
    const uint64_t now = ticks();
    for (std::size_t step = 0; step <= lost_.count; ++step) {
      for (const std::optional<Event>* event : {&lost_.strand, &lost_.origin}) {
        if (step == lost_.before_strand && event->has_value()) {
          append((*event)->word, (*event)->id, static_cast<Op>((*event)->op), (*event)->detail);
        }
      }
      if (step < lost_.count) {
        const Event& event = lost_.steps[step];
        append(now, event.id, static_cast<Op>(event.op), event.detail);
      }
    }
  }
  lost_ = {};
  has_lost_ = false;
}

void EventLog::drop_strand(const Event& event) noexcept {
  if (!lost_.strand.has_value()) {
    // From here on, regions of different tasks are not distinguished. Popped regions belong to no task.
    Event* const end = lost_.steps.begin() + lost_.count;
    const Event* const kept = std::remove_if(lost_.steps.begin(), end, [](const Event& step) {
      return static_cast<Op>(step.op) == Op::Enter && !is_pushed(step);
    });
    lost_.count = lost_.before_strand = static_cast<std::size_t>(kept - lost_.steps.begin());
  }
  lost_.strand = event;
  lost_.origin.reset();
}

void EventLog::drop_step(const Event& event) noexcept {
  const bool ends = static_cast<Op>(event.op) != Op::Enter;
  const bool pops = static_cast<Op>(event.op) == Op::Pop;
  const bool ends_own = ends && (pops || (event.detail & ExitDetail::kElsewhere) == 0);
  if (ends_own && lost_.deeper != 0) {
    --lost_.deeper;
    return;
  }
  for (std::size_t at = lost_.count; ends_own && at-- != 0;) {
    const Event& begin = lost_.steps[at];
    const bool is_its = pops ? EnterDetail::source(begin.detail) == EnterDetail::source(event.detail)
                             : !is_pushed(begin) && begin.id == event.id &&
                                   EnterDetail::call(begin.detail) == ExitDetail::call(event.detail);
    if (static_cast<Op>(begin.op) == Op::Enter && is_its) {
      std::copy(lost_.steps.begin() + at + 1, lost_.steps.begin() + lost_.count, lost_.steps.begin() + at);
      --lost_.count;
      lost_.before_strand -= at < lost_.before_strand ? 1 : 0;
      return;
    }
  }
  if (lost_.count < lost_.steps.size()) {
    lost_.steps[lost_.count++] = event;
  } else {
    lost_.deeper += ends ? 0 : 1;
  }
}

void EventLog::drop(const Event& event) noexcept {
  if (const uint32_t now = listening.load(std::memory_order_relaxed); !has_lost_ || lost_.listening != now) {
    lost_ = {};
    lost_.listening = now;
    has_lost_ = true;
  }
  bool counts = false;
  switch (static_cast<Op>(event.op)) {
    case Op::Strand:
      drop_strand(event);
      break;
    case Op::Origin:
      lost_.origin = event;
      break;
    case Op::Enter:
    case Op::CallEnter:
    case Op::RangeStart:
    case Op::FunctionEnter:
      ++unopened_;
      counts = true;
      break;
    case Op::Exit:
    case Op::CallExit:
    case Op::Pop:
    case Op::RangeEnd:
    case Op::FunctionExit:
      counts = unopened_ == 0;  // otherwise its beginning was counted
      unopened_ -= counts ? 0 : 1;
      break;
    case Op::Mark:
    case Op::Allocation:
      counts = true;
      break;
    default:  // an attribute of another event
      break;
  }
  dropped_.fetch_add(counts ? 1 : 0, std::memory_order_relaxed);
  const auto op = static_cast<Op>(event.op);
  if (op == Op::Pop || is_pushed(event) || ((op == Op::Enter || op == Op::Exit) && !lost_.strand.has_value())) {
    drop_step(event);
  }
}

namespace {

constexpr uint32_t kAllTimed = 64;       // the first works of a thread are all timed: their caches are cold
constexpr uint32_t kTimedOneOf = 32;     // of the later ones, on average
constexpr int64_t kLongestNs = 100'000;  // longer is the scheduler's

/// The cost of the timing itself.
int64_t timing_ns() noexcept {
  static const int64_t cost_ns = [] {
    const Clock& clock = Clock::process();
    int64_t least = kLongestNs;
    for (int turn = 0; turn < 64; ++turn) {
      const uint64_t began = ticks();
      const uint64_t ended = ticks();
      least = std::min(least, clock.to_ns(ended) - clock.to_ns(began));
    }
    return std::max<int64_t>(least, 0);
  }();
  return cost_ns;
}

}  // namespace

uint32_t EventLog::next_timed() noexcept {
  if (timed_ < kAllTimed) {
    ++timed_;
    until_timed_ = 1;
    return 1;
  }
  random_ = random_ * 1664525 + 1013904223;  // Numerical Recipes
  until_timed_ = 1 + (random_ >> 8) % (2 * kTimedOneOf - 1);
  return kTimedOneOf;
}

void EventLog::add_work(uint64_t began_ticks, uint64_t ended_ticks, uint32_t more_ns, uint32_t times,
                        bool of_function) noexcept {
  const Clock& clock = Clock::process();
  const int64_t ns = clock.to_ns(ended_ticks) - clock.to_ns(began_ticks);
  if (ns >= 0 && ns < kLongestNs) {
    const auto own_ns = static_cast<uint64_t>(std::max<int64_t>(ns - timing_ns(), 0));
    (of_function ? function_work_ns_ : work_ns_).fetch_add((own_ns + more_ns) * times, std::memory_order_relaxed);
  }
}

bool EventLog::make_names() noexcept {
  try {
    names_ = std::make_unique<NameCache>();
  } catch (const std::bad_alloc&) {
  }
  return names_ != nullptr;
}

bool EventLog::make_ids() noexcept {
  try {
    ids_ = std::make_unique<IdCache>();
  } catch (const std::bad_alloc&) {
  }
  return ids_ != nullptr;
}

void EventLog::trim() noexcept {
  // Taken out, trimmed and put back in the same order. A writer meanwhile finds no spare, or an unchanged one.
  EventChunk* first = spare_.exchange(nullptr, std::memory_order_acquire);
  uint32_t warm = 0;
  for (EventChunk* chunk = first; chunk != nullptr; chunk = chunk->next.load(std::memory_order_relaxed)) {
    if (warm < kWarmChunks) {
      ++warm;
      continue;
    }
    give_back_pages(chunk->events.data(), sizeof(chunk->events));
  }
  if (first != nullptr) {
    spare_.store(first, std::memory_order_release);
  }
}

void EventLog::recycle(EventChunk* chunk) noexcept {
  if (chunks_.load(std::memory_order_relaxed) > kKeptChunks) {
    chunks_.fetch_sub(1, std::memory_order_relaxed);
    give_back_pages(chunk->events.data(), sizeof(chunk->events));
    delete chunk;
    return;
  }
  EventChunk* top = spare_.load(std::memory_order_relaxed);
  do {
    chunk->next.store(top, std::memory_order_relaxed);
  } while (!spare_.compare_exchange_weak(top, chunk, std::memory_order_release, std::memory_order_relaxed));
}

}  // namespace gpuscope::base
