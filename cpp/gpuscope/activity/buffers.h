// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpuscope::activity {

/// Memory lent to CUPTI for its records.
///
/// take and complete: any thread, no lock, no allocation, since CUPTI calls them on the program's launching threads
/// with locks of its own held. Everything else: the one decode thread. A buffer is never freed: CUPTI may write into
/// what it holds even after it was told to stop.
class BufferPool {
 public:
  // 1 MiB holds 4,854 kernel records. CUPTI works with any size; smaller buffers mean fresher data and less memory for
  // many threads, larger ones fewer requests on the launch path.
  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
  static constexpr unsigned kMaxBuffers = 64;

  struct Buffer {
    uint8_t* data = nullptr;
    std::size_t valid = 0;
    void* context = nullptr;
    uint32_t stream = 0;
    Buffer* next = nullptr;
  };

  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// An empty, zeroed buffer; nullptr when the pool is exhausted, which is counted.
  uint8_t* take() noexcept;
  /// CUPTI hands a buffer back. Buffers that are not of this pool are counted and left alone.
  void complete(void* context, uint32_t stream, uint8_t* data, std::size_t valid) noexcept;

  /// Maps and touches memory until `want` buffers lie ready, within the cap.
  void provide(unsigned want) noexcept;
  /// Completed buffers, oldest first, linked by `next`.
  Buffer* take_completed() noexcept;
  /// Zeroes what was written and makes the buffer ready again.
  void release(Buffer* buffer) noexcept;

  unsigned ready() const noexcept;
  /// Buffers that CUPTI holds.
  unsigned lent() const noexcept;
  uint64_t exhausted() const noexcept { return exhausted_.load(std::memory_order_relaxed); }
  uint64_t foreign() const noexcept { return foreign_.load(std::memory_order_relaxed); }

 private:
  std::array<Buffer, kMaxBuffers> buffers_{};
  std::atomic<unsigned> mapped_{0};
  std::atomic<uint64_t> ready_bits_{0};  // a set bit is a free buffer: claiming one has no ABA problem
  std::atomic<uint64_t> lent_bits_{0};
  std::atomic<Buffer*> completed_{nullptr};
  std::atomic<uint64_t> exhausted_{0};
  std::atomic<uint64_t> foreign_{0};
};

}  // namespace gpuscope::activity
