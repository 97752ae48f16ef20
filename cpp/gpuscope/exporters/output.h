// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/base/file.h"

namespace gpuscope::exporters {

using base::Write;

/// Collects bytes and passes them on in chunks of about 1 MiB. Each chunk ends at a call of cut(). One thread.
class Output {
 public:
  explicit Output(Write write) : write_(std::move(write)), bytes_(kFirstBytes) {}

  void put(char value) {
    *room(1) = value;
    ++size_;
  }
  // Always inlined: a constant text then compiles to a few moves, and exporters write little else.
  [[gnu::always_inline]] void put(std::string_view text) {
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
  /// The shortest text that reads as the same float.
  void put_real(double value) {
    constexpr std::size_t kLongest = 32;
    char* at = room(kLongest);
    size_ += static_cast<std::size_t>(std::to_chars(at, at + kLongest, static_cast<float>(value)).ptr - at);
  }
  [[gnu::always_inline]] void put_pair(std::string_view key, std::integral auto value) {
    put(key);
    put_number(value);
  }
  /// A time in ns as us with three decimals.
  void put_micros(int64_t ns) {
    put_number(ns / 1000);
    const auto rest = static_cast<int>(ns % 1000);
    const char decimals[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                             static_cast<char>('0' + rest % 10)};
    put(std::string_view(decimals, sizeof decimals));
  }

  /// A chunk may end here.
  void cut() {
    if (size_ >= kChunkBytes) {
      flush();
    }
  }
  void flush() {
    if (size_ != 0) {
      write_({bytes_.data(), size_});
      size_ = 0;
    }
  }

  // For formats that fill in lengths later.
  std::size_t size() const noexcept { return size_; }
  char* data() noexcept { return bytes_.data(); }
  [[gnu::always_inline]] char* room(std::size_t more) {
    if (size_ + more > bytes_.size()) [[unlikely]] {
      grow(more);
    }
    return bytes_.data() + size_;
  }
  void advance(std::size_t bytes) noexcept { size_ += bytes; }

 private:
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
  static constexpr std::size_t kFirstBytes = std::size_t{1} << 14;
  void grow(std::size_t more);

  Write write_;
  std::vector<char> bytes_;
  std::size_t size_ = 0;
};

/// `text` as a quoted JSON string. Bytes that are not UTF-8 become U+FFFD.
std::string quoted(std::string_view text);

/// Whether a text is a single JSON value of at most 64 levels.
bool is_json(std::string_view text);

/// Python's list of texts, `['float', '']`, as JSON. Other text becomes one JSON string.
std::string quoted_list(std::string_view text);

}  // namespace gpuscope::exporters
