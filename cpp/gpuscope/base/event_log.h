// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <semaphore>
#include <string_view>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/events.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::base {

/// The first check of the hot paths. Zero: nothing is recorded. The bits above the flags are the session's number, so
/// that a session does not close a region that was entered before it began.
enum Listen : uint32_t {
  kListenRegions = 1,
  kListenGpuTime = 2,
  kListenStacks = 4,
  kListenProfiled = 8,  // only regions and operators of threads on which torch's profiler is active
};
inline constexpr uint32_t kListenBits = 4;
inline std::atomic<uint32_t> listening{0};

/// 64 KiB of one thread's events. The owner appends, and the reader follows `size`.
struct EventChunk {
  static constexpr uint32_t kCapacity = 4095;
  std::atomic<EventChunk*> next{nullptr};
  std::atomic<uint32_t> size{0};
  std::array<Event, kCapacity> events;
};

/// The events of one thread, in order. append: only the owning thread. All other functions: one reader.
///
/// The reader returns read chunks to the writer, so that a warm log neither allocates nor locks.
class EventLog {
 public:
  /// 256 chunks are a million events, 16 MiB: more than any thread writes while the reader sleeps.
  static constexpr uint32_t kMaxChunks = 256;
  /// The number of read chunks to keep: as many as a writer fills before it wakes the reader.
  static constexpr uint32_t kKeptChunks = kMaxChunks / 4;
  /// The number of chunks (1 MiB) that keep their memory between recordings. Otherwise each page costs the writer a
  /// fault.
  static constexpr uint32_t kWarmChunks = 16;

  EventLog();
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void append(uint64_t word, uint32_t id, Op op, uint32_t detail = 0) noexcept {
    EventChunk* chunk = tail_;
    uint32_t at = filled_;
    if (at == EventChunk::kCapacity) [[unlikely]] {
      chunk = grow();
      if (chunk == nullptr) {
        drop({word, id, static_cast<uint8_t>(op), detail & 0xFFFFFF});
        return;
      }
      at = filled_;
    }
    chunk->events[at] = {word, id, static_cast<uint8_t>(op), detail & 0xFFFFFF};
    filled_ = at + 1;
    chunk->size.store(at + 1, std::memory_order_release);
  }

  /// Adds an attribute to the event that is appended next.
  void add_argument(Argument what, uint64_t value, uint32_t second = 0) noexcept {
    append(value, second, Op::Argument, static_cast<uint32_t>(what));
  }

  /// The end of the readable events at the moment of the call.
  struct Position {
    const EventChunk* chunk;
    uint32_t size;
  };
  Position end() const noexcept;

  /// Passes every event before `limit` to `take(const Event&)`.
  template <class F>
  void read(const Position& limit, F&& take) {
    read_while(limit, [&](const Event& event) {
      take(event);
      return true;
    });
  }
  /// Like read, but stops at the first event for which `take` returns false.
  template <class F>
  void read_while(const Position& limit, F&& take) {
    while (true) {
      const uint32_t until = head_ == limit.chunk ? limit.size : EventChunk::kCapacity;
      for (; read_ < until; ++read_) {
        if (!take(head_->events[read_])) {
          return;
        }
      }
      if (head_ == limit.chunk && limit.size < EventChunk::kCapacity) {
        return;
      }
      EventChunk* next = head_->next.load(std::memory_order_acquire);
      const bool last = head_ == limit.chunk;
      if (next == nullptr) {
        return;
      }
      recycle(head_);
      head_ = next;
      read_ = 0;
      if (last) {
        return;
      }
    }
  }
  /// Whether there are events before `limit`.
  bool has_more(const Position& limit) const noexcept { return head_ != limit.chunk || read_ != limit.size; }
  void skip_all() {
    read(end(), [](const Event&) {});
  }
  /// Returns the memory of read chunks to the system until they are written again. A few stay warm.
  void trim() noexcept;

  /// The number of regions, calls and other pairs since the last call whose beginning or end found no room.
  uint64_t take_dropped() noexcept { return dropped_.exchange(0, std::memory_order_relaxed); }
  /// The writer's work for its events since the last call, without appending, in ns: see WorkTimer.
  uint64_t take_work() noexcept { return work_ns_.exchange(0, std::memory_order_relaxed); }
  /// The same for calls and returns of Python functions.
  uint64_t take_function_work() noexcept { return function_work_ns_.exchange(0, std::memory_order_relaxed); }

  /// Released by a writer that is far ahead of the reader.
  static std::counting_semaphore<>& wake() noexcept;

