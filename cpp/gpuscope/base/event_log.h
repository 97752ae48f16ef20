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
#include "gpuscope/base/strings.h"

namespace gpuscope::base {

/// The kind of a logged event. Each line gives the meaning of an Event's `word`, `id` and `detail`.
enum class Op : uint8_t {
  Enter = 1,           // a region opens: ticks, name id, EnterDetail
  Exit = 2,            // the innermost open region of that name closes: ticks, name id, ExitDetail
  Mark = 3,            // an instant: ticks, name id
  Strand = 4,          // the next events belong to this task: its key, number of its origin, StrandDetail
  CallEnter = 5,       // a driver call begins: ticks, correlation id, callback id
  CallExit = 6,        // it ends: ticks, CUresult, callback id
  Node = 7,            // a graph node was created: its id
  NodeOrigin = 8,      // the node logged just before is a clone of this one: its id
  GpuTime = 9,         // GPU time of the region that closes next: index into the event ring
  Argument = 10,       // attribute of the next event: value, second value, Argument
  Pop = 11,            // the range that its source pushed last closes: ticks, -, the source's EnterDetail
  RangeStart = 12,     // a range opens that any thread may end: ticks, name id, EnterDetail. After a RangeId
  RangeEnd = 13,       // it closes: ticks. After a RangeId
  Allocation = 14,     // memory was allocated or freed: ticks, -, whether it failed. After Address, Bytes and totals
  FunctionEnter = 15,  // a Python function is called: ticks, name id, FunctionDetail
  FunctionExit = 16,   // it returns: ticks, -, FunctionDetail
  Origin = 17,         // the origin of tasks that this task creates, until the next Origin: -, its number
};

/// Whether an event's word is a time.
constexpr bool has_time(Op op) noexcept {
  switch (op) {
    case Op::Enter:
    case Op::Exit:
    case Op::Mark:
    case Op::CallEnter:
    case Op::CallExit:
    case Op::Pop:
    case Op::RangeStart:
    case Op::RangeEnd:
    case Op::Allocation:
    case Op::FunctionEnter:
    case Op::FunctionExit:
      return true;
    default:
      return false;
  }
}

/// The kind of an Argument. Each line gives the meaning of `word` and `id`.
enum class Argument : uint8_t {
  Operator = 1,    // autograd's sequence number, -1 for none; Names id of the input shapes, 0 for none
  Operands = 2,    // torch's number of the operator; number of the operator that made its first tensor, 0 for none
  Stack = 3,       // Stacks id of the Python frames
  RangeId = 4,     // number of a start/end range
  Unsigned = 5,    // payload; Names id of its name
  Signed = 6,      // likewise
  Float = 7,       // likewise, the bits of a double
  Text = 8,        // likewise, a Names id
  Address = 9,     // of the memory
  Bytes = 10,      // allocated, negative if freed; the device, UINT32_MAX for the host
  Allocated = 11,  // total bytes in use on that device, including this one
  Inputs = 13,     // of an operator: Names id of its input strides, 0 for none; Names id of its input types, 0 for none
  Results = 14,    // of the range that ends next: Names id of the result shapes
  Reserved = 12,   // bytes that the allocator holds on that device
  Concrete = 15,   // Names id of the numbers among an operator's inputs
  Overload = 16,   // Names id of the operator's overload
  Bool = 17,       // as Unsigned
  List = 18,       // as Text, of numbers
  Module = 19,     // of a call of a module: its number within its class, from 1
  None = 20,       // as Unsigned: it is None
  Complex = 21,    // as Text, of the two parts of a complex number
};
inline constexpr std::size_t kArguments = 22;

// X(enumerator, value). Values are stored in files: append only.
#define GPUSCOPE_REGION_KIND(X)                 \
  X(Region, 0) /* record_function's */          \
  X(Op, 1)     /* an operator of a framework */ \
  X(Range, 2)  /* an annotation of a library */ \
  X(Module, 3) /* a torch.nn.Module */

/// The kind of an opened region.
#define GPUSCOPE_ENUMERATOR(name, value) name = value,
enum class RegionKind : uint8_t { GPUSCOPE_REGION_KIND(GPUSCOPE_ENUMERATOR) };
#undef GPUSCOPE_ENUMERATOR

/// The `detail` of an Enter: kind, how the region closes, and the Names id of its domain, 0 for none.
///
/// Regions close by name, with Exit. A part of a coroutine or generator between two suspensions has the number of its
/// call instead of the domain. Popped ranges close by Pop, the last of their source first. The source is the detail
/// without the kind.
struct EnterDetail {
  static constexpr uint32_t kKindMask = 7;
  static constexpr uint32_t kPopped = 8;
  static constexpr uint32_t kTorch = 16;  // from torch's own operator ranges, not from NVTX
  static constexpr uint32_t kTorchRange = kPopped | kTorch;
  static constexpr uint32_t kDomainShift = 5;
  static constexpr uint32_t kDomains = 1U << (24 - kDomainShift);

