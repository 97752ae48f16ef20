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

/// The kind of a logged event. Each line gives the meaning of `word`, `id` and `detail` of an Event.
enum class Op : uint8_t {
  Enter = 1,           // a region opens: ticks, name id, EnterDetail
  Exit = 2,            // the innermost open region of that name closes: ticks, name id, whether an exception left it
  Mark = 3,            // an instant: ticks, name id
  Strand = 4,          // the events that follow belong to this task: any key, number of an origin, StrandDetail
  CallEnter = 5,       // a driver call begins: ticks, correlation id, callback id
  CallExit = 6,        // it ends: ticks, CUresult, callback id
  Node = 7,            // a graph node came to be: its id
  NodeOrigin = 8,      // the node logged just before was cloned from this one: its id
  GpuTime = 9,         // GPU time of the region that closes next: index into the event ring
  Argument = 10,       // says more of the event that follows: value, second value, Argument
  Pop = 11,            // the range that its source pushed last closes: ticks, -, the source's EnterDetail
  RangeStart = 12,     // a range opens that any thread may end: ticks, name id, EnterDetail; a RangeId comes before it
  RangeEnd = 13,       // it closes: ticks; a RangeId comes before it
  Allocation = 14,     // memory was taken or given back: ticks, -, whether there was none; Address, Bytes and totals
                       // come before it
  FunctionEnter = 15,  // a Python function is called: ticks, name id, FunctionDetail
  FunctionExit = 16,   // it returns: ticks, -, FunctionDetail
  Origin = 17,         // tasks that this one creates from here on name it as their origin, until the next one: -, it
};

/// Whether an event's word is the time.
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
  Operands = 2,    // torch's number of the operator; of the one that made its first tensor, 0 for none
  Stack = 3,       // Stacks id of the Python frames
  RangeId = 4,     // number of a start/end range
  Unsigned = 5,    // payload; Names id of its name
  Signed = 6,      // likewise
  Float = 7,       // likewise, the bits of a double
  Text = 8,        // likewise, a Names id
  Address = 9,     // of the memory
  Bytes = 10,      // taken, negative when given back; the device, UINT32_MAX for the host
  Allocated = 11,  // bytes that the allocator has given out on that device, itself counted
  Inputs = 13,     // of an operator: Names id of their strides, 0 for none; of their types, likewise
  Results = 14,    // of the range that ends next: Names id of the shapes of its results
  Reserved = 12,   // bytes that the allocator holds on that device
  Concrete = 15,   // Names id of the numbers among an operator's inputs
  Overload = 16,   // Names id of the operator's overload
  Bool = 17,       // as Unsigned
  List = 18,       // as Text, of numbers
  Module = 19,     // of a call of a module: which of its class, counted from 1
  None = 20,       // as Unsigned: it is None
  Complex = 21,    // as Text, of the two parts of a complex number
};
inline constexpr std::size_t kArguments = 22;

// X(enumerator, value): values are stored in files, append only.
#define GPUSCOPE_REGION_KIND(X)                 \
  X(Region, 0) /* record_function's */          \
  X(Op, 1)     /* an operator of a framework */ \
  X(Range, 2)  /* an annotation of a library */ \
  X(Module, 3) /* a torch.nn.Module */

/// What opens.
#define GPUSCOPE_ENUMERATOR(name, value) name = value,
enum class RegionKind : uint8_t { GPUSCOPE_REGION_KIND(GPUSCOPE_ENUMERATOR) };
#undef GPUSCOPE_ENUMERATOR

/// The `detail` of an Enter: kind, how it closes, and the Names id of its domain, 0 for none.
///
/// Regions close by name, with Exit, and have the number of a call in place of the domain when they are what a
/// coroutine or generator runs between two suspensions. Popped ones close by Pop, the last of their source first; the
/// source is all but the kind.
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
  /// Which of the calls that are under way it is part of; 0 for what is whole.
  static constexpr uint32_t call(uint32_t detail) noexcept {
    return (detail & kPopped) != 0 ? 0 : detail >> kDomainShift;
  }
  static constexpr uint32_t source(uint32_t detail) noexcept { return detail & ~kKindMask; }
};

/// What an Exit says: whether an exception left the region, whether another thread entered it, and the call that it is
/// part of, where EnterDetail has it.
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

/// What a FunctionEnter is a call of.
#define GPUSCOPE_ENUMERATOR(name, value) name = value,
enum class FunctionKind : uint8_t { GPUSCOPE_FUNCTION_KIND(GPUSCOPE_ENUMERATOR) };
#undef GPUSCOPE_ENUMERATOR

