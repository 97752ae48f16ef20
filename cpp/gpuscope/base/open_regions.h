// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpuscope::base {

/// The regions of the program that are open now, for those who ask in that moment and have no recording to look it up
/// in. A region is told by its name's Names id, plus one; 0 is none.
///
/// enter, exit: under one lock, Python's GIL. The rest: any thread, any moment.
class OpenRegions {
 public:
  static constexpr std::size_t kMost = 32;  // of a thread; any further in count as the last of these

  enum User : uint32_t { kLedger = 1, kHistory = 2 };
  /// From now on `user` asks. Regions that are open already when the first comes stay unknown.
  static void begin(User user) noexcept;
  static void end(User user) noexcept { users_.fetch_and(~uint32_t{user}); }
  static bool wanted() noexcept { return users_.load(std::memory_order_relaxed) != 0; }

  /// On the calling thread. `task`: what tells tasks that take turns on one thread apart; null for none.
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

}  // namespace gpuscope::base
