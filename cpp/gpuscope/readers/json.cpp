// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/readers/json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>

#include "gpuscope/base/strings.h"

namespace gpuscope::readers {
namespace {

constexpr bool is_space(char letter) noexcept {
  return letter == ' ' || letter == '\n' || letter == '\t' || letter == '\r';
}
constexpr bool is_digit(char letter) noexcept { return letter >= '0' && letter <= '9'; }
constexpr bool is_letter(char letter) noexcept { return (letter | 0x20) >= 'a' && (letter | 0x20) <= 'z'; }

/// Marks the bytes of a word that equal `letter`, in their highest bits (Mycroft's test). Bytes after the first match
/// may be marked falsely.
constexpr uint64_t bytes_equal(uint64_t word, char letter) noexcept {
  constexpr uint64_t kOnes = 0x0101010101010101;
  const uint64_t zeros = word ^ (kOnes * static_cast<unsigned char>(letter));
  return (zeros - kOnes) & ~zeros & (kOnes << 7);
}

/// The first quotation mark or backslash. `end` if there is none.
const char* end_of_plain(const char* at, const char* end) noexcept {
  if constexpr (std::endian::native == std::endian::little) {
    while (end - at >= static_cast<std::ptrdiff_t>(sizeof(uint64_t))) {
      uint64_t word = 0;
      std::memcpy(&word, at, sizeof word);
      const uint64_t found = bytes_equal(word, '"') | bytes_equal(word, '\\');
      if (found != 0) {
        return at + std::countr_zero(found) / 8;
      }
      at += sizeof word;
    }
  }
  while (at < end && *at != '"' && *at != '\\') {
    ++at;
  }
  return at;
}

constexpr uint32_t kHighSurrogates = 0xD800;
constexpr uint32_t kLowSurrogates = 0xDC00;
constexpr uint32_t kBehindSurrogates = 0xE000;

std::optional<double> to_double(std::string_view number) noexcept {
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc{} || end != number.data() + number.size()) {
    return std::nullopt;
  }
  return value;
}

constexpr double kMost = 4611686018427387904.0;  // 2^62: the sum of two fits

std::optional<int64_t> rounded(double value) noexcept {
  const bool fits = value > -kMost && value < kMost;
  return fits ? std::optional<int64_t>(std::llround(value)) : std::nullopt;
}

}  // namespace

void JsonScanner::expect(char wanted, const char* why) {
  if (!accept(wanted)) {
    throw NoJson(why, at_);
  }
}

bool JsonScanner::is_at_end() noexcept {
  while (at_ < end_ && is_space(*at_)) {
    ++at_;
  }
  return at_ == end_;
}

std::string_view JsonScanner::text() {
  expect('"', "no text in quotation marks");
  const char* const begin = at_;
  at_ = end_of_plain(at_, end_);
  if (at_ == end_) {
    throw TextEnded();
  }
  if (*at_ == '\\') {
    return unescape(begin);
  }
  return {begin, static_cast<std::size_t>(at_++ - begin)};
}

/// A text that escapes only quotation marks and backslashes.
std::string_view JsonScanner::take_bare(const char* begin) {
  dialect_.bare_backslashes = true;
  scratch_.clear();
  at_ = begin;
  while (at_ < end_ && *at_ != '"') {
    const bool is_escape = *at_ == '\\' && end_ - at_ > 1 && (at_[1] == '"' || at_[1] == '\\');
    at_ += is_escape ? 1 : 0;
    const char* const plain = at_++;
    at_ = end_of_plain(at_, end_);
    scratch_.append(plain, at_);
  }
  if (at_ == end_) {
    throw TextEnded();
  }
  ++at_;
  return scratch_;
}

/// Continues from the first backslash.
std::string_view JsonScanner::unescape(const char* begin) {
  if (dialect_.bare_backslashes) {
    return take_bare(begin);
  }
  scratch_.assign(begin, at_);
  while (*at_ != '"') {
    if (end_ - at_ < 2) {
      throw TextEnded();
    }
    const char escaped = at_[1];
    at_ += 2;
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const std::size_t known = kEscapes.find(escaped);
    if (known != std::string_view::npos) {
      scratch_ += kMeanings[known];
    } else if (escaped == 'u') {
      const std::optional<uint32_t> unit = code_unit();
      if (!unit.has_value()) {
        return take_bare(begin);
      }
      uint32_t code = *unit;
      // A surrogate pair for a character above U+FFFF. A lone surrogate becomes U+FFFD.
      if (code >= kHighSurrogates && code < kLowSurrogates) {
        if (at_ == end_ || (*at_ == '\\' && end_ - at_ < 2)) {
          throw TextEnded();
        }
        if (*at_ == '\\' && at_[1] == 'u') {
          const char* const before = at_;
          at_ += 2;
          const std::optional<uint32_t> low = code_unit();
          if (low.has_value() && *low >= kLowSurrogates && *low < kBehindSurrogates) {
            code = 0x10000 + ((code - kHighSurrogates) << 10) + (*low - kLowSurrogates);
          } else {
            at_ = before;
          }
        }
      }
      base::append_utf8(scratch_, code);
    } else {
      return take_bare(begin);
    }
    const char* const plain = at_;
    at_ = end_of_plain(at_, end_);
    scratch_.append(plain, at_);
    if (at_ == end_) {
      throw TextEnded();
    }
  }
  ++at_;
  return scratch_;
}

