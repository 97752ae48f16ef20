// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpuscope/base/hooks.h"

namespace gpuscope::memory {

/// The source of a report. Numbers as in SOURCES of gpuscope/memory/events.py.
enum class Source : uint8_t { Torch = 0, Cupy = 1, Driver = 2, Other = 3, Numpy = 4 };

inline constexpr int32_t kHost = -1;            // instead of a GPU's ordinal
inline constexpr int64_t kUnknownRelease = -1;  // bytes of a release with an unknown size

/// One allocation or release, as an allocator reports it.
struct Report {
  uint64_t address = 0;
  int64_t bytes = 0;      // negative when freed
  int64_t allocated = 0;  // in use by that allocator on that device, including this; 0 if not reported
  int64_t reserved = 0;   // reserved by that allocator on that device; 0 if not reported
  int32_t device = kHost;
  Source source = Source::Other;
};

/// Events as columns, oldest first.
struct HistoryColumns {
  std::vector<int64_t> time_ns;  // since the Unix epoch
  std::vector<uint64_t> address;
  std::vector<int64_t> bytes;
  std::vector<int64_t> allocated;
  std::vector<int64_t> reserved;
  std::vector<int32_t> device;
  std::vector<uint32_t> stack;   // base::Stacks ids
  std::vector<uint32_t> region;  // as base::current_region returns it
  std::vector<uint64_t> thread;  // the system's numbers
  std::vector<uint8_t> source;
  uint64_t lost = 0;  // recorded since the start, and overwritten
};

/// The call stack with the most live memory. 0 for none.
struct Largest {
  uint32_t stack = 0;
  int64_t bytes = 0;
};

/// The latest reports of allocators with their place in the program, in a ring buffer.
///
/// record: any thread, any time, without a lock or an allocation. start, stop, read: one thread at a time.
class History {
 public:
  static constexpr uint64_t kMax = 100'000'000;  // 64 bytes each

  static History& process() noexcept;

  constexpr History() = default;
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  /// Starts an empty history. Memory is used page by page as it fills, and kept for later histories of that size or
  /// less. Throws std::bad_alloc if there is no room.
  void start(uint64_t capacity, bool stacks);
  /// The history stays readable.
  void stop() noexcept;
  bool recording() const noexcept { return recording_.load(std::memory_order_relaxed) != nullptr; }

  /// Nothing while not recording.
  void record(const Report& report) noexcept;

  /// Without the first `since` reports.
  HistoryColumns read(uint64_t since = 0) const;
  /// The same for allocations in use on a device, excluding the driver's.
  Largest largest(uint64_t since, int32_t device) const;
  uint64_t capacity() const noexcept { return capacity_; }
  /// Reports since the start, including overwritten ones.
  uint64_t recorded() const noexcept { return next_.load(std::memory_order_relaxed) - first_; }
  uint64_t overwritten() const noexcept { return recorded() > capacity_ ? recorded() - capacity_ : 0; }
  /// The memory of the history so far: slots that were written once.
  uint64_t resident_bytes() const noexcept;

 private:
  struct Slot;
  struct Ring;

  std::atomic<Ring*> recording_{nullptr};
  std::atomic<uint64_t> next_{0};  // an event's number; continues over starts, so that slot numbers never repeat
  std::atomic<bool> stacks_{false};
  Ring* ring_ = nullptr;  // the latest, recording or not; never freed, as a delayed writer may use it
  uint64_t capacity_ = 0;
  uint64_t first_ = 0;
  uint64_t ring_first_ = 0;  // likewise, of the ring
};

/// The maximum memory in use on a device, since each of several moments.
///
/// Any thread, any time. report takes no lock and does not allocate.
class Peaks {
 public:
  static constexpr uint32_t kMax = 64;     // open at once
  static constexpr uint32_t kNone = kMax;  // instead of a scope's number

  static Peaks& process() noexcept {
    static constinit Peaks peaks;
    return peaks;
  }

  /// A scope that begins now. kNone if too many are open.
  uint32_t open(int32_t device) noexcept;
  void close(uint32_t scope) noexcept;
  /// None before any report.
  std::optional<int64_t> highest(uint32_t scope) const noexcept;

  bool wanted() const noexcept { return open_.load(std::memory_order_relaxed) != 0; }
  /// Reports the bytes in use on that device.
  void report(int32_t device, int64_t allocated) noexcept;

 private:
  std::atomic<uint64_t> taken_{0};  // a bit a scope
  std::atomic<uint64_t> open_{0};
  // Device and bytes in one word: a late report for a scope cannot raise its successor's.
  std::array<std::atomic<uint64_t>, kMax> words_{};
};

/// One scope. Any thread, one at a time.
class PeakMemory {
 public:
  explicit PeakMemory(int32_t device) noexcept : scope_(Peaks::process().open(device)) {}
  ~PeakMemory() { close(); }
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  bool is_open() const noexcept { return scope_ != Peaks::kNone; }
  std::optional<int64_t> bytes() const noexcept { return is_open() ? Peaks::process().highest(scope_) : last_; }
  /// The highest report stays readable.
  void close() noexcept;

 private:
  uint32_t scope_;
  std::optional<int64_t> last_;
};

}  // namespace gpuscope::memory
