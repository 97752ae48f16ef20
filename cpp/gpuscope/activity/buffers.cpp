// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/buffers.h"

#include <bit>
#include <cstdlib>
#include <cstring>

namespace gpuscope::activity {
namespace {
constexpr std::size_t kPage = 4096;
}

BufferPool::~BufferPool() {
  for (unsigned index = 0; index < mapped_.load(std::memory_order_relaxed); ++index) {
    if ((lent_bits_.load(std::memory_order_relaxed) >> index & 1) == 0) {
      std::free(buffers_[index].data);
    }
  }
}

uint8_t* BufferPool::take() noexcept {
  uint64_t ready = ready_bits_.load(std::memory_order_relaxed);
  while (ready != 0) {
    const uint64_t bit = ready & -ready;
    if (ready_bits_.compare_exchange_weak(ready, ready & ~bit, std::memory_order_acquire)) {
      lent_bits_.fetch_or(bit, std::memory_order_relaxed);
      return buffers_[static_cast<unsigned>(std::countr_zero(bit))].data;
    }
  }
  exhausted_.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void BufferPool::complete(void* context, uint32_t stream, const uint8_t* data, std::size_t valid) noexcept {
  const unsigned mapped = mapped_.load(std::memory_order_acquire);
  for (unsigned index = 0; index < mapped; ++index) {
    Buffer& buffer = buffers_[index];
    if (buffer.data != data) {
      continue;
    }
    const uint64_t bit = uint64_t{1} << index;
    if ((lent_bits_.fetch_and(~bit, std::memory_order_relaxed) & bit) == 0) {
      break;  // not with CUPTI: linking it twice would make the list circular
    }
    buffer.valid = valid < kBufferBytes ? valid : kBufferBytes;
    buffer.context = context;
    buffer.stream = stream;
    buffer.next = completed_.load(std::memory_order_relaxed);
    while (!completed_.compare_exchange_weak(buffer.next, &buffer, std::memory_order_release)) {
    }
    return;
  }
  foreign_.fetch_add(1, std::memory_order_relaxed);
}

void BufferPool::provide(unsigned want) noexcept {
  for (unsigned index = mapped_.load(std::memory_order_relaxed); ready() < want && index < kMaxBuffers; ++index) {
    void* data = std::aligned_alloc(kPage, kBufferBytes);
    if (data == nullptr) {
      return;
    }
    std::memset(data, 0, kBufferBytes);  // which makes its pages, too: no launch of the program takes a fault for them
    buffers_[index].data = static_cast<uint8_t*>(data);
    mapped_.store(index + 1, std::memory_order_release);
    ready_bits_.fetch_or(uint64_t{1} << index, std::memory_order_release);
  }
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
  std::memset(buffer->data, 0, buffer->valid);
  buffer->valid = 0;
  const auto index = static_cast<unsigned>(buffer - buffers_.data());
  ready_bits_.fetch_or(uint64_t{1} << index, std::memory_order_release);
}

unsigned BufferPool::ready() const noexcept {
  return static_cast<unsigned>(std::popcount(ready_bits_.load(std::memory_order_relaxed)));
}

unsigned BufferPool::lent() const noexcept {
  return static_cast<unsigned>(std::popcount(lent_bits_.load(std::memory_order_relaxed)));
}

std::size_t Walker::measure(uint8_t* data, std::size_t valid, std::size_t at, uint32_t kind) {
  // Asked for the record after this one, CUPTI reveals this one's length; for the last record it is all that is left.
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
  // A last record's stride is not learnt: trailing bytes may belong to it or not.
  if (end < valid && kind < strides_.size() && stride <= UINT16_MAX) {
    strides_[kind] = static_cast<uint16_t>(stride);
  }
  return stride;
}

}  // namespace gpuscope::activity