/// Parses four hexadecimal digits. None if there are other characters.
std::optional<uint32_t> JsonScanner::code_unit() {
  constexpr int kDigits = 4;
  uint32_t code = 0;
  const char* const last = at_ + std::min<std::ptrdiff_t>(kDigits, end_ - at_);
  const char* const end = std::from_chars(at_, last, code, 16).ptr;
  if (end != last) {
    return std::nullopt;
  }
  if (last - at_ < kDigits) {
    throw TextEnded();
  }
  at_ = end;
  return code;
}

JsonValue JsonScanner::value(int depth) {
  const char first = peek();
  const char* const begin = at_;
  const auto read = [&](JsonValue::Kind kind) {
    return JsonValue{kind, {begin, static_cast<std::size_t>(at_ - begin)}};
  };
  if (first == '"') {
    return {JsonValue::Kind::Text, text()};
  }
  if (first == '{' || first == '[') {
    skip_nested(depth);
    return read(JsonValue::Kind::Nested);
  }
  if (is_digit(first) || (first == '-' && (end_ - at_ < 2 || !is_letter(at_[1])))) {
    skip_number();
    return read(JsonValue::Kind::Number);
  }
  skip_literal();
  return read(JsonValue::Kind::Literal);
}

void JsonScanner::skip_nested(int depth) {
  if (depth == kMostNested) {
    throw NoJson("values nested more than 256 deep", at_);
  }
  const bool is_object = *at_++ == '{';
  const char closing = is_object ? '}' : ']';
  if (accept(closing)) {
    return;
  }
  do {
    if (is_object) {
      text();
      expect(':', "no colon behind a name");
    }
    value(depth + 1);
  } while (accept(','));
  expect(closing, is_object ? "neither a comma nor the end of an object" : "neither a comma nor the end of a list");
}

void JsonScanner::skip_number() {
  const auto next = [&] {
    if (at_ == end_) {
      throw TextEnded();
    }
    return *at_;
  };
  const auto digits = [&] {
    if (!is_digit(next())) {
      throw NoJson("a number without digits", at_);
    }
    while (is_digit(next())) {
      ++at_;
    }
  };
  at_ += *at_ == '-' ? 1 : 0;
  const char* const first = at_;
  digits();
  if (*first == '0' && at_ - first > 1) {
    throw NoJson("a number that begins with 0", first);
  }
  if (next() == '.') {
    ++at_;
    digits();
  }
  if (next() == 'e' || next() == 'E') {
    ++at_;
    at_ += next() == '+' || *at_ == '-' ? 1 : 0;
    digits();
  }
}

void JsonScanner::skip_literal() {
  constexpr std::array<std::string_view, 13> kLiterals = {"true",      "false",    "null", "NaN", "Infinity",
                                                          "-Infinity", "nan(ind)", "nan",  "inf", "-nan(ind)",
                                                          "-nan",      "-inf",     "N/A"};
  constexpr std::size_t kOdd = 6;  // later ones are not accepted by Python's JSON either
  const std::string_view rest(at_, static_cast<std::size_t>(end_ - at_));
  for (std::size_t index = 0; index < kLiterals.size(); ++index) {
    if (rest.starts_with(kLiterals[index])) {
      at_ += kLiterals[index].size();
      dialect_.odd_numbers = dialect_.odd_numbers || index >= kOdd;
      return;
    }
    if (kLiterals[index].starts_with(rest)) {
      throw TextEnded();
    }
  }
  throw NoJson("no value", at_);
}

std::optional<int64_t> to_integer(std::string_view number) noexcept {
  int64_t value = 0;
  const char* const end = number.data() + number.size();
  const auto [at, error] = std::from_chars(number.data(), end, value);
  if (error == std::errc{} && at == end) {
    return value;
  }
  const std::optional<double> real = to_double(number);
  if (error == std::errc::result_out_of_range || !real.has_value() || std::trunc(*real) != *real) {
    return std::nullopt;
  }
  return rounded(*real);
}

std::optional<int64_t> us_to_ns(std::string_view number) noexcept {
  constexpr int kMostDigits = 16;  // of the integer part, as in times since 1970
  constexpr int64_t kMostUs = (int64_t{1} << 62) / 1000 - 1;
  const char* at = number.data();
  const char* const end = at + number.size();
  const bool is_negative = at < end && *at == '-';
  at += is_negative ? 1 : 0;
  int64_t ns = 0;
  int digits = 0;
  for (; at < end && is_digit(*at); ++at, ++digits) {
    if (digits == kMostDigits) {
      break;
    }
    ns = ns * 10 + (*at - '0');
  }
  int decimals = 0;
  bool round_up = false;
  const bool fits = ns <= kMostUs;
  if (fits && at < end && *at == '.') {
    for (++at; at < end && is_digit(*at); ++at, ++decimals) {
      if (decimals < 3) {
        ns = ns * 10 + (*at - '0');
      } else if (decimals == 3) {
        round_up = *at >= '5';
      }
    }
  }
  if (at != end || digits == 0 || !fits) {  // an exponent, or a long integer part
    const std::optional<double> real = to_double(number);
    return real.has_value() ? rounded(*real * 1000) : std::nullopt;
  }
  for (; decimals < 3; ++decimals) {
    ns *= 10;
  }
  ns += round_up ? 1 : 0;
  return is_negative ? -ns : ns;
}

}  // namespace gpuscope::readers
