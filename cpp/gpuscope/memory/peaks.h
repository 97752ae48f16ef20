// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace gpuscope::memory {

/// The most that was handed out on a device, since each of a few moments.
///
/// Any thread, any moment; report takes no lock and allocates nothing.
class Peaks {
 public:
  static constexpr uint32_t kMost = 64;     // open at once
  static constexpr uint32_t kNone = kMost;  // in place of a scope's number

  static Peaks& process() noexcept {
    static constinit Peaks peaks;
    return peaks;
  }

  /// A scope that begins now; kNone when too many are open.
  uint32_t open(int32_t device) noexcept;
  void close(uint32_t scope) noexcept;
  /// Nothing when no report has come.
  std::optional<int64_t> highest(uint32_t scope) const noexcept;

  bool wanted() const noexcept { return open_.load(std::memory_order_relaxed) != 0; }
  /// So many bytes are handed out on that device.
  void report(int32_t device, int64_t allocated) noexcept;

 private:
  std::atomic<uint64_t> taken_{0};  // a bit a scope
  std::atomic<uint64_t> open_{0};
  // The device and the bytes in one word: a report that comes late for a scope cannot raise its successor's.
  std::array<std::atomic<uint64_t>, kMost> words_{};
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
  /// What was the highest stays known.
  void close() noexcept;

 private:
  uint32_t scope_;
  std::optional<int64_t> last_;
};

}  // namespace gpuscope::memory