  /// For the reader: the log belongs to a thread or an ended thread. The next events are that thread's until
  /// release_if_done.
  bool has_owner() const noexcept {
    const Owner owner = owner_.load(std::memory_order_acquire);
    return owner == Owner::Thread || owner == Owner::Gone;
  }
  // Identifies the writer. Set before the log has an owner.
  std::atomic<uint32_t> generation{0};  // number of earlier threads that used this log
  std::atomic<uint32_t> order{0};       // number of threads that began to log before
  std::atomic<uint64_t> system_id{0};
  std::atomic<uint64_t> pthread_id{0};
  std::array<char, 16> thread_name{};
  uint64_t strand = 0;   // the writer's: the task of the next events
  void* task = nullptr;  // the writer's: its Origin of that task
  /// The writer's: the id of a name given as text. 0 if memory ran out.
  uint32_t id_of(std::string_view text) noexcept { return names_ != nullptr || make_names() ? names_->id_of(text) : 0; }
  /// The writer's: cached results of `make()`, which makes texts from the words of `key` and gets their ids with
  /// `id_of`.
  template <class F>
  IdCache::Ids ids_of(const Digest& key, F&& make) noexcept {
    return ids_ != nullptr || make_ids() ? ids_->ids_of(key, make) : make();
  }

 private:
  friend class EventLogs;
  friend class WorkTimer;
  enum class Owner : uint32_t { Thread, Gone, Nobody, Arriving };
  /// Events that found no room. They let the reader place the events after the gap.
  struct Lost {
    uint32_t listening = 0;         // the listeners of that time
    std::optional<Event> strand;    // the last one
    std::optional<Event> origin;    // of that strand
    std::array<Event, 32> steps{};  // Enter, and Exit or Pop of regions entered before. Matching pairs are removed
    std::size_t count = 0;          // of `steps`
    std::size_t before_strand = 0;  // steps before the first lost strand
    std::size_t deeper = 0;         // entered while `steps` was full
  };

  EventChunk* grow() noexcept;
  void drop(const Event& event) noexcept;
  void drop_step(const Event& event) noexcept;
  void drop_strand(const Event& event) noexcept;
  void log_lost() noexcept;
  uint32_t next_timed() noexcept;
  void add_work(uint64_t began_ticks, uint64_t ended_ticks, uint32_t more_ns, uint32_t times,
                bool of_function) noexcept;
  bool make_names() noexcept;
  bool make_ids() noexcept;
  void recycle(EventChunk* chunk) noexcept;

  std::unique_ptr<NameCache> names_;
  std::unique_ptr<IdCache> ids_;
  EventChunk* tail_;          // the writer's
  uint32_t filled_ = 0;       // the writer's: events in tail_
  uint32_t grown_ = 0;        // the writer's: chunks begun
  uint32_t unopened_ = 0;     // the writer's: lost beginnings without an end, since the last gap
  bool has_lost_ = false;     // the writer's: lost_ is not empty
  uint32_t until_timed_ = 1;  // the writer's: works until the next timed one
  uint32_t timed_ = 0;        // the writer's: number of timed works
  uint32_t random_ = 1;       // the writer's
  std::atomic<const EventChunk*> published_tail_;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<uint64_t> work_ns_{0};
  std::atomic<uint64_t> function_work_ns_{0};
  std::atomic<uint32_t> chunks_{1};
  EventChunk* head_;   // the reader's
  uint32_t read_ = 0;  // the reader's: events taken from head_
  std::atomic<EventChunk*> spare_{nullptr};
  std::atomic<Owner> owner_{Owner::Thread};
  EventLog* next_ = nullptr;
  Lost lost_;  // the writer's
};

/// Times the work of a callback for the event that it appends next. The first works of a thread are all timed. Of later
/// ones, a random one of 32 is timed and counts 32 times. Random, so that no loop of the program is in phase with it.
///
/// One timer at a time, on the log's thread.
class WorkTimer {
 public:
  enum class Of : uint8_t { Event, Function };
  /// `more_ns`: additional cost, such as the call of the callback.
  explicit WorkTimer(EventLog& log, Of of = Of::Event, uint32_t more_ns = 0) noexcept
      : log_(log), more_ns_(more_ns), of_(of) {
    if (--log.until_timed_ == 0) [[unlikely]] {
      times_ = log.next_timed();
      began_ = ticks();
    }
  }
  ~WorkTimer() { stop(more_ns_); }
  WorkTimer(const WorkTimer&) = delete;
  WorkTimer& operator=(const WorkTimer&) = delete;

  bool is_on() const noexcept { return times_ != 0; }
  void stop() noexcept { stop(more_ns_); }
  void stop(uint32_t more_ns) noexcept {
    if (is_on()) [[unlikely]] {
      log_.add_work(began_, ticks(), more_ns, std::exchange(times_, 0), of_ == Of::Function);
    }
  }

 private:
  EventLog& log_;
  uint64_t began_ = 0;
  uint32_t more_ns_;
  uint32_t times_ = 0;  // number of works that this one represents, 0 if it is not timed
  Of of_;
};

}  // namespace gpuscope::base
