// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace gpuscope::base {

/// A queue of rows from one writing thread to one reading thread. Lock-free, and without allocation after begin. A full
/// ring takes no rows.
template <class Row, std::size_t kRows>
class RowRing {
 public:
  static constexpr std::size_t kCapacity = kRows;

  /// Allocates the rows. Not while a thread writes. Throws std::bad_alloc.
  void begin() {
    if (rows_ == nullptr) {
      rows_ = std::make_unique<std::array<Row, kRows>>();
    }
  }
  /// On the writing thread. Returns the number of rows in the ring, or 0 if it was full.
  std::size_t append(const Row& row) noexcept {
    const uint64_t at = written_.load(std::memory_order_relaxed);
    const uint64_t filled = at - read_.load(std::memory_order_acquire);
    if (filled == kRows) {
      return 0;
    }
    (*rows_)[at % kRows] = row;
    written_.store(at + 1, std::memory_order_release);
    return filled + 1;
  }
  /// On the reading thread: passes all rows to `take(const Row&)`.
  template <class F>
  void read(F&& take) {
    const uint64_t end = written_.load(std::memory_order_acquire);
    for (uint64_t at = read_.load(std::memory_order_relaxed); at != end;) {
      const Row row = (*rows_)[at % kRows];
      read_.store(++at, std::memory_order_release);
      take(row);
    }
  }

 private:
  std::unique_ptr<std::array<Row, kRows>> rows_;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> read_{0};
};

}  // namespace gpuscope::base
