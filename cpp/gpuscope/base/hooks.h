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
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/event_log.h"

namespace gpuscope::base {

/// The system's number of the calling thread, cached per thread. Any thread, any time.
uint32_t thread_id() noexcept;

/// Keeps the process's dictionaries (Names, Stacks) and thread_id usable in forked children, from the first call on: no
/// child inherits a locked mutex. To be called by code that starts threads which use them. Any thread.
void survive_forks();

/// An object of this process, created on first use and never destroyed. A forked child creates its own: the parent's
/// threads, and holders of its locks, do not exist there.
///
/// One per T. Under one lock, Python's GIL.
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

/// Deletes an object that this process made. A forked child leaves the parent's objects, for the same reason.
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

/// Blocks all signals on the calling thread in this scope. Threads started in the scope block them for ever.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept;
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Starts a thread of this package. It gets no signals: a signal must reach the program's threads, where its handler
/// may have to interrupt a call. Throws NotAvailable for `what` if the system refuses a thread.
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

/// The currently open regions of the program, for use outside of a recording. A region's identity is the Names id of
/// its name plus one. 0 is none.
///
/// enter, exit: under one lock, Python's GIL. All other functions: any thread, any time.
class OpenRegions {
 public:
  static constexpr std::size_t kMax = 32;  // per thread; deeper regions count as the last one

  enum User : uint32_t { kLedger = 1, kHistory = 2, kBlackBox = 4 };
  /// Tracks regions for `user` from now on. Regions that are already open when the first user begins are unknown.
  static void begin(User user) noexcept;
  static void end(User user) noexcept { users_.fetch_and(~uint32_t{user}); }
  static bool wanted() noexcept { return users_.load(std::memory_order_relaxed) != 0; }
  /// Whether a user needs the names for longer than a recording.
  static bool wanted_by_memory() noexcept { return (users_.load(std::memory_order_relaxed) & ~kBlackBox) != 0; }

  /// One open region of a thread.
  struct Open {
    const void* task;
    uint32_t region;
    uint32_t shown;        // the sink's: its number of the name, 0 at first
    uint64_t began_ticks;  // the sink's likewise
  };
  /// Takes the calling thread's open regions after each change, outermost first. `deeper`: further ones inside the
  /// last.
  using Sink = void (*)(std::span<Open> open, std::size_t deeper) noexcept;
  /// As begin(kBlackBox), with each change reported to `sink`. Null ends it. With the GIL.
  static void watch(Sink sink) noexcept;

  /// On the calling thread. `task`: one of the tasks that share a thread, or null.
  static void enter(uint32_t name, const void* task) noexcept;
  /// Closes the region of the same task if one of that name is open, else of any task.
  static void exit(uint32_t name, const void* task) noexcept;

  /// The innermost region that `task`, or no task, has open on the calling thread.
  static uint32_t of_task(const void* task) noexcept;
  /// The innermost region of the only thread with regions. 0 if several have some. For the program's worker threads.
  static uint32_t of_program() noexcept;

 private:
  struct Thread;
  static Thread& of_thread() noexcept;
  static void report(Thread& thread) noexcept;

