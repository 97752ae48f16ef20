// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "gpuscope/base/pages.h"

namespace gpuscope::store {

/// Requests the pages between two addresses from the system. If it cannot, each page comes with its first write.
void populate(void* first, void* last) noexcept;

/// A growing array of plain values in the layout of NumPy and Arrow. One writer, and readers after it is sealed.
///
/// Large blocks grow by remapping pages: growth copies nothing, and untouched capacity takes no memory.
template <class T>
class Column {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;

  Column() noexcept = default;
  Column(Column&& other) noexcept { swap(other); }
  Column& operator=(Column&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Column() { base::free_block(data_, capacity_ * sizeof(T)); }

  void push_back(T value) {
    if (size_ == ready_) [[unlikely]] {
      make_ready();
    }
    data_[size_++] = value;
  }
  void append(std::span<const T> values) {
    reserve_for(values.size());
    if (!values.empty()) {
      std::memcpy(data_ + size_, values.data(), values.size_bytes());
    }
    size_ += values.size();
    ready_ = std::max(ready_, size_);
  }
  void append_copies(std::size_t rows, T value) {
    reserve_for(rows);
    std::fill_n(data_ + size_, rows, value);
    size_ += rows;
    ready_ = std::max(ready_, size_);
  }
  void reserve(std::size_t capacity) {
    if (capacity <= capacity_) {
      return;
    }
    void* grown = base::resize_block(data_, capacity_ * sizeof(T), capacity * sizeof(T));
    if (grown == nullptr) {
      throw std::bad_alloc();
    }
    data_ = static_cast<T*>(grown);
    capacity_ = capacity;
    ready_ = capacity_ * sizeof(T) <= kPopulate ? capacity_ : size_;
  }
  /// Forgets the oldest rows.
  void drop_front(std::size_t rows) {
    rows = rows < size_ ? rows : size_;
    if (rows != 0) {
      std::memmove(static_cast<void*>(data_), data_ + rows, (size_ - rows) * sizeof(T));
      size_ -= rows;
    }
  }
  void truncate(std::size_t rows) noexcept { size_ = rows < size_ ? rows : size_; }

  T& operator[](std::size_t row) noexcept { return data_[row]; }
  const T& operator[](std::size_t row) const noexcept { return data_[row]; }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }
  std::span<const T> span() const noexcept { return {data_, size_}; }
  void swap(Column& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(ready_, other.ready_);
    std::swap(capacity_, other.capacity_);
  }

 private:
  static constexpr std::size_t kFirst = 64;
  // Large columns fault in 128 KiB at a time: one system call costs far less than 32 page faults.
  static constexpr std::size_t kPopulate = std::size_t{128} * 1024;

  void make_ready() {
    if (size_ == capacity_) {
      reserve(capacity_ < kFirst ? kFirst : capacity_ * 2);
    }
    if (ready_ == size_) {
      const std::size_t more = std::min(capacity_ - size_, kPopulate / sizeof(T));
      populate(data_ + size_, data_ + size_ + more);
      ready_ = size_ + more;
    }
  }
  void reserve_for(std::size_t more) {
    if (size_ + more > capacity_) {
      const std::size_t doubled = capacity_ * 2;
      reserve(size_ + more > doubled ? size_ + more : doubled);
    }
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t ready_ = 0;  // rows below may be written without a check
  std::size_t capacity_ = 0;
};

}  // namespace gpuscope::store
