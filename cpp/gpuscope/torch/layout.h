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

/// Offsets in bytes of what a callback reads in torch's objects.
///
/// Inferred from a few operators of known arguments rather than compiled in, so that one build serves all versions of
/// torch, and none of its headers is needed. What was not found is kUnknown, and is then not read.
struct Layout {
  static constexpr std::size_t kUnknown = SIZE_MAX;

  // at::RecordFunction
  std::size_t inputs = kUnknown;    // address of the first c10::IValue, then how many
  std::size_t keywords = kUnknown;  // std::unordered_map of std::string and c10::IValue
  std::size_t sequence = kUnknown;  // int64
  std::size_t scope = kUnknown;     // at::RecordScope, a byte
  std::size_t number = kUnknown;    // uint64: at::RecordFunctionHandle, of callbacks that ask for it
  std::size_t outputs = kUnknown;   // begin and end of the c10::IValues, at the operator's end
  // c10::IValue: 16 bytes, of which the first 8 are a tensor's address and the next 4 the tag
  uint32_t tensor_tag = 0;
  // Read only where `list` is known.
  uint32_t int_tag = 0;
  uint32_t double_tag = 0;
  uint32_t bool_tag = 0;
  uint32_t list_tag = 0;
  std::optional<uint32_t> none_tag;
  // What a list's c10::IValue points to
  std::size_t list = kUnknown;  // begin and end of its c10::IValues and of their memory, and their type's address
  uint64_t tensor_type = 0;     // that address in a list of tensors
  // What a complex number's c10::IValue points to
  uint32_t complex_tag = 0;
  std::size_t complex = kUnknown;  // two doubles
  // What a text's c10::IValue points to
  uint32_t text_tag = 0;
  std::size_t text = kUnknown;  // a std::string
  // c10::TensorImpl
  std::size_t sizes = kUnknown;  // number of dimensions; then the sizes, or their address when they are more than 5
  bool strides = false;          // whether they follow the sizes: behind the fifth, or the last where they are more
  std::size_t dtype = kUnknown;  // c10::ScalarType, uint16
};

// at::RecordScope
inline constexpr uint8_t kBackwardScope = 1;
inline constexpr uint8_t kUserScope = 7;
inline constexpr std::size_t kValueBytes = 16;
inline constexpr uint64_t kInlineDimensions = 5;
inline constexpr std::size_t kListTypeWord = 3;  // behind the begin of a list's values

/// What is known of a tensor from Python.
struct KnownTensor {
  uint64_t address;  // of its c10::TensorImpl
  std::vector<int64_t> sizes;
  int dtype;  // c10::ScalarType
  std::vector<int64_t> strides;
};

/// What is known of an operator that will be called.
struct KnownCall {
  std::string name;
  std::vector<std::size_t> tensors;  // its arguments, which are all
  bool numbered;                     // autograd numbers it
  std::size_t result;                // a tensor
};

/// An argument of any kind: one word, two of a complex number, or one an element of a list.
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
  /// Of no operator's shapes, types and numbers, but of arguments that have names.
  bool is_rare() const noexcept { return kind == None || kind == Complex; }
};

/// What is known of an operator whose arguments are not all tensors.
struct KnownArguments {
  std::string name;
  std::vector<KnownValue> values;

  bool has_rare() const { return std::ranges::any_of(values, &KnownValue::is_rare); }
};

/// What a callback found in an operator's object: its words, and the 16-byte values that pairs of words may delimit.
struct Observation {
  static constexpr std::size_t kWords = 64;  // more than the object has (some 45); those past readable memory are 0
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
  // What values of `counted` pointed to, and 16-byte values delimited there, by address: an operator's lists end with
  // it.
  std::map<uint64_t, std::vector<uint64_t>> memory;
  // Where a std::string of its own name lies in what values of `counted` pointed to, by address.
  std::map<uint64_t, std::size_t> texts;
};

/// Reads an operator's object from within a callback.
Observation observe(const void* function, const char* name, uint64_t sequence, bool is_end);

/// Infers the layout; `user_name` is a range that the program named and gave that text, once more, as its argument.
/// Returns what could not be found, empty when operators can be recorded.
std::string infer_layout(const std::vector<Observation>& seen, const std::vector<KnownTensor>& tensors,
                         const std::vector<KnownCall>& calls, const std::string& user_name, Layout& layout);

/// Infers how numbers and lists are told apart, once infer_layout has found the rest; all or nothing.
void infer_values(const std::vector<Observation>& seen, const std::vector<KnownArguments>& calls, Layout& layout);

/// A std::unordered_map as libstdc++ has it: address and number of its buckets, its first node, the number of nodes,
/// the load factor, a word, and the bucket of a map that has no other. A node: the next one, a std::string, a value.
struct HashMap {
  static constexpr std::size_t kFirst = 16;
  static constexpr std::size_t kSize = 24;
  static constexpr std::size_t kOnlyBucket = 48;
  static constexpr std::size_t kKey = 8;
  static constexpr std::size_t kValue = 40;
};

/// Reads a value of an object of torch's.
template <class T>
T load(const void* object, std::size_t offset = 0) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof(value));
  return value;
}

/// The characters of a std::string of torch's, which begins with their address and number.
inline std::string_view load_text(const char* string) noexcept {
  return {load<const char*>(string), load<std::size_t>(string, sizeof(uint64_t))};
}

}  // namespace gpuscope::torch
