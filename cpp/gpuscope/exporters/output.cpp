// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/output.h"

#include "gpuscope/base/strings.h"

namespace gpuscope::exporters {

void Output::grow(std::size_t more) { bytes_.resize((size_ + more) * 2); }

std::string quoted(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (const char letter : base::to_utf8(text)) {
    const auto byte = static_cast<uint8_t>(letter);
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (byte < 0x20 || byte == 0x7F) {
      result += "\\u00";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    } else {
      result += letter;
    }
  }
  result += '"';
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
