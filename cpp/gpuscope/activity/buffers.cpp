// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/buffers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gpuscope/base/pages.h"

namespace gpuscope::activity {
namespace {

// Further ready buffers are freed: 32 MiB.
constexpr unsigned kKept = 512;

unsigned place_of(const uint8_t* data) noexcept {
  const uint64_t spread = (reinterpret_cast<uint64_t>(data) >> 4) * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  return static_cast<unsigned>(spread >> 32) % BufferPool::kMaxBuffers;
}

}  // namespace

BufferPool::~BufferPool() {
  for (unsigned place = 0; place < kMaxBuffers; ++place) {
    if (!buffers_[place].lent.load(std::memory_order_relaxed)) {
      std::free(buffers_[place].data);
    }
  }
}

uint8_t* BufferPool::take() noexcept {
  Buffer* buffer = pop();
  buffer = buffer != nullptr ? buffer : make();
  if (buffer == nullptr) {
    exhausted_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  lent_.fetch_add(1, std::memory_order_relaxed);
  buffer->lent.store(true, std::memory_order_relaxed);
  return buffer->data.load(std::memory_order_relaxed);
}

BufferPool::Buffer* BufferPool::pop() noexcept {
  uint64_t head = first_ready_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(head) != 0) {
    Buffer& buffer = buffers_[static_cast<uint32_t>(head) - 1];
    const uint64_t changes = (head >> 32) + 1;
    const uint64_t next = changes << 32 | buffer.next_ready.load(std::memory_order_relaxed);
    if (first_ready_.compare_exchange_weak(head, next, std::memory_order_acquire)) {
      ready_.fetch_sub(1, std::memory_order_relaxed);
      return &buffer;
    }
  }
  return nullptr;
}

BufferPool::Buffer* BufferPool::make() noexcept {
  if (count_.fetch_add(1, std::memory_order_relaxed) < kMaxBuffers) {
    auto* data = static_cast<uint8_t*>(std::calloc(1, kBufferBytes));
    if (Buffer* buffer = data != nullptr ? place(data) : nullptr; buffer != nullptr) {
      return buffer;
    }
    std::free(data);
  }
  count_.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

BufferPool::Buffer* BufferPool::place(uint8_t* data) noexcept {
  const unsigned first = place_of(data);
  for (unsigned behind = 0; behind < kMaxBuffers; ++behind) {
    Buffer& buffer = buffers_[(first + behind) % kMaxBuffers];
    if (buffer.data.load(std::memory_order_relaxed) == data) {  // lent earlier, and freed by another tool
      lent_.fetch_sub(1, std::memory_order_relaxed);
      count_.fetch_sub(1, std::memory_order_relaxed);
      return &buffer;
    }
    uint8_t* nobody = nullptr;
    if (buffer.data.load(std::memory_order_relaxed) == nullptr &&
        buffer.data.compare_exchange_strong(nobody, data, std::memory_order_acquire)) {
      unsigned furthest = furthest_.load(std::memory_order_relaxed);
      while (behind > furthest && !furthest_.compare_exchange_weak(furthest, behind, std::memory_order_relaxed)) {
      }
      return &buffer;
    }
  }
  return nullptr;
}

/// Takes the buffer with this memory back from CUPTI. Null if CUPTI does not hold it.
BufferPool::Buffer* BufferPool::take_back(const uint8_t* data) noexcept {
  const unsigned first = place_of(data);
  const unsigned furthest = furthest_.load(std::memory_order_relaxed);
  for (unsigned behind = 0; behind <= furthest; ++behind) {
    Buffer& buffer = buffers_[(first + behind) % kMaxBuffers];
    if (buffer.data.load(std::memory_order_relaxed) == data && buffer.lent.exchange(false, std::memory_order_relaxed)) {
      return &buffer;
    }
  }
  return nullptr;
}

void BufferPool::complete(void* context, uint32_t stream, const uint8_t* data, std::size_t valid) noexcept {
  Buffer* buffer = take_back(data);
  if (buffer == nullptr) {  // or completed already: linking it twice would make the list circular
    foreign_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  buffer->valid = std::min(valid, kBufferBytes);
  buffer->context = context;
  buffer->stream = stream;
  unread_.fetch_add(1, std::memory_order_relaxed);
  buffer->next = completed_.load(std::memory_order_relaxed);
  while (!completed_.compare_exchange_weak(buffer->next, buffer, std::memory_order_release)) {
  }
  lent_.fetch_sub(1, std::memory_order_release);  // last: without a lent buffer, all are in the list
}

BufferPool::Buffer* BufferPool::take_completed() noexcept {
  Buffer* newest = completed_.exchange(nullptr, std::memory_order_acquire);
  Buffer* oldest = nullptr;
  while (newest != nullptr) {
    Buffer* next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  return oldest;
}

void BufferPool::release(Buffer* buffer) noexcept {
  unread_.fetch_sub(1, std::memory_order_relaxed);
  if (ready() >= kKept) {
    uint8_t* data = buffer->data.load(std::memory_order_relaxed);
    base::give_back_pages(data, kBufferBytes);
    buffer->data.store(nullptr, std::memory_order_release);
    std::free(data);
    count_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  std::memset(buffer->data, 0, buffer->valid);
  buffer->valid = 0;
  ready_.fetch_add(1, std::memory_order_relaxed);
  const auto place = static_cast<uint32_t>(buffer - buffers_.get());
  uint64_t head = first_ready_.load(std::memory_order_relaxed);
  uint64_t first = 0;
  do {
    buffer->next_ready.store(static_cast<uint32_t>(head), std::memory_order_relaxed);
    first = ((head >> 32) + 1) << 32 | (place + 1);
  } while (!first_ready_.compare_exchange_weak(head, first, std::memory_order_release));
}

std::size_t Walker::measure(uint8_t* data, std::size_t valid, std::size_t at, uint32_t kind) {
  // CUPTI reveals a record's length when asked for the next record. The last record takes all remaining bytes.
  void* record = data + at;
  std::size_t end = valid;
  const driver::CuptiResult code = get_next_record_(data, valid, &record);
  if (code == driver::kCuptiSuccess) {
    end = static_cast<std::size_t>(static_cast<uint8_t*>(record) - data);
  } else if (code != driver::kCuptiMaxLimitReached) {
    return 0;  // CUPTI cannot read it either
  }
  if (end <= at || end > valid) {
    return 0;
  }
  const std::size_t stride = end - at;
  // The stride of a last record is not learned: trailing bytes may not belong to it.
  if (end < valid && kind < strides_.size() && stride <= UINT16_MAX) {
    strides_[kind] = static_cast<uint16_t>(stride);
  }
  return stride;
}

}  // namespace gpuscope::activity