/// The `detail` of a FunctionEnter and of its FunctionExit: kind, and bits of the address of the Python frame (of the
/// caller's, for what is written in C), by which they find each other also where events were lost.
struct FunctionDetail {
  static constexpr uint32_t kKindMask = 3;
  static constexpr uint32_t kRunning = 4;  // of an enter: it was called before recording began
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
  kStrandBegins = 1,  // nothing of it was logged before: the origin is its creator's, otherwise its own
  kStrandIsTask = 2,  // it is not what the thread itself runs
};

/// One logged event.
struct Event {
  uint64_t word;
  uint32_t id;
  uint32_t op : 8;
  uint32_t detail : 24;
};
static_assert(sizeof(Event) == 16);

/// 64 KiB of one thread's events. The owner appends, the reader follows `size`.
struct EventChunk {
  static constexpr uint32_t kCapacity = 4095;
  std::atomic<EventChunk*> next{nullptr};
  std::atomic<uint32_t> size{0};
  std::array<Event, kCapacity> events;
};

/// The events of one thread, in order. append: the owning thread alone; everything else: one reader.
///
/// Read chunks come back to the writer, so that a warm log neither allocates nor locks.
class EventLog {
 public:
  /// 256 chunks are a million events, 16 MiB: more than any thread writes while the reader sleeps.
  static constexpr uint32_t kMaxChunks = 256;
  /// So many are kept once they are read: what a writer fills until it wakes the reader.
  static constexpr uint32_t kKeptChunks = kMaxChunks / 4;
  /// So many, 1 MiB, keep their memory between recordings: a page that the system has taken costs the writer a fault,
  /// as much as some hundred events.
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

  /// An attribute of the event that is appended next.
  void add_argument(Argument what, uint64_t value, uint32_t second = 0) noexcept {
    append(value, second, Op::Argument, static_cast<uint32_t>(what));
  }

  /// Where reading may go up to at the moment of the call.
  struct Position {
    const EventChunk* chunk;
    uint32_t size;
  };
  Position end() const noexcept;

  /// Hands every event before `limit` to `take(const Event&)`.
  template <class F>
  void read(const Position& limit, F&& take) {
    read_while(limit, [&](const Event& event) {
      take(event);
      return true;
    });
  }
  /// Likewise up to the first that is not taken: of which `take` returns false.
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
  /// Whether there is anything to read before `limit`.
  bool has_more(const Position& limit) const noexcept { return head_ != limit.chunk || read_ != limit.size; }
  void skip_all() {
    read(end(), [](const Event&) {});
  }
  /// Has the system take the memory of chunks that were read, until they are written to again, but for a few.
  void trim() noexcept;

  /// Regions, calls and the like of which the beginning or the end found no room since the last call.
  uint64_t take_dropped() noexcept { return dropped_.exchange(0, std::memory_order_relaxed); }
  /// How long the writer has worked for its events since the last call, besides appending them, in ns: see WorkTimer.
  uint64_t take_work() noexcept { return work_ns_.exchange(0, std::memory_order_relaxed); }
  /// The same for calls and returns of Python functions.
  uint64_t take_function_work() noexcept { return function_work_ns_.exchange(0, std::memory_order_relaxed); }

  /// For the reader: a thread has it or had it, and what follows is that thread's until release_if_done.
  bool has_owner() const noexcept {
    const Owner owner = owner_.load(std::memory_order_acquire);
    return owner == Owner::Thread || owner == Owner::Gone;
  }
  // Who writes here. Set before the log has an owner.
  std::atomic<uint32_t> generation{0};  // counts the threads that have used this log
  std::atomic<uint32_t> order{0};       // counts the threads that began to log before
  std::atomic<uint64_t> system_id{0};
  std::atomic<uint64_t> pthread_id{0};
  std::array<char, 16> thread_name{};
  uint64_t strand = 0;   // the writer's: the task whose events come now
  void* task = nullptr;  // the writer's: what it knows of that task
  /// The writer's: the ids of names that come as text. 0 when memory ran out.
  uint32_t id_of(std::string_view text) noexcept { return names_ != nullptr || make_names() ? names_->id_of(text) : 0; }
  /// The writer's: the ids of the texts that `make()` makes from what the key says, by `id_of`.
  template <class F>
  IdCache::Ids ids_of(const Digest& key, F&& make) noexcept {
    return ids_ != nullptr || make_ids() ? ids_->ids_of(key, make) : make();
  }

