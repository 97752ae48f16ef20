// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/output.h"

#include <algorithm>

#include "gpuscope/base/strings.h"

namespace gpuscope::exporters {
namespace {

/// Removes JSON values (RFC 8259) from the front of a text. The functions return whether there was one.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : rest_(text) {}

  bool take_value(std::size_t depth) {
    constexpr std::size_t kDeepest = 64;  // JSON parsers have similar limits
    skip_space();
    if (rest_.empty() || depth > kDeepest) {
      return false;
    }
    switch (rest_.front()) {
      case '{':
        return take_members('}', [&] { return take_text() && skip_space().take(":") && take_value(depth + 1); });
      case '[':
        return take_members(']', [&] { return take_value(depth + 1); });
      case '"':
        return take_text();
      default:
        return take("true") || take("false") || take("null") || take_number();
    }
  }
  bool at_end() { return skip_space().rest_.empty(); }

 private:
  JsonReader& skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
    return *this;
  }
  bool take(std::string_view text) {
    const bool there = rest_.starts_with(text);
    rest_.remove_prefix(there ? text.size() : 0);
    return there;
  }
  template <class Take>
  bool take_members(char end, Take&& take_member) {
    rest_.remove_prefix(1);
    if (skip_space().take({&end, 1})) {
      return true;
    }
    while (skip_space(), take_member()) {
      if (skip_space().take({&end, 1})) {
        return true;
      }
      if (!take(",")) {
        return false;
      }
    }
    return false;
  }
  bool take_text() {
    if (!take("\"")) {
      return false;
    }
    for (std::size_t at = 0; at < rest_.size() && static_cast<uint8_t>(rest_[at]) >= 0x20; ++at) {
      if (rest_[at] == '"') {
        rest_.remove_prefix(at + 1);
        return true;
      }
      if (rest_[at] == '\\') {
        constexpr std::string_view kHex = "0123456789abcdefABCDEF";
        const std::string_view escape = rest_.substr(at + 1, 5);
        const bool is_code = escape.size() == 5 && escape.find_first_not_of(kHex, 1) == std::string_view::npos;
        if (escape.empty() ||
            (escape[0] == 'u' ? !is_code : std::string_view("\"\\/bfnrt").find(escape[0]) == std::string_view::npos)) {
          return false;
        }
        at += escape[0] == 'u' ? 5 : 1;
      }
    }
    return false;
  }
  bool take_digits() {
    const std::size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    rest_.remove_prefix(digits);
    return digits != 0;
  }
  bool take_number() {
    take("-");
    if (!take("0") && !take_digits()) {
      return false;
    }
    if (take(".") && !take_digits()) {
      return false;
    }
    if (!take("e") && !take("E")) {
      return true;
    }
    (void)(take("+") || take("-"));
    return take_digits();
  }

  std::string_view rest_;
};

}  // namespace

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

bool is_json(std::string_view text) {
  JsonReader reader(text);
  return reader.take_value(0) && reader.at_end();
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
