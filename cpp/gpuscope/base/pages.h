// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>

namespace gpuscope::base {

inline constexpr std::size_t kPageBytes = 4096;

/// Memory for what grows large, as realloc gives it; nullptr when there is none, and then `old` stays.
///
/// Large blocks are pages of their own, which the system has back at once when they are freed. malloc keeps what it is
/// given back: it puts larger and larger blocks into its heap, up to 32 MiB, the more of them were freed. Blocks grow
/// by remapping, which copies nothing. Any thread.
void* resize_block(void* old, std::size_t old_bytes, std::size_t bytes) noexcept;
void free_block(void* block, std::size_t bytes) noexcept;

/// The system has the whole pages of this memory back, which stays its owner's and reads as anything. For blocks of
/// malloc's that are about to be freed: it keeps them, however many they were once. Any thread.
void give_back_pages(void* block, std::size_t bytes) noexcept;

/// Memory for what is large at once and soon gone: in pages of 2 MiB where the system has them, so that the first touch
/// of each is one fault and not 512. nullptr when there is none. Any thread.
void* take_scratch(std::size_t bytes) noexcept;

/// Blocks for containers.
template <class T>
struct BlockAllocator {
  using value_type = T;

  BlockAllocator() noexcept = default;
  template <class Other>
  explicit BlockAllocator(const BlockAllocator<Other>&) noexcept {}

  T* allocate(std::size_t count) {
    void* block = resize_block(nullptr, 0, count * sizeof(T));
    if (block == nullptr) {
      throw std::bad_alloc();
    }
    return static_cast<T*>(block);
  }
  void deallocate(T* block, std::size_t count) noexcept { free_block(block, count * sizeof(T)); }
  bool operator==(const BlockAllocator&) const noexcept { return true; }
};

/// Scratch memory for containers.
template <class T>
struct ScratchAllocator : BlockAllocator<T> {
  using value_type = T;

  ScratchAllocator() noexcept = default;
  template <class Other>
  explicit ScratchAllocator(const ScratchAllocator<Other>&) noexcept {}

  T* allocate(std::size_t count) {
    void* block = take_scratch(count * sizeof(T));
    if (block == nullptr) {
      throw std::bad_alloc();
    }
    return static_cast<T*>(block);
  }
};

}  // namespace gpuscope::base
