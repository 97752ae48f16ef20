// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/json_text.h"

#include <cstddef>
#include <cstdint>

namespace gpuscope::exporters {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the UTF-8 character at the front, 0 when there is none (Unicode 15, table 3-7).
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<uint8_t>(text[at]) : uint8_t{0}; };
  const auto follows = [&](std::size_t at) { return (byte(at) & 0xC0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool too_large = first == 0xF4 && byte(1) > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

template <class Take>
void each_character(std::string_view text, Take&& take) {
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    take(length == 0 ? kReplacement : text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

void append_escaped(std::string& into, std::string_view character) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const auto first = static_cast<uint8_t>(character.front());
  if (first == '"' || first == '\\') {
    into += '\\';
    into += character;
  } else if (first < 0x20 || first == 0x7F) {
    into += "\\u00";
    into += kHex[first >> 4];
    into += kHex[first & 15];
  } else {
    into += character;
  }
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string result = "\"";
  each_character(text, [&](std::string_view character) { append_escaped(result, character); });
  result += '"';
  return result;
}

std::string valid_utf8(std::string_view text) {
  std::string result;
  each_character(text, [&](std::string_view character) { result += character; });
  return result;
}

bool is_json_lists(std::string_view text) {
  constexpr std::size_t kDeepest = 64;  // parsers of JSON have limits of their own
  enum { kValue, kValueOrEnd, kCommaOrEnd } next = kValue;
  std::size_t depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (letter == ' ') {
      continue;
    }
    if (letter == '[' && next != kCommaOrEnd && depth < kDeepest && (depth != 0 || at == 0)) {
      ++depth;
      next = kValueOrEnd;
    } else if (letter == ']' && next != kValue && depth != 0) {
      if (--depth == 0) {
        return at + 1 == text.size();
      }
      next = kCommaOrEnd;
    } else if (letter == ',' && next == kCommaOrEnd) {
      next = kValue;
    } else if (next != kCommaOrEnd && depth != 0) {
      const std::size_t digits = at + (letter == '-' ? 1 : 0);
      std::size_t end = digits;
      while (end < text.size() && text[end] >= '0' && text[end] <= '9') {
        ++end;
      }
      if (end == digits || (text[digits] == '0' && end > digits + 1)) {  // JSON has no leading zeros
        return false;
      }
      at = end - 1;
      next = kCommaOrEnd;
    } else {
      return false;
    }
  }
  return false;
}

std::string quoted_list(std::string_view text) {
  std::string list(1, '[');
  std::string_view rest = text;
  if (!rest.starts_with('[') || !rest.ends_with(']') || rest.size() < 2) {
    return quoted(text);
  }
  rest = rest.substr(1, rest.size() - 2);
  while (!rest.empty()) {
    const std::size_t end = rest.find('\'', 1);
    if (rest.front() != '\'' || end == std::string_view::npos) {
      return quoted(text);
    }
    list += quoted(rest.substr(1, end - 1));
    rest.remove_prefix(end + 1);
    if (rest.empty()) {
      break;
    }
    if (!rest.starts_with(", ") || rest.size() == 2) {
      return quoted(text);
    }
    rest.remove_prefix(2);
    list += ',';
  }
  list += ']';
  return list;
}

}  // namespace gpuscope::exporters
