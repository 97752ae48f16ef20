// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "gpuscope/memory/report.h"

namespace gpuscope::memory {

/// Events as columns, oldest first.
struct HistoryColumns {
  std::vector<int64_t> time_ns;  // since the Unix epoch
  std::vector<uint64_t> address;
  std::vector<int64_t> bytes;
  std::vector<int64_t> allocated;
  std::vector<int64_t> reserved;
  std::vector<int32_t> device;
  std::vector<uint32_t> stack;   // base::Stacks ids
  std::vector<uint32_t> region;  // as base::current_region tells
  std::vector<uint64_t> thread;  // the system's numbers
  std::vector<uint8_t> source;
  uint64_t lost = 0;  // recorded since the start, and not among these
};

/// The last so many reports of allocators, with where in the program each came from: a ring that new ones overwrite.
///
/// record: any thread, any moment, without a lock or an allocation. start, stop, read: one thread at a time.
class History {
 public:
  static constexpr uint64_t kMost = 100'000'000;  // 64 bytes each

  static History& process() noexcept;

  constexpr History() = default;
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  /// Begins anew; the memory is taken page by page as it is filled. Throws std::bad_alloc when there is no room for it.
  void start(uint64_t capacity, bool stacks);
  /// What was recorded stays readable.
  void stop() noexcept;
  bool recording() const noexcept { return recording_.load(std::memory_order_relaxed) != nullptr; }

  /// Nothing while not recording.
  void record(const Report& report) noexcept;

  HistoryColumns read() const;
  uint64_t capacity() const noexcept { return capacity_; }
  /// Since the start, the overwritten ones counted.
  uint64_t recorded() const noexcept { return next_.load(std::memory_order_relaxed) - first_; }
  uint64_t overwritten() const noexcept { return recorded() > capacity_ ? recorded() - capacity_ : 0; }

 private:
  struct Slot;
  struct Ring;

  std::atomic<Ring*> recording_{nullptr};
  std::atomic<uint64_t> next_{0};  // an event's number; goes on over starts, so that no slot's number comes twice
  std::atomic<bool> stacks_{false};
  Ring* ring_ = nullptr;  // the last one, recording or not; never freed: a late writer may be in it
  uint64_t capacity_ = 0;
  uint64_t first_ = 0;
};

}  // namespace gpuscope::memory