 private:
  friend class EventLogs;
  friend class WorkTimer;
  enum class Owner : uint32_t { Thread, Gone, Nobody, Arriving };
  /// Events that found no room, by which the reader knows where those that find room again lie.
  struct Lost {
    uint32_t listening = 0;         // to whom
    std::optional<Event> strand;    // the last one
    std::optional<Event> origin;    // of it
    std::array<Event, 32> steps{};  // Enter, and Exit or Pop of what was entered before, but for what cancels out
    std::size_t count = 0;          // of these
    std::size_t before_strand = 0;  // those that come before the first strand that was lost
    std::size_t deeper = 0;         // entered when there were too many
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
  uint32_t unopened_ = 0;     // the writer's: dropped beginnings whose ends have not come, since there was room last
  bool has_lost_ = false;     // the writer's: there is something in lost_
  uint32_t until_timed_ = 1;  // the writer's: works until the next one that is timed
  uint32_t timed_ = 0;        // the writer's: works that were timed
  uint32_t random_ = 1;       // the writer's
  std::atomic<const EventChunk*> published_tail_;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<uint64_t> work_ns_{0};
  std::atomic<uint64_t> function_work_ns_{0};
  std::atomic<uint32_t> chunks_{1};
  EventChunk* head_;   // the reader's
  uint32_t read_ = 0;  // the reader's: events of head_ taken
  std::atomic<EventChunk*> spare_{nullptr};
  std::atomic<Owner> owner_{Owner::Thread};
  EventLog* next_ = nullptr;
  Lost lost_;  // the writer's
};

/// Times what a callback of ours does for the event that it is about to append: the first works of a thread, then one
/// of 32, at random, so that no loop of the program keeps step with them, which stands for as many.
///
/// One thread, of which the log is; one at a time.
class WorkTimer {
 public:
  enum class Of : uint8_t { Event, Function };
  /// `more_ns`: what it takes besides, as to call the callback.
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
  uint32_t times_ = 0;  // how many works this one stands for; 0: it is not timed
  Of of_;
};

/// Every thread's log in the process. The list only grows; logs of ended threads are handed to new ones.
class EventLogs {
 public:
  static EventLogs& process() noexcept;

  /// The calling thread's log; nullptr once the thread is being torn down or when memory ran out.
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
  /// For the reader: a log whose thread has ended and whose events are all read may serve another thread.
  static void release_if_done(EventLog& log) noexcept;

  /// For the child of a fork: its one thread begins a new log, the others' stayed behind as they were.
  void forget_all() noexcept;

  /// Released by a writer that is far ahead of the reader.
  std::counting_semaphore<>& wake() noexcept { return wake_; }

  /// Nothing that the calling thread does within this scope is logged: what a recording needs for itself.
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
  // A pointer fits the static TLS block of a library loaded late, and spares the hot path a call.
  [[gnu::tls_model("initial-exec")]]
#endif
  static constinit thread_local EventLog* current_;  // constinit: no check of an initializer at each use
  static thread_local ThreadEnd end_;
  static constinit thread_local bool ended_;

  std::atomic<EventLog*> first_{nullptr};
  std::atomic<uint32_t> threads_{0};
  std::counting_semaphore<> wake_{0};
};

/// When regions ended on a thread that need not be the one they began on, in ticks: the reader reads these ends before
/// what the other thread did next.
///
/// One writer, who holds the GIL, and one reader. Where too many wait, further ones are left out: such a region ends
/// when the reader comes to its end.
class EndsElsewhere {
 public:
  static EndsElsewhere& process() noexcept;

  /// After the end was logged.
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
  /// The oldest, 0 for none.
  uint64_t first() const noexcept {
    const uint32_t read = read_.load(std::memory_order_relaxed);
    return read != written_.load(std::memory_order_acquire) ? times_[read % times_.size()] : 0;
  }
  void take_first() noexcept { read_.fetch_add(1, std::memory_order_release); }
  void take_all() noexcept { read_.store(written_.load(std::memory_order_acquire), std::memory_order_release); }

 private:
  std::array<uint64_t, 4096> times_{};  // 2^n, as the counts below wrap
  std::atomic<uint32_t> written_{0};
  std::atomic<uint32_t> read_{0};
};

/// What the hot paths ask first. Zero: nobody listens. Above the flags stands the number of the session, so that a
/// region that was entered before one began is not closed in it.
enum Listen : uint32_t {
  kListenRegions = 1,
  kListenGpuTime = 2,
  kListenStacks = 4,
  kListenProfiled = 8,  // regions and operators of threads alone on which torch's profiler is on
};
inline constexpr uint32_t kListenBits = 4;
inline std::atomic<uint32_t> listening{0};

}  // namespace gpuscope::base
