// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "gpuscope/base/strings.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/exporters/output.h"
#include "gpuscope/exporters/perfetto_format.h"
#include "gpuscope/store/call_names.h"
#include "gpuscope/store/values.h"

namespace gpuscope::exporters {
namespace {

TEST(JsonText, EscapesWhatJsonDoesNotAllow) {
  EXPECT_EQ(quoted("a\"b\\c\n\x01\x7F"), "\"a\\\"b\\\\c\\u000a\\u0001\\u007f\"");
  EXPECT_EQ(quoted(std::string_view("\0", 1)), "\"\\u0000\"");
}

TEST(JsonText, KnowsValues) {
  for (const char* good :
       {"[]", "[[2, 3], []]", "[[[0], [-1]], [12]]", "[ 1 , 2 ]", "1", "[\"a\"]", "[1.5]", "[1e5]", " -0.5E+7 ", "{}",
        "{ \"a\" : [true, false, null], \"b\" : {} }", R"("a\"b\\\u00e9 \n")", "\"\xC3\xA9\""}) {
    EXPECT_TRUE(is_json(good)) << good;
  }
  for (const char* bad :
       {"",      "[",       "]",          "[1",  "[1,]",   "[,1]",    "[1 2]",       "[01]",     "[-]",
        "[1]]",  "[] []",   "NaN",        "1.",  ".5",     "1e",      "\"a",         "\"a\"b",   "'a'",
        "{1:2}", "{\"a\"}", "{\"a\":1,}", "nul", "\"\n\"", R"("\x")", R"("\u12g4")", R"("\u12")"}) {
    EXPECT_FALSE(is_json(bad)) << bad;
  }
  EXPECT_FALSE(is_json(std::string(1000, '[') + std::string(1000, ']')));
}

TEST(RuntimeNames, FindTheFunctionThatMakesADriverCall) {
  EXPECT_EQ(store::runtime_name("cuLaunchKernelEx"), "cudaLaunchKernelExC");
  EXPECT_EQ(store::runtime_name("cuMemcpyDtoHAsync"), "cudaMemcpyAsync");
  EXPECT_EQ(store::runtime_name("cuMemsetD32"), "cudaMemset");
  EXPECT_EQ(store::runtime_name("cuMemsetD2D8Async"), "cudaMemset2DAsync");
  EXPECT_EQ(store::runtime_name("cuMemCreate"), "");
}

TEST(Labels, DemanglesNamesOfCppOnly) {
  EXPECT_EQ(base::demangle("_Z4gemmPKfS0_Pfi"), "gemm(float const*, float const*, float*, int)");
  EXPECT_EQ(base::demangle("triton_poi_fused_add_0"), "triton_poi_fused_add_0");
  EXPECT_EQ(base::demangle("_Znot_a_name"), "_Znot_a_name");
}

TEST(Labels, NamesCopiesAsTorchDoes) {
  EXPECT_EQ(store::copy_name(store::CopyKind{1}, store::MemoryKind{1}, store::MemoryKind{3}),
            "Memcpy HtoD (Pageable -> Device)");
  EXPECT_EQ(store::copy_name(store::CopyKind{200}, store::MemoryKind{200}, store::MemoryKind{200}),
            "Memcpy Unknown (Unknown -> Unknown)");
}

std::string written(const std::function<void(Output&)>& put) {
  std::string bytes;
  Output out([&](std::string_view chunk) { bytes += chunk; });
  put(out);
  out.flush();
  return bytes;
}

TEST(Output, WritesMicrosecondsWithThreeDecimals) {
  EXPECT_EQ(written([](Output& out) { out.put_micros(1'234'005); }), "1234.005");
  EXPECT_EQ(written([](Output& out) { out.put_micros(7); }), "0.007");
}

TEST(Output, CutsIntoChunksOfAboutAMegabyte) {
  std::size_t chunks = 0;
  Output out([&](std::string_view chunk) {
    ++chunks;
    EXPECT_GE(chunk.size(), std::size_t{1} << 20);
  });
  for (int at = 0; at < 5000; ++at) {
    out.put(std::string(1000, 'x'));
    out.cut();
  }
  EXPECT_EQ(chunks, 4U);
}

TEST(ProtoWriter, WritesTheExamplesOfItsDefinition) {
  EXPECT_EQ(written([](Output& out) { ProtoWriter(out).number(1, 150); }), "\x08\x96\x01");
  EXPECT_EQ(written([](Output& out) { ProtoWriter(out).text(2, "testing"); }), "\x12\x07testing");
  EXPECT_EQ(written([](Output& out) { ProtoWriter(out).number(1, UINT64_MAX); }).size(), 11U);
}

TEST(ProtoWriter, WidensTheLengthOfLongMessages) {
  const auto nest = [](std::size_t length) {
    return written([length](Output& out) {
      ProtoWriter proto(out);
      const std::size_t outer = proto.begin(3);
      proto.text(1, std::string(length, 'a'));
      proto.end(outer);
      proto.number(4, 1);
    });
  };
  EXPECT_EQ(nest(100), "\x1A\x66\x0A\x64" + std::string(100, 'a') + "\x20\x01");
  EXPECT_EQ(nest(300), "\x1A\xAF\x02\x0A\xAC\x02" + std::string(300, 'a') + "\x20\x01");
}

TEST(QuotedList, WritesPythonsListsOfTextsAsJson) {
  EXPECT_EQ(quoted_list("['float', '']"), R"(["float",""])");
  EXPECT_EQ(quoted_list("[]"), "[]");
}

TEST(QuotedList, KeepsOtherTextAsOneString) {
  for (const char* text : {"", "[", "float", "['a'", "['a' 'b']", "['a', ]", "['a'], 'b']", "[1]"}) {
    EXPECT_EQ(quoted_list(text).front(), '"') << text;
  }
}

}  // namespace
}  // namespace gpuscope::exporters
