// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/strings.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

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

constexpr std::string_view kOperator = "operator";
constexpr std::string_view kCutlass = "<cutlass";
constexpr std::string_view kAnonymous = "(anonymous namespace)";

bool is_word(char character) noexcept {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
         (character >= '0' && character <= '9') || character == '_' || character == '$';
}

/// The position behind the bracket that closes the one at `open`, or the end of the text.
std::size_t skip_brackets(std::string_view text, std::size_t open, char opening, char closing) noexcept {
  int depth = 0;
  for (std::size_t at = open; at < text.size(); ++at) {
    if (text[at] == opening) {
      ++depth;
    } else if (text[at] == closing && --depth == 0) {
      return at + 1;
    }
  }
  return text.size();
}

/// The position behind the template arguments that begin at `open`. Parentheses inside may hold `>` and `->`.
std::size_t skip_template(std::string_view text, std::size_t open) noexcept {
  int depth = 0;
  for (std::size_t at = open; at < text.size();) {
    if (text[at] == '(') {
      at = skip_brackets(text, at, '(', ')');
      continue;
    }
    if (text[at] == '<') {
      ++depth;
    } else if (text[at] == '>' && --depth == 0) {
      return at + 1;
    }
    ++at;
  }
  return text.size();
}

bool starts_operator(std::string_view text, std::size_t at) noexcept {
  return text.substr(at).starts_with(kOperator) && (at == 0 || !is_word(text[at - 1])) &&
         (at + kOperator.size() == text.size() || !is_word(text[at + kOperator.size()]));
}

/// The position behind an operator's name: `operator()`, `operator<<`, `operator bool`.
std::size_t skip_operator(std::string_view text, std::size_t at) noexcept {
  at += kOperator.size();
  if (text.substr(at).starts_with("()")) {
    return at + 2;
  }
  const std::size_t end = text.find_first_of(text.substr(at).starts_with(' ') ? "(" : "( ", at);
  return end == std::string_view::npos ? text.size() : end;
}

/// Whether the template arguments are one word of CUTLASS's: its wrapper kernel has no other name.
bool is_cutlass_name(std::string_view arguments) noexcept {
  if (!arguments.starts_with(kCutlass) || !arguments.ends_with('>')) {
    return false;
  }
  arguments = arguments.substr(1, arguments.size() - 2);
  return std::all_of(arguments.begin(), arguments.end(), is_word);
}

}  // namespace

uint64_t hash(std::string_view text) noexcept {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  uint64_t value = text.size();
  const char* at = text.data();
  std::size_t left = text.size();
  for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    value = (value ^ word) * kFactor;
    value ^= value >> 32;
  }
  uint64_t word = 0;
  std::memcpy(&word, at, left);
  value = (value ^ word) * kFactor;
  return value ^ (value >> 32);
}

uint32_t StringTable::intern(std::string_view text) {
  if (const auto found = ids_.find(text); found != ids_.end()) {
    return found->second;
  }
  const auto id = static_cast<uint32_t>(texts_.size());
  texts_.emplace_back(text);
  try {
    ids_.emplace(texts_.back(), id);
  } catch (...) {  // out of memory: a text without an id would come a second time
    texts_.pop_back();
    throw;
  }
  return id;
}

Names& Names::process() {
  static auto* names = new Names;  // leaked: logs are read until the last moment
  return *names;
}

uint32_t Names::intern(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (table_.size() < kMax) {
    return table_.intern(name);
  }
  const uint32_t known = table_.find(name);
  return known != UINT32_MAX ? known : table_.intern("(more names)");
}

std::string_view Names::text(uint32_t id) {
  const std::lock_guard lock(mutex_);
  return table_[id];
}

uint32_t NameCache::id_of(std::string_view text) noexcept {
  Entry& entry = entries_[hash(text) % entries_.size()];
  if (entry.text != text) [[unlikely]] {
    try {
      entry.id = Names::process().intern(text);
      entry.text = Names::process().text(entry.id);
      if (entry.text != text) {  // beyond the most that Names holds: it shares an id, not a text
        return entry.id;
      }
    } catch (...) {
      entry = {};
      return 0;
    }
  }
  return entry.id;
}

void IdCache::keep(std::size_t place, std::string_view key, const Ids& ids) noexcept {
  std::swap(entries_[place], entries_[place ^ 1]);
  Entry& entry = entries_[place];
  try {
    entry.key = key;
    entry.ids = ids;
  } catch (...) {  // out of memory: they are made again
    entry.key.clear();
  }
}

void append_utf8(std::string& text, uint32_t code_point) {
  if ((code_point >= 0xD800 && code_point < 0xE000) || code_point > 0x10FFFF) {
    code_point = 0xFFFD;
  }
  const auto tail = [&](unsigned shift) { text += static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    text += static_cast<char>(0xC0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    text += static_cast<char>(0xE0 | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

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

std::string demangle(std::string_view symbol) {
  std::string text(symbol);
  if (!symbol.starts_with("_Z")) {
    return text;
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status),
                                                          &std::free);
  return status == 0 ? std::string(plain.get()) : text;
}

std::string short_name(std::string_view demangled) {
  if (demangled.find_first_of("<(") == std::string_view::npos) {
    return std::string(demangled);
  }
  std::string kept;
  std::size_t name_start = 0;  // in `kept`: what stands before it is the return type
  for (std::size_t at = 0; at < demangled.size();) {
    std::size_t next = at + 1;
    if (starts_operator(demangled, at)) {
      next = skip_operator(demangled, at);
      kept += demangled.substr(at, next - at);
    } else if (demangled[at] == '<') {
      next = skip_template(demangled, at);
      if (const std::string_view arguments = demangled.substr(at, next - at); is_cutlass_name(arguments)) {
        kept += arguments;
      }
    } else if (demangled.substr(at).starts_with(kAnonymous)) {
      next = at + kAnonymous.size();
      kept += kAnonymous;
    } else if (demangled[at] == '{') {  // {lambda(int)#1}
      next = skip_brackets(demangled, at, '{', '}');
      kept += demangled.substr(at, next - at);
    } else if (demangled[at] == '(' && kept.ends_with("decltype ")) {
      next = skip_brackets(demangled, at, '(', ')');
    } else if (demangled[at] == '(') {
      break;
    } else {
      kept += demangled[at];
      if (demangled[at] == ' ') {
        name_start = kept.size();
      }
    }
    at = next;
  }
  kept.erase(0, name_start);
  return kept.empty() ? std::string(demangled) : kept;
}

}  // namespace gpuscope::base