  static constexpr uint32_t make(RegionKind kind, uint32_t flags = 0, uint32_t domain = 0) noexcept {
    return static_cast<uint32_t>(kind) | flags | ((domain < kDomains ? domain : 0) << kDomainShift);
  }
  static constexpr RegionKind kind(uint32_t detail) noexcept {
    return RegionKind{static_cast<uint8_t>(detail & kKindMask)};
  }
  static constexpr uint32_t domain(uint32_t detail) noexcept { return detail >> kDomainShift; }
  /// The call that contains the region as a part. 0 for whole regions.
  static constexpr uint32_t call(uint32_t detail) noexcept {
    return (detail & kPopped) != 0 ? 0 : detail >> kDomainShift;
  }
  static constexpr uint32_t source(uint32_t detail) noexcept { return detail & ~kKindMask; }
};

/// The `detail` of an Exit: whether an exception ended the region, whether another thread entered it, and the call, as
/// in EnterDetail.
struct ExitDetail {
  static constexpr uint32_t kByException = 1;
  static constexpr uint32_t kElsewhere = 2;

  static constexpr uint32_t of_call(uint32_t enter_detail) noexcept {
    return EnterDetail::call(enter_detail) << EnterDetail::kDomainShift;
  }
  static constexpr uint32_t call(uint32_t detail) noexcept { return detail >> EnterDetail::kDomainShift; }
};

#define GPUSCOPE_FUNCTION_KIND(X)          \
  X(Python, 0)  /* a function of Python */ \
  X(BuiltIn, 1) /* one written in C */     \
  X(Garbage, 2) /* a garbage collection */

/// The kind of the called function.
#define GPUSCOPE_ENUMERATOR(name, value) name = value,
enum class FunctionKind : uint8_t { GPUSCOPE_FUNCTION_KIND(GPUSCOPE_ENUMERATOR) };
#undef GPUSCOPE_ENUMERATOR

/// The `detail` of a FunctionEnter and of its FunctionExit: kind, and a hash of the Python frame's address (of the
/// caller's frame for C functions). The hash matches the two events if events between them were lost.
struct FunctionDetail {
  static constexpr uint32_t kKindMask = 3;
  static constexpr uint32_t kRunning = 4;  // of an enter: the call began before the recording
  static constexpr uint32_t kFrameShift = 3;

  static constexpr uint32_t make(FunctionKind kind, uintptr_t frame, uint32_t flags = 0) noexcept {
    const uint64_t spread = (uint64_t{frame} >> 4) * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
    return static_cast<uint32_t>(kind) | flags | (static_cast<uint32_t>(spread >> (40 + kFrameShift)) << kFrameShift);
  }
  static constexpr FunctionKind kind(uint32_t detail) noexcept {
    return FunctionKind{static_cast<uint8_t>(detail & kKindMask)};
  }
};

/// The `detail` of a Strand.
enum StrandDetail : uint32_t {
  kStrandBegins = 1,  // the task's first event: the origin is its creator's, otherwise its own
  kStrandIsTask = 2,  // a task, not the thread's own code
};

/// One logged event.
struct Event {
  uint64_t word;
  uint32_t id;
  uint32_t op : 8;
  uint32_t detail : 24;
};
static_assert(sizeof(Event) == 16);

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

/// All thread logs of the process. The list only grows. Logs of ended threads are reused by new threads.
class EventLogs {
 public:
  static EventLogs& process() noexcept;

