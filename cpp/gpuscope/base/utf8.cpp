// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/utf8.h"

#include <cstdint>

namespace gpuscope::base {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The length of the valid sequence that `bytes` begin with, 0 if there is none (Unicode standard, table 3-7).
std::size_t sequence_length(std::string_view bytes) noexcept {
  const auto byte = [&](std::size_t at) { return static_cast<uint8_t>(at < bytes.size() ? bytes[at] : 0); };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t length = first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : 4;
  if (first < 0xC2 || first > 0xF4) {
    return 0;
  }
  // The second byte's range keeps out overlong forms, surrogates and what lies above U+10FFFF.
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) {
    return 0;
  }
  for (std::size_t at = 2; at < length; ++at) {
    if ((byte(at) & 0xC0) != 0x80) {
      return 0;
    }
  }
  return length;
}

}  // namespace

std::string to_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t length = sequence_length(bytes);
    text += length == 0 ? kReplacement : bytes.substr(0, length);
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return text;
}

}  // namespace gpuscope::base
