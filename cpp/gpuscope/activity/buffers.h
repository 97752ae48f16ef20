// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "gpuscope/activity/layout.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::activity {

/// The memory for CUPTI's records: allocated on demand, up to a cap.
///
/// take and complete: any thread, no lock, since CUPTI calls them on the program's launching threads with its own locks
/// held. Everything else: the one decode thread. Buffers held by CUPTI are never freed here: it may write into them
/// even after its last kind was disabled. The memory is malloc's: CUPTI gives a buffer to the callback that was
/// registered last, and another tool's callback frees it.
class BufferPool {
 public:
  // 300 kernel records. CUPTI returns a buffer when all of its kernels have ended. On a busy GPU that is only when it
  // is full: a window's last records may wait for as many launches. Returning a buffer takes CUPTI's thread 37 us: 0.6
  // to 0.8 us per launch with 16 KiB, 0.2 with 1 MiB (H200, CUPTI 13.0).
  static constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
  // 256 MiB: 1.2 million records waiting to be decoded.
  static constexpr unsigned kMaxBuffers = 1U << 12;
  // With this many unread buffers, decoding starts at once.
  static constexpr unsigned kManyUnread = 256;

  struct Buffer {
    std::atomic<uint8_t*> data{nullptr};  // null: no buffer
    std::atomic<bool> lent{false};        // CUPTI holds it
    std::atomic<uint32_t> next_ready{0};
    std::size_t valid = 0;
    void* context = nullptr;
    uint32_t stream = 0;
    Buffer* next = nullptr;
  };

  BufferPool() : buffers_(std::make_unique<Buffer[]>(kMaxBuffers)) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// An empty, zeroed buffer. Null if the pool is exhausted, which is counted.
  uint8_t* take() noexcept;
  /// CUPTI returns a buffer. Buffers of other pools are counted and ignored.
  void complete(void* context, uint32_t stream, const uint8_t* data, std::size_t valid) noexcept;

  /// Completed buffers, oldest first, linked by `next`.
  Buffer* take_completed() noexcept;
  /// Zeroes the written bytes and makes the buffer ready again. Frees it if enough are ready.
  void release(Buffer* buffer) noexcept;

  /// The number of existing buffers.
  unsigned count() const noexcept { return count_.load(std::memory_order_relaxed); }
  unsigned ready() const noexcept { return ready_.load(std::memory_order_relaxed); }
  /// Buffers that CUPTI holds.
  unsigned lent() const noexcept { return lent_.load(std::memory_order_relaxed); }
  /// Completed buffers that were not released yet.
  unsigned unread() const noexcept { return unread_.load(std::memory_order_relaxed); }
  uint64_t exhausted() const noexcept { return exhausted_.load(std::memory_order_relaxed); }
  uint64_t foreign() const noexcept { return foreign_.load(std::memory_order_relaxed); }

 private:
  Buffer* pop() noexcept;
  Buffer* make() noexcept;
  Buffer* place(uint8_t* data) noexcept;
  Buffer* take_back(const uint8_t* data) noexcept;

  // Each buffer is at the hash of its address, or a little after it, so that complete finds it.
  std::unique_ptr<Buffer[]> buffers_;
  std::atomic<unsigned> furthest_{0};  // largest distance from a hash
  // The place of the first ready buffer plus one, below a change counter: a buffer that was taken and returned
  // meanwhile must not look unchanged (ABA).
  std::atomic<uint64_t> first_ready_{0};
  std::atomic<Buffer*> completed_{nullptr};
  std::atomic<unsigned> count_{0};
  std::atomic<unsigned> ready_{0};
  std::atomic<unsigned> lent_{0};
  std::atomic<unsigned> unread_{0};
  std::atomic<uint64_t> exhausted_{0};
  std::atomic<uint64_t> foreign_{0};
};

/// The buffers completed by CUPTI. Each returns to its pool, also after an exception. The decode thread.
class CompletedBuffers {
 public:
  explicit CompletedBuffers(BufferPool& pool) noexcept : pool_(pool), first_(pool.take_completed()) {}
  ~CompletedBuffers() {
    while (first_ != nullptr) {
      release_first();
    }
  }
  CompletedBuffers(const CompletedBuffers&) = delete;
  CompletedBuffers& operator=(const CompletedBuffers&) = delete;

  BufferPool::Buffer* first() const noexcept { return first_; }
  void release_first() noexcept { pool_.release(std::exchange(first_, first_->next)); }

 private:
  BufferPool& pool_;
  BufferPool::Buffer* first_;
};

/// Iterates over the records of a buffer. One thread at a time.
///
/// Records have no length field: the length depends on kind and libcupti version. The walker asks CUPTI for the first
/// record of each kind, and steps by itself from then on, which is faster.
class Walker {
 public:
  explicit Walker(const driver::Cupti& cupti) : get_next_record_(cupti.get_next_record) {}

  /// Calls `take(kind, record)` for each record. Returns the number of unreadable bytes.
  template <class F>
  std::size_t walk(uint8_t* data, std::size_t valid, F&& take) {
    std::size_t at = 0;
    while (at + sizeof(uint64_t) <= valid) {
      const uint32_t kind = *reinterpret_cast<const uint32_t*>(data + at);
      if (kind == 0) {
        break;  // the zeroed rest of a buffer that was returned early
      }
      std::size_t stride = kind < strides_.size() ? strides_[kind] : 0;
      if (stride == 0) [[unlikely]] {
        stride = measure(data, valid, at, kind);
        if (stride == 0) {
          break;
        }
      }
      if (at + stride > valid || stride < smallest_record(kind)) {
        break;  // cut off
      }
      // Another core wrote these lines, and they will be zeroed here. Prefetching for writing saves a sixth (two
      // threads, H100 machine).
      for (std::size_t line = 0; line < stride; line += kLine) {
        __builtin_prefetch(data + at + kAhead * stride + line, 1);
      }
      take(kind, data + at);
      at += stride;
    }
    return valid - at;
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kAhead = 8;  // records

  std::size_t measure(uint8_t* data, std::size_t valid, std::size_t at, uint32_t kind);

  decltype(driver::Cupti::get_next_record) get_next_record_;
  std::array<uint16_t, 128> strides_{};  // kinds are below 60 in CUPTI 13
};

}  // namespace gpuscope::activity
