// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace gpuscope::base {
namespace {

constexpr std::size_t kLarge = std::size_t{128} * 1024;  // malloc's initial threshold for mapping blocks

constexpr bool is_large(std::size_t bytes) noexcept { return bytes >= kLarge; }
constexpr std::size_t whole_pages(std::size_t bytes) noexcept { return (bytes + kPageBytes - 1) & ~(kPageBytes - 1); }

void* map_pages(std::size_t bytes) noexcept {
  void* pages = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages != MAP_FAILED ? pages : nullptr;
}

}  // namespace

void* resize_block(void* old, std::size_t old_bytes, std::size_t bytes) noexcept {
  if (!is_large(old_bytes) && !is_large(bytes)) {
    return std::realloc(old, std::max<std::size_t>(bytes, 1));
  }
  if (old != nullptr && is_large(old_bytes) && is_large(bytes)) {
    void* moved = mremap(old, whole_pages(old_bytes), whole_pages(bytes), MREMAP_MAYMOVE);
    return moved != MAP_FAILED ? moved : nullptr;
  }
  void* fresh = is_large(bytes) ? map_pages(bytes) : std::malloc(std::max<std::size_t>(bytes, 1));
  if (fresh != nullptr && old != nullptr) {
    std::memcpy(fresh, old, std::min(old_bytes, bytes));
    free_block(old, old_bytes);
  }
  return fresh;
}

void give_back_pages(void* block, std::size_t bytes) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  const std::uintptr_t begin = whole_pages(address);
  const std::uintptr_t end = (address + bytes) & ~(kPageBytes - 1);
  if (end > begin) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // fails for huge pages, which stay
  }
}

void* take_scratch(std::size_t bytes) noexcept {
  void* block = resize_block(nullptr, 0, bytes);
  if (block != nullptr && is_large(bytes)) {
    madvise(block, whole_pages(bytes), MADV_HUGEPAGE);  // advice: without it, pages stay small
  }
  return block;
}

void free_block(void* block, std::size_t bytes) noexcept {
  if (is_large(bytes)) {
    munmap(block, whole_pages(bytes));
  } else {
    std::free(block);
  }
}

}  // namespace gpuscope::base
