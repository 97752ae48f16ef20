// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuscope::torch {

/// Byte offsets of the fields that a callback reads in torch's objects.
///
/// Inferred from a few operators with known arguments, so that one build serves all versions of torch without its
/// headers. Fields that were not found are kUnknown, and are not read.
struct Layout {
  static constexpr std::size_t kUnknown = SIZE_MAX;

  // at::RecordFunction
  std::size_t inputs = kUnknown;    // address of the first c10::IValue, then their number
  std::size_t keywords = kUnknown;  // std::unordered_map of std::string and c10::IValue
  std::size_t sequence = kUnknown;  // int64
  std::size_t scope = kUnknown;     // at::RecordScope, a byte
  std::size_t number = kUnknown;    // uint64: at::RecordFunctionHandle, if the callback requests it
  std::size_t outputs = kUnknown;   // begin and end of the c10::IValues, at the operator's end
  // c10::IValue, 16 bytes: 8 bytes of tensor address, 4 bytes of tag
  uint32_t tensor_tag = 0;
  // Read only if `list` is known.
  uint32_t int_tag = 0;
  uint32_t double_tag = 0;
  uint32_t bool_tag = 0;
  uint32_t list_tag = 0;
  std::optional<uint32_t> none_tag;
  // Target of a list's c10::IValue
  std::size_t list = kUnknown;  // begin and end of its c10::IValues and of their memory, and their type's address
  uint64_t tensor_type = 0;     // that address in a list of tensors
  // Target of a complex number's c10::IValue
  uint32_t complex_tag = 0;
  std::size_t complex = kUnknown;  // two doubles
  // Target of a text's c10::IValue
  uint32_t text_tag = 0;
  std::size_t text = kUnknown;  // a std::string
  // c10::TensorImpl
  std::size_t sizes = kUnknown;  // number of dimensions; then the sizes, or their address for more than 5
  bool strides = false;          // whether strides follow the sizes: after the fifth size, or after the last of more
  std::size_t dtype = kUnknown;  // c10::ScalarType, uint16
};

// at::RecordScope
inline constexpr uint8_t kBackwardScope = 1;
inline constexpr uint8_t kUserScope = 7;
inline constexpr std::size_t kValueBytes = 16;
inline constexpr uint64_t kInlineDimensions = 5;
inline constexpr std::size_t kListTypeWord = 3;  // after the begin of a list's values

/// A tensor's properties, known from Python.
struct KnownTensor {
  uint64_t address;  // of its c10::TensorImpl
  std::vector<int64_t> sizes;
  int dtype;  // c10::ScalarType
  std::vector<int64_t> strides;
};

/// An operator call with known arguments.
struct KnownCall {
  std::string name;
  std::vector<std::size_t> tensors;  // all its arguments
  bool numbered;                     // autograd numbers it
  std::size_t result;                // a tensor
};

/// An argument of any kind. One word, two for a complex number, or one per element of a list.
struct KnownValue {
  enum Kind : char {
    Tensor = 't',
    Int = 'i',
    Double = 'd',
    Bool = 'b',
    Tensors = 'T',
    Ints = 'I',
    None = 'n',
    Complex = 'c'
  };
  Kind kind;
  std::vector<uint64_t> words;

  bool is_list() const noexcept { return kind == Tensors || kind == Ints; }
  /// Not in an operator's shapes, types and numbers, only in named arguments.
  bool is_rare() const noexcept { return kind == None || kind == Complex; }
};

/// An operator call whose arguments are not all tensors.
struct KnownArguments {
  std::string name;
  std::vector<KnownValue> values;

  bool has_rare() const { return std::ranges::any_of(values, &KnownValue::is_rare); }
};

/// A callback's copy of an operator's object: its words, and the 16-byte values that pairs of words may delimit.
struct Observation {
  static constexpr std::size_t kWords = 64;  // larger than the object (about 45 words); unreadable words are 0
  struct Values {
    std::size_t word;
    std::vector<uint64_t> words;  // two a value
  };
  std::string name;
  uint64_t address = 0;
  uint64_t sequence = 0;  // the next number at that moment
  bool is_end = false;
  std::array<uint64_t, kWords> words{};
  std::vector<Values> counted;    // (address, count)
  std::vector<Values> delimited;  // (begin, end)
  // Memory behind the values of `counted`, and 16-byte values delimited there, by address. Copied because an operator's
  // lists end with it.
  std::map<uint64_t, std::vector<uint64_t>> memory;
  // Offset of a std::string with its own name in objects behind the values of `counted`, by address.
  std::map<uint64_t, std::size_t> texts;
};

/// Reads an operator's object, from within a callback.
Observation observe(const void* function, const char* name, uint64_t sequence, bool is_end);

/// Infers the layout. `user_name`: the name of a range whose argument is the same text. Returns the missing fields,
/// empty if operators can be recorded.
std::string infer_layout(const std::vector<Observation>& seen, const std::vector<KnownTensor>& tensors,
                         const std::vector<KnownCall>& calls, const std::string& user_name, Layout& layout);

/// Infers the tags of numbers and lists, after infer_layout. All or nothing.
void infer_values(const std::vector<Observation>& seen, const std::vector<KnownArguments>& calls, Layout& layout);

/// libstdc++'s std::unordered_map: address and number of buckets, first node, number of nodes, load factor, a word, and
/// the single bucket of a small map. A node: the next node, a std::string, a value.
struct HashMap {
  static constexpr std::size_t kFirst = 16;
  static constexpr std::size_t kSize = 24;
  static constexpr std::size_t kOnlyBucket = 48;
  static constexpr std::size_t kKey = 8;
  static constexpr std::size_t kValue = 40;
};

/// Reads a field of a torch object.
template <class T>
T load(const void* object, std::size_t offset = 0) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof(value));
  return value;
}

/// The characters of a torch std::string, which begins with their address and number.
inline std::string_view load_text(const char* string) noexcept {
  return {load<const char*>(string), load<std::size_t>(string, sizeof(uint64_t))};
}

}  // namespace gpuscope::torch
