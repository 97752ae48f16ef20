// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include "gpuscope/base/strings.h"
#include "gpuscope/torch/layout.h"

namespace gpuscope::torch {

/// A text on the stack. Empty if it did not fit. One thread.
class ShortText {
 public:
  void put(std::string_view text) noexcept {
    if (size_ + text.size() > text_.size()) {
      full_ = true;
      return;
    }
    std::memcpy(text_.data() + size_, text.data(), text.size());
    size_ += text.size();
  }
  /// As a JSON string.
  void put_quoted(std::string_view text) noexcept;
  void put(int64_t number) noexcept { put_chars(number); }
  /// In the format of torch's profiler: `2.`, `0.10000000000000001`.
  void put(double number) noexcept {
    constexpr double kWhole = 9223372036854775808.0;  // 2^63
    if (number >= -kWhole && number < kWhole && static_cast<double>(static_cast<int64_t>(number)) == number) {
      put_chars(static_cast<int64_t>(number));
      put(".");
    } else {
      put_chars(number, std::chars_format::general, std::numeric_limits<double>::max_digits10);
    }
  }
  std::size_t size() const noexcept { return size_; }
  bool full() const noexcept { return full_; }
  /// Truncates to an earlier size.
  void cut(std::size_t size) noexcept {
    size_ = size;
    full_ = false;
  }
  std::string_view view() const noexcept { return full_ ? std::string_view{} : std::string_view{text_.data(), size_}; }

 private:
  template <class... Format>
  void put_chars(Format... format) noexcept {
    const auto [end, error] = std::to_chars(text_.data() + size_, text_.data() + text_.size(), format...);
    full_ = full_ || error != std::errc{};
    size_ = error == std::errc{} ? static_cast<std::size_t>(end - text_.data()) : size_;
  }

  std::array<char, 2048> text_;
  std::size_t size_ = 0;
  bool full_ = false;
};

/// An operator's arguments or results in torch's memory.
struct Values {
  const char* first = nullptr;
  std::size_t count = 0;
};

/// Writes the values' shapes and strides ("[[2, 3], [], [[4], [4]]]"), types ("['float', 'Scalar', 'TensorList']") and
/// numbers ("['', '2', '']"). Values other than tensors and lists of tensors have no shape. Immutable, any thread.
class ArgumentText {
 public:
  ArgumentText(const Layout& layout, const void* undefined_tensor) noexcept
      : layout_(layout), undefined_(undefined_tensor) {}

  void put_shapes(ShortText& text, Values values) const noexcept {
    put_lists<&ArgumentText::put_sizes_of>(text, values);
  }
  void put_strides(ShortText& text, Values values) const noexcept {
    put_lists<&ArgumentText::put_strides_of>(text, values);
  }
  void put_types(ShortText& text, Values values) const noexcept;
  void put_concrete(ShortText& text, Values values) const noexcept;
  /// Adds the content of the shapes, strides and types texts, without formatting them.
  void put_tensors(base::Digest& key, Values values) const noexcept;
  /// Adds the content of the numbers text.
  void put_numbers(base::Digest& key, Values values) const noexcept;

  enum class Kind : uint8_t { Other, Int, Double, Bool, Text, Numbers, Texts, None, Complex };
  Kind kind(const char* value) const noexcept;
  /// A number, or a list of numbers.
  void put_concrete(ShortText& text, const char* value) const noexcept;
  /// A list of texts, as JSON.
  void put_texts(ShortText& text, const char* value) const noexcept;
  /// A complex number, as its two parts: `1. -2.5`.
  void put_complex(ShortText& text, const char* value) const noexcept;
  /// The text of a value of that kind.
  std::string_view text(const char* value) const noexcept;

 private:
  using PutTensor = void (ArgumentText::*)(ShortText&, const char*) const noexcept;

  uint32_t tag(const char* value) const noexcept { return load<uint32_t>(value + sizeof(uint64_t)); }
  bool is_list(const char* value) const noexcept {
    return layout_.list != Layout::kUnknown && tag(value) == layout_.list_tag;
  }
  static bool is_scalar(Kind kind) noexcept { return kind == Kind::Int || kind == Kind::Double || kind == Kind::Bool; }
  bool holds_tensors(const char* list) const noexcept;
  Values elements(const char* list) const noexcept;
  /// Null if the value is no tensor.
  const char* tensor(const char* value) const noexcept;
  uint64_t dimensions(const char* tensor) const noexcept;
  const char* sizes(const char* tensor, uint64_t dimensions) const noexcept;
  const char* strides(const char* tensor, uint64_t dimensions) const noexcept;
  void put_tensor(base::Digest& key, const char* tensor) const noexcept;
  void put_sizes_of(ShortText& text, const char* tensor) const noexcept;
  void put_strides_of(ShortText& text, const char* tensor) const noexcept;
  void put_numbers(ShortText& text, const char* first, uint64_t count) const noexcept;
  template <PutTensor kPut>
  void put_list(ShortText& text, Values values) const noexcept;
  template <PutTensor kPut>
  void put_lists(ShortText& text, Values values) const noexcept;

  const Layout& layout_;
  const void* undefined_;
};

}  // namespace gpuscope::torch
