// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/nvtx/names.h"

namespace gpuscope::nvtx {

/// NVTX's result if no depth is counted (nvToolsExt.h, NVTX_NO_PUSH_POP_TRACKING).
inline constexpr int kNotCounted = -2;

/// A thread's pushed ranges, and the ids of its texts. Only for the calling thread.
class ThreadRanges {
 public:
  /// The calling thread's. Null if the thread is ending or memory ran out.
  static ThreadRanges* current() noexcept {
    ThreadRanges* thread = current_;
    return thread != nullptr ? thread : make();
  }
  /// The base::Names id of a text.
  uint32_t text_id(std::string_view bytes, Encoding encoding) noexcept;

  /// The depth of the range that opens now.
  int push(Domain domain, uint32_t session) noexcept {
    Level& level = level_of(domain, session);
    return static_cast<int>(level.depth++);
  }
  struct Popped {
    int depth;      // of the range that closed, -1 for none
    bool recorded;  // it was opened in that session
  };
  Popped pop(Domain domain, uint32_t session) noexcept {
    Level& level = level_of(domain, session);
    if (level.depth == 0) {
      return {-1, false};
    }
    const bool recorded = level.depth-- > level.floor;
    level.floor = recorded ? level.floor : level.depth;
    return {static_cast<int>(level.depth), recorded};
  }

 private:
  // Ranges of one domain. Those below the floor were opened outside a session, or in an earlier one.
  struct Level {
    uint32_t depth = 0;
    uint32_t floor = 0;
    uint32_t session = 0;
  };
  struct End {
    bool armed = false;
    ~End();
  };

  Level& level_of(Domain domain, uint32_t session) noexcept {
    Level& level = levels_[domain < levels_.size() ? domain : levels_.size() - 1];
    if (level.session != session) [[unlikely]] {
      level.session = session;
      level.floor = level.depth;
    }
    return level;
  }
  static ThreadRanges* make() noexcept;

#if defined(__x86_64__) || defined(__aarch64__)
  [[gnu::tls_model("initial-exec")]]  // like the event log's: saves the hot path a call
#endif
  static constinit thread_local ThreadRanges* current_;
  static thread_local End end_;
  static constinit thread_local bool ended_;

  std::array<Level, 64> levels_;  // by domain; later domains share the last
  std::unique_ptr<TextCache> texts_;
};

/// A number for a range that any thread may end. It contains the session in which the range was started.
uint64_t new_range(uint32_t session) noexcept;
uint32_t session_of_range(uint64_t range) noexcept;

inline uint32_t range_detail(Domain domain, uint32_t flags) noexcept {
  return base::EnterDetail::make(base::RegionKind::Range, flags, domain_name(domain));
}

// Every function below: any thread, any time. `describe(Thread&, EventLog&)` is called while a profiler listens. It
// appends the event's payload and returns its name, a base::Names id.

/// Returns the depth of the new range in its domain, from 0.
template <class F>
int push(Domain domain, F&& describe) noexcept {
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  ThreadRanges* thread = ThreadRanges::current();
  if (thread == nullptr) [[unlikely]] {
    return kNotCounted;
  }
  const int depth = thread->push(domain, listening >> base::kListenBits);
  base::EventLog* log = listening != 0 ? base::EventLogs::current() : nullptr;
  if (log != nullptr) {
    const uint32_t name = describe(*thread, *log);
    if ((listening & base::kListenStacks) != 0) [[unlikely]] {
      base::append_stack(*log);
    }
    log->append(base::ticks(), name, base::Op::Enter, range_detail(domain, base::EnterDetail::kPopped));
  }
  return depth;
}

/// Returns the depth of the closing range, or -1 if none is open. The name that `describe` returns is not used.
template <class F>
int pop(Domain domain, F&& describe) noexcept {
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  ThreadRanges* thread = ThreadRanges::current();
  if (thread == nullptr) [[unlikely]] {
    return kNotCounted;
  }
  const ThreadRanges::Popped popped = thread->pop(domain, listening >> base::kListenBits);
  base::EventLog* log = listening != 0 && popped.recorded ? base::EventLogs::current() : nullptr;
  if (log != nullptr) {
    describe(*thread, *log);
    log->append(base::ticks(), 0, base::Op::Pop, range_detail(domain, base::EnterDetail::kPopped));
  }
  return popped.depth;
}

/// Returns the number of the new range.
template <class F>
uint64_t start(Domain domain, F&& describe) noexcept {
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  const uint64_t range = new_range(listening >> base::kListenBits);
  ThreadRanges* thread = listening != 0 ? ThreadRanges::current() : nullptr;
  base::EventLog* log = thread != nullptr ? base::EventLogs::current() : nullptr;
  if (log != nullptr) {
    const uint32_t name = describe(*thread, *log);
    if ((listening & base::kListenStacks) != 0) [[unlikely]] {
      base::append_stack(*log);
    }
    log->add_argument(base::Argument::RangeId, range);
    log->append(base::ticks(), name, base::Op::RangeStart, range_detail(domain, 0));
  }
  return range;
}

void end(uint64_t range) noexcept;

template <class F>
void mark(F&& describe) noexcept {
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  ThreadRanges* thread = listening != 0 ? ThreadRanges::current() : nullptr;
  base::EventLog* log = thread != nullptr ? base::EventLogs::current() : nullptr;
  if (log != nullptr) {
    const uint32_t name = describe(*thread, *log);
    log->append(base::ticks(), name, base::Op::Mark);
  }
}

// Each library that uses NVTX contains a copy of it. At its first call, the copy loads the tool named by
// NVTX_INJECTION64_PATH. The tool's two entry points call the functions below, which put our functions into the copy's
// tables.

/// NVTX's function that returns its tables (NvtxGetExportTableFunc_t).
using GetExportTable = const void* (*)(uint32_t table);

/// Becomes the tool of one copy of NVTX. False if the copy is unknown.
bool attach(GetExportTable get_export_table) noexcept;

/// Becomes the tool of one of its extensions (nvtxExtModuleInfo_t). Ignores unknown extensions.
bool attach_extension(const void* module) noexcept;

/// The files of the libraries whose tool we are, in order.
std::vector<std::string> attached_libraries();

/// Sets NVTX_INJECTION64_PATH to our file in this process, not in forked children. Programs started by vfork or
/// posix_spawn get the environment given to exec: see `environment_of_children`. One thread at a time.
void offer(const std::string& path);
/// Removes the variable if it is ours. Returns whether it was.
bool withdraw() noexcept;
/// The environment as ``name=value``, without the variable if it is ours.
std::vector<std::string> environment_of_children();

}  // namespace gpuscope::nvtx
