// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/event_log.h"

namespace gpuscope::base {

/// The system's number of the calling thread, asked for once a thread. Any thread, any moment.
uint32_t thread_id() noexcept;

/// Keeps the process's dictionaries (Names, Stacks) and thread_id usable in children that it forks: none inherits a
/// lock that nobody will release. From the first call on; to be called by whatever has other threads use them. Any
/// thread.
void survive_forks();

/// An object of this process, made when first asked for and never destroyed. A forked child makes one of its own: the
/// threads of the parent's, and those that may hold its locks, exist in the parent only.
///
/// One for each T. Under one lock, Python's GIL.
template <class T, class... Arguments>
T& of_process(Arguments&&... arguments) {
  static T* made = nullptr;
  static pid_t process = 0;
  if (process != getpid()) {
    made = new T(std::forward<Arguments>(arguments)...);
    process = getpid();
  }
  return *made;
}

/// Deletes what this process made. A forked child leaves what its parent made as it is, for the same reason.
class DeleteOwn {
 public:
  template <class T>
  void operator()(T* made) const {
    if (process_ == getpid()) {
      delete made;
    }
  }

 private:
  pid_t process_ = getpid();
};

/// While it lives, the calling thread takes no signal; nor do threads that it starts, ever.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept;
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Starts a thread of ours. The program's signals must reach its own threads: a handler there may be meant to interrupt
/// a call. Throws NotAvailable, that of `what`, where the system gives no further thread.
template <class F>
std::thread start_thread(const char* what, F&& run) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::forward<F>(run));
  } catch (const std::system_error&) {
    throw NotAvailable(what, "the system gives this process no further thread",
                       "raise the limit of processes (ulimit -u, the container's pids.max) or of memory (ulimit -v)");
  }
}

/// The regions of the program that are open now, for use outside of a recording. A region is identified by its name's
/// Names id, plus one; 0 is none.
///
/// enter, exit: under one lock, Python's GIL. The rest: any thread, any moment.
class OpenRegions {
 public:
  static constexpr std::size_t kMax = 32;  // of a thread; any further in count as the last of these

  enum User : uint32_t { kLedger = 1, kHistory = 2 };
  /// Tracks regions for `user` from now on. Regions that are open already at the first begin are not known.
  static void begin(User user) noexcept;
  static void end(User user) noexcept { users_.fetch_and(~uint32_t{user}); }
  static bool wanted() noexcept { return users_.load(std::memory_order_relaxed) != 0; }

  /// On the calling thread. `task` identifies one of the tasks that share a thread; null for none.
  static void enter(uint32_t name, const void* task) noexcept;
  /// Of the same task, where it has one of that name open; else of any.
  static void exit(uint32_t name, const void* task) noexcept;

  /// The innermost of the calling thread that `task`, or no task, has open.
  static uint32_t of_task(const void* task) noexcept;
  /// The innermost of the one thread that has any; 0 where several have. For threads that work for the program's own.
  static uint32_t of_program() noexcept;

 private:
  struct Thread;
  static Thread& of_thread() noexcept;

  inline static std::atomic<uint32_t> users_{0};
  inline static std::atomic<uint32_t> period_{0};   // of users without a gap: what was open in an earlier one is void
  inline static std::atomic<uint32_t> threads_{0};  // that have regions open
  inline static std::atomic<uint32_t> latest_{0};   // innermost of the thread that entered or left one last
};

/// One frame of a call stack and, by its parent, all frames around it.
struct Frame {
  uint32_t parent = 0;    // the stack of its caller; 0 for an outermost frame
  uint32_t function = 0;  // a Names id
  uint32_t file = 0;      // a Names id
  uint32_t line = 0;
  uint32_t instruction = kNoInstruction;  // where in the function's bytecode; of the innermost frame of a sample
  static constexpr uint32_t kNoInstruction = UINT32_MAX;
  bool operator==(const Frame&) const = default;
};

/// The call stacks of the process, as ids that the event logs carry; 0 is no stack. Any thread; never on a hot path,
/// which caches ids.
class Stacks {
 public:
  static Stacks& process() {
    static auto* stacks = new Stacks;  // leaked: logs are read until the last moment
    return *stacks;
  }
  /// 0 once there are too many.
  uint32_t intern(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    if (const auto found = ids_.find(frame); found != ids_.end()) {
      return found->second;
    }
    if (frames_.size() >= kMax) {
      return 0;
    }
    const auto id = static_cast<uint32_t>(frames_.size());
    frames_.push_back(frame);
    ids_.emplace(frame, id);
    return id;
  }
  Frame operator[](uint32_t id) {
    const std::lock_guard lock(mutex_);
    return id < frames_.size() ? frames_[id] : Frame{};
  }
  // Around a fork, so that the child does not inherit a lock that nobody will release.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Hash {
    std::size_t operator()(const Frame& frame) const noexcept {
      uint64_t value = (uint64_t{frame.parent} << 32 | frame.line) * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
      value ^= (uint64_t{frame.function} << 32 | frame.file) * 0xC2B2AE3D27D4EB4FULL;
      value ^= uint64_t{frame.instruction} * 0x165667B19E3779F9ULL;
      return static_cast<std::size_t>(value ^ (value >> 29));
    }
  };
  static constexpr std::size_t kMax = std::size_t{1} << 20;
  std::mutex mutex_;
  std::vector<Frame> frames_ = std::vector<Frame>(1);
  std::unordered_map<Frame, uint32_t, Hash> ids_;
};

