// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace gpuscope::readers {

/// The text ended within a value: the rest of it may be still to come.
class TextEnded : public std::exception {};

/// What stands there is no JSON.
class NoJson : public std::exception {
 public:
  NoJson(const char* why, const char* at) : why_(why), at_(at) {}
  const char* what() const noexcept override { return why_; }
  const char* at() const noexcept { return at_; }

 private:
  const char* why_;
  const char* at_;
};

/// How a text differs from JSON, as traces that Kineto wrote on Windows do before PyTorch 2.1.
struct JsonDialect {
  bool bare_backslashes = false;  // within texts: from the first on a backslash stands for itself there
  bool odd_numbers = false;       // nan, inf, nan(ind) or N/A: no values
};

/// One value of JSON (RFC 8259), and the literals NaN and Infinity, which Python writes.
struct JsonValue {
  enum class Kind : uint8_t { Text, Number, Literal, Nested };
  Kind kind;
  /// A text without its quotation marks and escapes, in UTF-8; of the others what stands in the file.
  std::string_view text;
};

/// Reads JSON from memory, value by value, and keeps none of it. One thread at a time.
///
/// Every call throws TextEnded where the text ends too early, and NoJson where it is something else than was asked for.
/// Control characters within texts are accepted, as some tools write them.
class JsonScanner {
 public:
  JsonScanner(const char* at, const char* end, JsonDialect dialect = {}) : at_(at), end_(end), dialect_(dialect) {}

  /// Where reading goes on.
  const char* at() const noexcept { return at_; }
  /// The next character that is no white space.
  char peek() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) {
      ++at_;
    }
    if (at_ == end_) {
      throw TextEnded();
    }
    return *at_;
  }
  /// Skips that character if it is this one.
  bool accept(char wanted) {
    const bool found = peek() == wanted;
    at_ += found ? 1 : 0;
    return found;
  }
  void expect(char wanted, const char* why);
  /// The text is valid until the next one is read.
  std::string_view text();
  JsonValue value() { return value(0); }
  /// What was found so far, with what was known.
  JsonDialect dialect() const noexcept { return dialect_; }
  /// Skips white space; whether nothing is left.
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

/// A number as it stands in JSON: its whole, where it has one of 64 bits. `1e3` and `4.0` have one.
std::optional<int64_t> to_integer(std::string_view number) noexcept;

/// A number of us in ns, to the nearest, without the loss of a double; none where it is no number, or not in 2^62.
std::optional<int64_t> us_to_ns(std::string_view number) noexcept;

}  // namespace gpuscope::readers
