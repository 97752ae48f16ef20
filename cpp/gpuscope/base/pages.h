// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>

namespace gpuscope::base {

inline constexpr std::size_t kPageBytes = 4096;

/// Memory for large data, with the semantics of realloc. Null if memory ran out: then `old` stays.
///
/// Large blocks are separate mappings, which the system gets back when they are freed. malloc instead moves its mapping
/// threshold up to 32 MiB as mapped blocks are freed, and keeps them in its heap. Blocks grow by remapping, without a
/// copy. Any thread.
void* resize_block(void* old, std::size_t old_bytes, std::size_t bytes) noexcept;
void free_block(void* block, std::size_t bytes) noexcept;

/// Returns the whole pages of this memory to the system. The owner keeps the block, with undefined content. For malloc
/// blocks that are about to be freed, as malloc would keep their pages. Any thread.
void give_back_pages(void* block, std::size_t bytes) noexcept;

/// Memory for large, short-lived data, in pages of 2 MiB if available: the first touch is one fault instead of 512.
/// Null if memory ran out. Any thread.
void* take_scratch(std::size_t bytes) noexcept;

/// Allocates blocks for containers.
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