// What one room asks of another that it does not know: one function each, set by whoever can answer, and callable on
// any thread at any moment, with or without the GIL.

/// Where the calling thread is in the program, as a Stacks id; 0 for nowhere. Set while stacks are wanted. `call`: as
/// for append_stack.
using StackSource = uint32_t (*)(const void* call) noexcept;
inline std::atomic<StackSource> stack_source{nullptr};

inline uint32_t current_stack(const void* call = nullptr) noexcept {
  const StackSource source = stack_source.load(std::memory_order_acquire);
  return source != nullptr ? source(call) : 0;
}

/// Says of the event that comes next where in the program it happened. For the hot paths, when kListenStacks is set.
///
/// `call`: an object that lives as long as the call of C++ that the event begins, on whose end leave_call is told of
/// it: what happens inside needs no look of its own, if the functions of the program stand still so long.
inline void add_stack(EventLog& log, const void* call = nullptr) noexcept {
  if (const uint32_t stack = current_stack(call); stack != 0) {
    log.add_argument(Argument::Stack, stack);
  }
}

/// Likewise, timed: where nothing else is gathered for the event.
inline void append_stack(EventLog& log) noexcept {
  const WorkTimer timer(log);
  add_stack(log);
}

/// The call, if any, inside of which the stack source knows where the calling thread is.
#if defined(__x86_64__) || defined(__aarch64__)
[[gnu::tls_model("initial-exec")]]
#endif
inline constinit thread_local const void* known_call = nullptr;

inline void leave_call(const void* call) noexcept {
  if (known_call == call) {
    known_call = nullptr;
  }
}

/// The region that the calling thread works in, as OpenRegions has it: the Names id of its name plus one; 0 for none.
using RegionSource = uint32_t (*)() noexcept;
inline std::atomic<RegionSource> region_source{nullptr};

inline uint32_t current_region() noexcept {
  const RegionSource source = region_source.load(std::memory_order_acquire);
  return source != nullptr ? source() : 0;
}

/// What memory an allocation is of. Values are the indices of Python's ALLOCATION_KINDS: append only.
enum class AllocationKind : uint8_t {
  Device = 0,   // cuMemAlloc
  Pool = 1,     // stream-ordered, out of a memory pool
  Managed = 2,  // moves between host and device
  Pinned = 3,   // of the host, allocated or registered
  Virtual = 4,  // cuMemCreate's: mapped to an address later
  Array = 5,    // of textures and surfaces
};
inline constexpr int kAllocationKinds = 6;

/// What happened to the memory.
enum class AllocationStep : uint8_t {
  Allocated,         // or refused: see `result`
  Released,          // an address or a handle
  Mapped,            // virtual memory got an address
  Unmapped,          // a range of addresses lost its memory
  Retained,          // one more holder of virtual memory
  ContextDestroyed,  // all memory of a context was released with it
};

/// Memory as the driver knows it, beside the devices.
inline constexpr int32_t kHostMemory = -1;
inline constexpr int32_t kUnknownDevice = -2;

/// One driver-level allocation or release, as far as the parameters of the call say.
struct DriverAllocation {
  AllocationStep step = AllocationStep::Allocated;
  AllocationKind kind = AllocationKind::Device;  // of a release: only whether it is by address, virtual or of an array
  int32_t result = 0;  // CUresult; steps other than Allocated are reported only when they succeeded
  int32_t device = kUnknownDevice;
  uint64_t address = 0;  // 0 for arrays and for virtual memory that is not mapped
  uint64_t handle = 0;   // of virtual memory and of arrays
  uint64_t bytes = 0;
  uint64_t pool = 0;  // the memory pool, where the call names it
  uint64_t stream = 0;
  uint64_t context = 0;
  uint64_t began_ticks = 0;  // of the call
  uint64_t ended_ticks = 0;
};

/// Takes each of them, on the thread of the allocation and inside the driver: must not call CUDA or CUPTI.
using AllocationSink = void (*)(const DriverAllocation&) noexcept;
inline std::atomic<AllocationSink> allocation_sink{nullptr};

}  // namespace gpuscope::base
