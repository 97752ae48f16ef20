// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/utf8.h"

#include <gtest/gtest.h>

namespace gpuscope::base {
namespace {

TEST(Utf8, KeepsValidText) {
  for (const char* text : {"", "plain", "gr\xC3\xBC\xC3\x9F", "\xE2\x82\xAC", "\xF0\x9F\x9A\x80 go", "\xED\x9F\xBF",
                           "h\u00e9 \u4f60 \U0001F600"}) {
    EXPECT_EQ(to_utf8(text), text);
  }
}

TEST(Utf8, ReplacesALetterThatWasCut) {
  EXPECT_EQ(to_utf8("a\xC3"), "a\xEF\xBF\xBD");
  EXPECT_EQ(to_utf8("\xC3"), "\xEF\xBF\xBD");
}

TEST(Utf8, ReplacesEachByteThatIsNotText) {
  EXPECT_EQ(to_utf8("\xFF"
                    "b\x80"),
            "\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  EXPECT_EQ(to_utf8("a\xFF"), "a\xEF\xBF\xBD");
}

TEST(Utf8, ReplacesOverlongFormsAndSurrogates) {
  for (const char* text : {"\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"}) {
    EXPECT_TRUE(to_utf8(text).starts_with("\xEF\xBF\xBD")) << text;
  }
  EXPECT_EQ(to_utf8("\xC0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(to_utf8("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(to_utf8("\xF4\x90\x80\x80").size(), 12U);  // each of its four bytes
}

}  // namespace
}  // namespace gpuscope::base
