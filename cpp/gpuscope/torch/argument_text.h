// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "gpuscope/torch/layout.h"

namespace gpuscope::torch {

/// Text put together on the stack; what does not fit makes it empty.
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
  void put(int64_t number) noexcept {
    const auto [end, error] = std::to_chars(text_.data() + size_, text_.data() + text_.size(), number);
    full_ = full_ || error != std::errc{};
    size_ = error == std::errc{} ? static_cast<std::size_t>(end - text_.data()) : size_;
  }
  std::string_view view() const noexcept { return full_ ? std::string_view{} : std::string_view{text_.data(), size_}; }

 private:
  std::array<char, 2048> text_;
  std::size_t size_ = 0;
  bool full_ = false;
};

/// An operator's arguments or results in torch's memory.
struct Values {
  const char* first = nullptr;
  std::size_t count = 0;
};

/// Spells the values' shapes, as "[[2, 3], []]", and their types, as "['float', '']". What is no tensor has neither.
class ArgumentText {
 public:
  ArgumentText(const Layout& layout, const void* undefined_tensor) noexcept
      : layout_(layout), undefined_(undefined_tensor) {}

  void put_shapes(ShortText& text, Values values) const noexcept;
  void put_types(ShortText& text, Values values) const noexcept;

 private:
  const char* tensor(Values values, std::size_t index) const noexcept;
  void put_sizes(ShortText& text, const char* tensor) const noexcept;

  const Layout& layout_;
  const void* undefined_;
};

}  // namespace gpuscope::torch
