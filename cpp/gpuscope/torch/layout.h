// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace gpuscope::torch {

/// Offsets in bytes of what a callback reads in torch's objects.
///
/// Inferred from a few operators of known arguments rather than compiled in, so that one build serves all versions of
/// torch, and none of its headers is needed. What was not found is kUnknown, and is then not read.
struct Layout {
  static constexpr std::size_t kUnknown = SIZE_MAX;

  // at::RecordFunction
  std::size_t inputs = kUnknown;    // address of the first c10::IValue, then how many
  std::size_t sequence = kUnknown;  // int64
  std::size_t scope = kUnknown;     // at::RecordScope, a byte
  std::size_t number = kUnknown;    // uint64: at::RecordFunctionHandle, of callbacks that ask for it
  std::size_t outputs = kUnknown;   // begin and end of the c10::IValues, at the operator's end
  // c10::IValue: 16 bytes, of which the first 8 are a tensor's address and the next 4 the tag
  uint32_t tensor_tag = 0;
  // c10::TensorImpl
  std::size_t sizes = kUnknown;  // number of dimensions; then the sizes, or their address when they are more than 5
  std::size_t dtype = kUnknown;  // c10::ScalarType, uint16
};

inline constexpr uint8_t kUserScope = 7;  // at::RecordScope
inline constexpr std::size_t kValueBytes = 16;
inline constexpr uint64_t kInlineDimensions = 5;

/// What is known of a tensor from Python.
struct KnownTensor {
  uint64_t address;  // of its c10::TensorImpl
  std::vector<int64_t> sizes;
  int dtype;  // c10::ScalarType
};

/// What is known of an operator that will be called.
struct KnownCall {
  std::string name;
  std::vector<std::size_t> tensors;  // its arguments, which are all
  bool numbered;                     // autograd numbers it
  std::size_t result;                // a tensor
};

/// What a callback found in an operator's object: its words, and the 16-byte values that pairs of words may delimit.
struct Observation {
  static constexpr std::size_t kWords = 64;  // the object is on the stack: there is as much above it
  struct Values {
    std::size_t word;
    std::vector<uint64_t> words;  // two a value
  };
  std::string name;
  uint64_t sequence = 0;  // the next number at that moment
  bool is_end = false;
  std::array<uint64_t, kWords> words{};
  std::vector<Values> counted;    // (address, count)
  std::vector<Values> delimited;  // (begin, end)
};

/// Reads an operator's object from within a callback.
Observation observe(const void* function, const char* name, uint64_t sequence, bool is_end);

/// Infers the layout; `user_name` is a range that the program named. Returns what could not be found, empty when
/// operators can be recorded.
std::string infer_layout(const std::vector<Observation>& seen, const std::vector<KnownTensor>& tensors,
                         const std::vector<KnownCall>& calls, const std::string& user_name, Layout& layout);

/// Reads a value of an object of torch's.
template <class T>
T load(const void* object, std::size_t offset = 0) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof(value));
  return value;
}

/// A text on the stack; empty when it did not fit. One thread.
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

/// Writes the values' shapes, as "[[2, 3], []]", and their types, as "['float', '']". What is no tensor has neither.
/// Immutable; any thread.
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
