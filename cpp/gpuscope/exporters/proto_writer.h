// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "gpuscope/exporters/output.h"

namespace gpuscope::exporters {

/// Writes protobuf's wire format (protobuf.dev/programming-guides/encoding), field by field.
class ProtoWriter {
 public:
  explicit ProtoWriter(Output& out) : out_(out) {}

  void number(uint32_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  void text(uint32_t field, std::string_view value) {
    varint(field << 3 | kLengthDelimited);
    varint(value.size());
    out_.put(value);
  }
  /// Opens a message within a message; give what it returns to end().
  std::size_t begin(uint32_t field) {
    varint(field << 3 | kLengthDelimited);
    out_.put('\0');  // its length: most messages are shorter than 128 bytes
    return out_.size();
  }
  void end(std::size_t begun) {
    const std::size_t length = out_.size() - begun;
    if (length < 128) [[likely]] {
      out_.data()[begun - 1] = static_cast<char>(length);
      return;
    }
    char digits[kLongestVarint];
    const std::size_t count = encode(length, digits);
    out_.room(count);
    char* body = out_.data() + begun;
    std::memmove(body + count - 1, body, length);
    std::memcpy(body - 1, digits, count);
    out_.advance(count - 1);
  }

 private:
  static constexpr uint32_t kLengthDelimited = 2;
  static constexpr std::size_t kLongestVarint = 10;

  static std::size_t encode(uint64_t value, char* into) {
    std::size_t count = 0;
    for (; value >= 128; value >>= 7) {
      into[count++] = static_cast<char>(value | 128);
    }
    into[count++] = static_cast<char>(value);
    return count;
  }
  void varint(uint64_t value) { out_.advance(encode(value, out_.room(kLongestVarint))); }

  Output& out_;
};

}  // namespace gpuscope::exporters
