// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpuscope::torch {

/// Where the things that a callback needs lie in torch's objects, in bytes from their beginning.
///
/// Learned from a few operators of known arguments rather than compiled in, so that one build serves all versions of
/// torch, and none of its headers is needed. What was not found is kUnknown, and is then not read.
struct Layout {
  static constexpr std::size_t kUnknown = SIZE_MAX;

  // at::RecordFunction
  std::size_t inputs = kUnknown;    // address of the first c10::IValue, then how many
  std::size_t sequence = kUnknown;  // int64
  std::size_t scope = kUnknown;     // at::RecordScope, a byte
  std::size_t outputs = kUnknown;   // begin and end of the c10::IValues, at the operator's end
  // c10::IValue: 16 bytes, of which the first 8 are a tensor's address and the next 4 the tag
  uint32_t tensor_tag = 0;
  // c10::TensorImpl
  std::size_t sizes = kUnknown;  // number of dimensions; then the sizes, or their address when they are more than 5
  std::size_t dtype = kUnknown;  // c10::ScalarType, uint16
};

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

/// What a callback saw of an operator: its object's words, and the 16-byte values that pairs of words may delimit.
struct Sighting {
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

/// Looks at an operator's object from within a callback.
Sighting look_at(const void* function, const char* name, uint64_t sequence, bool is_end);

/// Finds out from what was seen; `user_name` is a range that the program named. Returns what could not be found, empty
/// when operators can be recorded.
std::string learn(const std::vector<Sighting>& seen, const std::vector<KnownTensor>& tensors,
                  const std::vector<KnownCall>& calls, const std::string& user_name, Layout& layout);

}  // namespace gpuscope::torch
