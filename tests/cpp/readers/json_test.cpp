// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/readers/json.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gpuscope::readers {
namespace {

std::string text_of(std::string_view json) {
  JsonScanner scanner(json.data(), json.data() + json.size());
  return std::string(scanner.text());
}

JsonValue value_of(JsonScanner& scanner) { return scanner.value(); }

TEST(JsonScanner, ReadsTextsWithEscapes) {
  EXPECT_EQ(text_of(R"("")"), "");
  EXPECT_EQ(text_of(R"("a kernel of more than eight letters")"), "a kernel of more than eight letters");
  EXPECT_EQ(text_of(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(text_of(R"("1234567\\89")"), "1234567\\89");
  EXPECT_EQ(text_of(R"("é€")"), "\xC3\xA9\xE2\x82\xAC");
  EXPECT_EQ(text_of(R"("😀!")"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(text_of("\"a\nb\""), "a\nb");
}

TEST(JsonScanner, HalvesOfCharactersBecomeTheReplacementCharacter) {
  EXPECT_EQ(text_of(R"("\ud83d")"), "\xEF\xBF\xBD");
  EXPECT_EQ(text_of(R"("\ude00x")"), "\xEF\xBF\xBDx");
  EXPECT_EQ(text_of(R"("\ud83d\u0041")"),
            "\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(text_of(R"("\ud83d\n")"), "\xEF\xBF\xBD\n");
}

TEST(JsonScanner, TextsMayBeLong) {
  std::string name(10'000, 'x');
  name[9'999] = 'y';
  EXPECT_EQ(text_of("\"" + name + "\""), name);
  std::string escaped;
  for (int index = 0; index < 10'000; ++index) {
    escaped += "\\u0041";
  }
  EXPECT_EQ(text_of("\"" + escaped + "\""), std::string(10'000, 'A'));
}

TEST(JsonScanner, TellsValuesApart) {
  using Kind = JsonValue::Kind;
  const std::vector<std::pair<std::string, Kind>> values = {
      {"12 ", Kind::Number},
      {"-0.5e-3 ", Kind::Number},
      {"1E+9 ", Kind::Number},
      {"true", Kind::Literal},
      {"null", Kind::Literal},
      {"-Infinity", Kind::Literal},
      {"NaN", Kind::Literal},
      {"{}", Kind::Nested},
      {R"([1, {"a": [2]}, "]"])", Kind::Nested},
      {R"({"a" : 1 , "b":[ ]})", Kind::Nested},
  };
  for (const auto& [json, kind] : values) {
    JsonScanner scanner(json.data(), json.data() + json.size());
    const JsonValue value = value_of(scanner);
    EXPECT_EQ(value.kind, kind) << json;
    EXPECT_EQ(value.text, json.substr(0, json.find_last_not_of(' ') + 1));
  }
}

TEST(JsonScanner, SaysWhatIsNoJson) {
  for (const std::string_view json : {"nul ", "tree", "01 ", "1. ", "-x", "1e ", "[1 2]", "{1: 2}", "{\"a\" 1}", "[,]",
                                      "{\"a\": 1,}", "[nanx]", "-in ", "N/B", "]", "\x01"}) {
    JsonScanner scanner(json.data(), json.data() + json.size());
    EXPECT_THROW(scanner.value(), NoJson) << json;
  }
}

TEST(JsonScanner, BackslashesThatAreNotEscapedStandForThemselves) {
  EXPECT_EQ(text_of(R"("torch\nn\modules\module.py")"), "torch\\nn\\modules\\module.py");
  EXPECT_EQ(text_of(R"("C:\new\utils\x")"), "C:\\new\\utils\\x");
  EXPECT_EQ(text_of(R"("\u12g4")"), "\\u12g4");
  EXPECT_EQ(text_of(R"("\ud83d\u1")"), "\\ud83d\\u1");
  EXPECT_EQ(text_of(R"("\q \"quoted\" \\server")"), "\\q \"quoted\" \\server");
  const std::string_view two = R"("a\b.py" "\qc\d.py" "torch\nn\functional.py")";
  JsonScanner scanner(two.data(), two.data() + two.size());
  EXPECT_EQ(scanner.text(), "a\b.py");
  EXPECT_FALSE(scanner.dialect().bare_backslashes);
  EXPECT_EQ(scanner.text(), "\\qc\\d.py");
  EXPECT_TRUE(scanner.dialect().bare_backslashes);
  EXPECT_EQ(scanner.text(), "torch\\nn\\functional.py");
}

TEST(JsonScanner, NumbersThatAreNoneAreLiterals) {
  for (const std::string_view json : {"nan ", "-nan,", "nan(ind)", "-nan(ind)}", "inf]", "-inf ", "N/A,"}) {
    JsonScanner scanner(json.data(), json.data() + json.size());
    EXPECT_EQ(scanner.value().kind, JsonValue::Kind::Literal) << json;
    EXPECT_TRUE(scanner.dialect().odd_numbers);
  }
  const std::string_view pythons = "[NaN, Infinity, -Infinity]";
  JsonScanner scanner(pythons.data(), pythons.data() + pythons.size());
  scanner.value();
  EXPECT_FALSE(scanner.dialect().odd_numbers);
}

TEST(JsonScanner, TextsThatEndTooEarlyMayGoOn) {
  const std::string_view json = R"({"a": [1.5e3, "xé\ud83d\ude00", true, {"b": null}]})";
  for (std::size_t length = 0; length < json.size(); ++length) {
    const std::string cut(json.substr(0, length));  // a copy, so that sanitizers see what is read behind its end
    JsonScanner scanner(cut.data(), cut.data() + cut.size());
    EXPECT_THROW(scanner.value(), TextEnded) << cut;
  }
}

TEST(JsonScanner, NestingHasABound) {
  const std::string fine = std::string(200, '[') + std::string(200, ']');
  JsonScanner scanner(fine.data(), fine.data() + fine.size());
  EXPECT_EQ(scanner.value().text, fine);
  const std::string deep(100'000, '[');
  JsonScanner other(deep.data(), deep.data() + deep.size());
  EXPECT_THROW(other.value(), NoJson);
}

TEST(JsonNumbers, WholesAreKnownInEverySpelling) {
  EXPECT_EQ(to_integer("12"), 12);
  EXPECT_EQ(to_integer("-12"), -12);
  EXPECT_EQ(to_integer("4.0"), 4);
  EXPECT_EQ(to_integer("1e3"), 1000);
  EXPECT_EQ(to_integer("9223372036854775807"), INT64_MAX);
  for (const char* const none : {"9223372036854775808", "1e300", "1.5", "", "x", "12x", "NaN", "--1"}) {
    EXPECT_EQ(to_integer(none), std::nullopt) << none;
  }
}

TEST(JsonNumbers, MicrosecondsKeepTheirNanoseconds) {
  EXPECT_EQ(us_to_ns("4615358215002.243"), 4615358215002243);
  EXPECT_EQ(us_to_ns("0.0005"), 1);
  EXPECT_EQ(us_to_ns("0.0004999"), 0);
  EXPECT_EQ(us_to_ns("1.9996"), 2000);
  EXPECT_EQ(us_to_ns("79.638999999999996"), 79639);
  EXPECT_EQ(us_to_ns("-1.25"), -1250);
  EXPECT_EQ(us_to_ns("7"), 7000);
  EXPECT_EQ(us_to_ns("9.9999999999999995e-07"), 0);
  EXPECT_EQ(us_to_ns("1.5e6"), 1'500'000'000);
  EXPECT_EQ(us_to_ns("999999999999999"), 999'999'999'999'999'000);
  for (const char* const none : {"1e300", "123456789012345678901234567890", "", "-", ".", "x", "1.2.3", "1 "}) {
    EXPECT_EQ(us_to_ns(none), std::nullopt) << none;
  }
}

TEST(JsonNumbers, MicrosecondsSince1970KeepTheirNanoseconds) {
  EXPECT_EQ(us_to_ns("1700000000000000"), 1'700'000'000'000'000'000);
  EXPECT_EQ(us_to_ns("1700000000000001"), 1'700'000'000'000'001'000);
  EXPECT_EQ(us_to_ns("1700000000000000.125"), 1'700'000'000'000'000'125);
  EXPECT_EQ(us_to_ns("1700000000000000.9996"), 1'700'000'000'000'001'000);
  EXPECT_EQ(us_to_ns("-1700000000000000.125"), -1'700'000'000'000'000'125);
  EXPECT_EQ(us_to_ns("4611686018427386.999"), 4'611'686'018'427'386'999);
}

TEST(JsonNumbers, MicrosecondsWhoseNanosecondsNeedMoreBitsAreNone) {
  for (const char* const none : {"9223372036854775", "9223372036854775.807", "9223372036854776", "9999999999999999",
                                 "-9223372036854776", "10000000000000000", "17000000000000000.5"}) {
    EXPECT_EQ(us_to_ns(none), std::nullopt) << none;
  }
}

}  // namespace
}  // namespace gpuscope::readers
