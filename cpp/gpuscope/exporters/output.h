// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace gpuscope::exporters {

using Write = std::function<void(std::string_view)>;

/// Collects bytes and hands them over in pieces of about 1 MiB, never splitting between two calls of cut().
class Output {
 public:
  explicit Output(Write write) : write_(std::move(write)), bytes_(kFirst) {}

  void put(char value) {
    *room(1) = value;
    ++size_;
  }
  void put(std::string_view text) {
    if (!text.empty()) {
      std::memcpy(room(text.size()), text.data(), text.size());
      size_ += text.size();
    }
  }
  void put_number(std::integral auto value) {
    constexpr std::size_t kLongest = 20;
    char* at = room(kLongest);
    size_ += static_cast<std::size_t>(std::to_chars(at, at + kLongest, value).ptr - at);
  }
  /// A time in ns as us with three decimals.
  void put_micros(int64_t ns) {
    put_number(ns / 1000);
    const auto rest = static_cast<int>(ns % 1000);
    const char decimals[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                             static_cast<char>('0' + rest % 10)};
    put(std::string_view(decimals, sizeof decimals));
  }

  /// Says that a piece may end here.
  void cut() {
    if (size_ >= kPiece) {
      flush();
    }
  }
  void flush() {
    if (size_ != 0) {
      write_({bytes_.data(), size_});
      size_ = 0;
    }
  }

  // For formats that come back to fill in lengths.
  std::size_t size() const noexcept { return size_; }
  char* data() noexcept { return bytes_.data(); }
  char* room(std::size_t more) {
    if (size_ + more > bytes_.size()) [[unlikely]] {
      bytes_.resize((size_ + more) * 2);
    }
    return bytes_.data() + size_;
  }
  void advance(std::size_t bytes) noexcept { size_ += bytes; }

 private:
  static constexpr std::size_t kPiece = std::size_t{1} << 20;
  static constexpr std::size_t kFirst = std::size_t{1} << 14;
  Write write_;
  std::vector<char> bytes_;
  std::size_t size_ = 0;
};

}  // namespace gpuscope::exporters
