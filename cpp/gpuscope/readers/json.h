// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace gpuscope::readers {

/// The text ended within a value: the rest may follow.
class TextEnded : public std::exception {};

/// The text is not JSON.
class NoJson : public std::exception {
 public:
  NoJson(const char* why, const char* at) : why_(why), at_(at) {}
  const char* what() const noexcept override { return why_; }
  const char* at() const noexcept { return at_; }

 private:
  const char* why_;
  const char* at_;
};

/// Deviations from JSON, as in Kineto's traces from Windows before PyTorch 2.1.
struct JsonDialect {
  bool bare_backslashes = false;  // within texts: from the first one on, backslashes are literal
  bool odd_numbers = false;       // nan, inf, nan(ind) or N/A: no values
};

/// One JSON value (RFC 8259), or one of the literals NaN and Infinity, which Python writes.
struct JsonValue {
  enum class Kind : uint8_t { Text, Number, Literal, Nested };
  Kind kind;
  /// A text without quotation marks and escapes, in UTF-8. Other values as in the file.
  std::string_view text;
};

/// Reads JSON from memory, value by value, without storing it. One thread at a time.
///
/// Every call throws TextEnded if the text ends too early, and NoJson for anything except the requested kind. Accepts
/// control characters within texts, as some tools write them.
class JsonScanner {
 public:
  JsonScanner(const char* at, const char* end, JsonDialect dialect = {}) : at_(at), end_(end), dialect_(dialect) {}

  /// The current position.
  const char* at() const noexcept { return at_; }
  /// The next character that is not white space.
  char peek() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) {
      ++at_;
    }
    if (at_ == end_) {
      throw TextEnded();
    }
    return *at_;
  }
  /// Skips the next character if it is `wanted`.
  bool accept(char wanted) {
    const bool found = peek() == wanted;
    at_ += found ? 1 : 0;
    return found;
  }
  void expect(char wanted, const char* why);
  /// The text is valid until the next one is read.
  std::string_view text();
  JsonValue value() { return value(0); }
  /// The given dialect, extended by deviations found so far.
  JsonDialect dialect() const noexcept { return dialect_; }
  /// Skips white space. Returns whether nothing is left.
  bool is_at_end() noexcept;

 private:
  static constexpr int kMostNested = 256;

  JsonValue value(int depth);
  void skip_nested(int depth);
  void skip_number();
  void skip_literal();
  std::string_view unescape(const char* begin);
  std::string_view take_bare(const char* begin);
  std::optional<uint32_t> code_unit();

  const char* at_;
  const char* end_;
  JsonDialect dialect_;
  std::string scratch_;
};

/// A JSON number as an integer, if it is one of 64 bits: `1e3` and `4.0` are.
std::optional<int64_t> to_integer(std::string_view number) noexcept;

/// Converts us to ns, rounded to the nearest, without the precision loss of a double. None for other texts and values
/// beyond 2^62.
std::optional<int64_t> us_to_ns(std::string_view number) noexcept;

}  // namespace gpuscope::readers
