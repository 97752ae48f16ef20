// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/demangle.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace gpuscope::base {
namespace {

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
  const std::size_t end = text.find_first_of(text.substr(at).starts_with(" ") ? "(" : "( ", at);
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