  inline static std::atomic<uint32_t> users_{0};
  inline static std::atomic<uint32_t> period_{0};   // of continuous use; regions of earlier periods are void
  inline static std::atomic<uint32_t> threads_{0};  // threads with open regions
  inline static std::atomic<uint32_t> latest_{0};   // innermost region of the thread that last entered or left one
  inline static Sink sink_ = nullptr;
};

/// One frame of a call stack. Its parent gives all frames around it.
struct Frame {
  uint32_t parent = 0;    // the caller's stack, 0 for an outermost frame
  uint32_t function = 0;  // a Names id
  uint32_t file = 0;      // a Names id
  uint32_t line = 0;
  uint32_t instruction = kNoInstruction;  // bytecode offset; only for innermost frames of samples
  static constexpr uint32_t kNoInstruction = UINT32_MAX;
  bool operator==(const Frame&) const = default;
};

/// The call stacks of the process, with ids for the event logs. 0 is no stack. Any thread. Hot paths cache ids.
class Stacks {
 public:
  static Stacks& process() {
    static auto* stacks = new Stacks;  // leaked: logs are read until process exit
    return *stacks;
  }
  /// 0 if there are too many.
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
  // For a fork, so that the child inherits no locked mutex.
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

// Functions that one folder offers to others which do not include it. Callable on any thread at any time, with or
// without the GIL.

/// The calling thread's place in the program, as a Stacks id. 0 for none. Set while stacks are recorded. `call`: as for
/// add_stack.
using StackSource = uint32_t (*)(const void* call) noexcept;
inline std::atomic<StackSource> stack_source{nullptr};

inline uint32_t current_stack(const void* call = nullptr) noexcept {
  const StackSource source = stack_source.load(std::memory_order_acquire);
  return source != nullptr ? source(call) : 0;
}

/// Adds the program's place to the next event. For the hot paths, if kListenStacks is set.
///
/// `call`: an object that lives as long as the C++ call that the event begins. leave_call reports its end. Events
/// inside the call reuse the place if the program's functions cannot return meanwhile.
inline void add_stack(EventLog& log, const void* call = nullptr) noexcept {
  if (const uint32_t stack = current_stack(call); stack != 0) {
    log.add_argument(Argument::Stack, stack);
  }
}

/// add_stack with a timer, for events without other work.
inline void append_stack(EventLog& log) noexcept {
  const WorkTimer timer(log);
  add_stack(log);
}

/// The call inside which the stack source knows the calling thread's place, if any.
#if defined(__x86_64__) || defined(__aarch64__)
[[gnu::tls_model("initial-exec")]]
#endif
inline constinit thread_local const void* known_call = nullptr;

inline void leave_call(const void* call) noexcept {
  if (known_call == call) {
    known_call = nullptr;
  }
}

/// The calling thread's region, as in OpenRegions: the Names id of its name plus one. 0 for none.
using RegionSource = uint32_t (*)() noexcept;
inline std::atomic<RegionSource> region_source{nullptr};

inline uint32_t current_region() noexcept {
  const RegionSource source = region_source.load(std::memory_order_acquire);
  return source != nullptr ? source() : 0;
}

/// The kind of allocated memory. Values are indices of Python's ALLOCATION_KINDS: append only.
enum class AllocationKind : uint8_t {
  Device = 0,   // cuMemAlloc
  Pool = 1,     // stream-ordered, from a memory pool
  Managed = 2,  // migrates between host and device
  Pinned = 3,   // host memory, allocated or registered
  Virtual = 4,  // from cuMemCreate: mapped to an address later
  Array = 5,    // of textures and surfaces
};
inline constexpr int kAllocationKinds = 6;

/// The change of the memory.
enum class AllocationStep : uint8_t {
  Allocated,         // or refused: see `result`
  Released,          // an address or a handle
  Mapped,            // virtual memory got an address
  Unmapped,          // a range of addresses lost its memory
  Retained,          // one more holder of virtual memory
  ContextDestroyed,  // all memory of a context was released with it
};

/// Device numbers for memory that is on no device, or on an unknown one.
inline constexpr int32_t kHostMemory = -1;
inline constexpr int32_t kUnknownDevice = -2;

/// One allocation or release by the driver, as described by the call's parameters.
struct DriverAllocation {
  AllocationStep step = AllocationStep::Allocated;
  AllocationKind kind = AllocationKind::Device;  // of a release: only by address, virtual or array
  int32_t result = 0;                            // CUresult. Steps other than Allocated are reported only on success
  int32_t device = kUnknownDevice;
  uint64_t address = 0;  // 0 for arrays and for unmapped virtual memory
  uint64_t handle = 0;   // of virtual memory and of arrays
  uint64_t bytes = 0;
  uint64_t pool = 0;  // the memory pool, if the call names it
  uint64_t stream = 0;
  uint64_t context = 0;
  uint64_t began_ticks = 0;  // of the call
  uint64_t ended_ticks = 0;
};

/// Takes each allocation, on its thread and inside the driver. Must not call CUDA or CUPTI.
using AllocationSink = void (*)(const DriverAllocation&) noexcept;
inline std::atomic<AllocationSink> allocation_sink{nullptr};

}  // namespace gpuscope::base