  /// The calling thread's log. Null if the thread is ending or memory ran out.
  static EventLog* current() noexcept {
    EventLog* log = current_;
    return log != nullptr ? log : instance().adopt();
  }

  template <class F>
  void each(F&& visit) {
    for (EventLog* log = first_.load(std::memory_order_acquire); log != nullptr; log = log->next_) {
      visit(*log);
    }
  }
  /// For the reader: lets another thread use the log if its thread has ended and all events are read.
  static void release_if_done(EventLog& log) noexcept;

  /// For a forked child: its one thread begins a new log. The parent's logs stay unchanged.
  void forget_all() noexcept;

  /// Released by a writer that is far ahead of the reader.
  std::counting_semaphore<>& wake() noexcept { return wake_; }

  /// Within this scope, nothing of the calling thread is logged. For the work of the recording itself.
  class Silence {
   public:
    Silence() noexcept : log_(std::exchange(current_, nullptr)), ended_before_(std::exchange(ended_, true)) {}
    ~Silence() {
      current_ = log_;
      ended_ = ended_before_;
    }
    Silence(const Silence&) = delete;
    Silence& operator=(const Silence&) = delete;

   private:
    EventLog* log_;
    bool ended_before_;
  };

 private:
  friend class EventLog;
  struct ThreadEnd {
    bool armed = false;
    ~ThreadEnd();
  };

  static EventLogs& instance() noexcept { return process(); }
  EventLog* adopt() noexcept;

#if defined(__x86_64__) || defined(__aarch64__)
  // A pointer fits the static TLS block of a library loaded late, and saves the hot path a call.
  [[gnu::tls_model("initial-exec")]]
#endif
  static constinit thread_local EventLog* current_;  // constinit: no check for initialization at each use
  static thread_local ThreadEnd end_;
  static constinit thread_local bool ended_;

  std::atomic<EventLog*> first_{nullptr};
  std::atomic<uint32_t> threads_{0};
  std::counting_semaphore<> wake_{0};
};

/// The ends of regions that ended on another thread than they began on, in ticks. The reader processes these ends
/// before later events of the other thread.
///
/// One writer, with the GIL, and one reader. Without room, an end is dropped: the region then ends when the reader
/// reaches it.
class EndsElsewhere {
 public:
  static EndsElsewhere& process() noexcept;

  /// Called after the end was logged.
  void add(uint64_t ticks) noexcept {
    const uint32_t written = written_.load(std::memory_order_relaxed);
    const uint32_t waiting = written - read_.load(std::memory_order_acquire);
    if (waiting < times_.size()) {
      times_[written % times_.size()] = ticks;
      written_.store(written + 1, std::memory_order_release);
    }
    if (waiting == times_.size() / 2) {
      EventLogs::process().wake().release();
    }
  }
  /// The oldest end, 0 if there is none.
  uint64_t first() const noexcept {
    const uint32_t read = read_.load(std::memory_order_relaxed);
    return read != written_.load(std::memory_order_acquire) ? times_[read % times_.size()] : 0;
  }
  void take_first() noexcept { read_.fetch_add(1, std::memory_order_release); }
  void take_all() noexcept { read_.store(written_.load(std::memory_order_acquire), std::memory_order_release); }

 private:
  std::array<uint64_t, 4096> times_{};  // a power of two, as the counters wrap
  std::atomic<uint32_t> written_{0};
  std::atomic<uint32_t> read_{0};
};

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

}  // namespace gpuscope::base
