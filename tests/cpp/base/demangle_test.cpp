// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/demangle.h"

#include <gtest/gtest.h>

namespace gpuscope::base {
namespace {

TEST(Demangle, SpellsAMangledNameAsItsSource) {
  EXPECT_EQ(demangle("_Z6kernelIfEvPT_i"), "void kernel<float>(float*, int)");
}

TEST(Demangle, LeavesOtherNamesAlone) {
  for (const char* name : {"triton_poi_fused_add_0", "loop_add_fusion_3", "", "_Znonsense", "_Z"}) {
    EXPECT_EQ(demangle(name), name);
  }
}

TEST(ShortName, DropsReturnTypeTemplateArgumentsAndParameters) {
  EXPECT_EQ(short_name("void at::native::fill<4, at::Functor<float> >(int, at::Functor<float>)"), "at::native::fill");
}

TEST(ShortName, DropsTemplateArgumentsInTheMiddle) {
  EXPECT_EQ(short_name("void ns::Outer<int>::run<float>(int)"), "ns::Outer::run");
}

TEST(ShortName, KeepsAnonymousNamespaces) {
  EXPECT_EQ(short_name("(anonymous namespace)::add(int*)"), "(anonymous namespace)::add");
}

TEST(ShortName, KeepsOperators) {
  EXPECT_EQ(short_name("bool ns::Less::operator()<int>(int, int) const"), "ns::Less::operator()");
  EXPECT_EQ(short_name("ns::operator<<(ns::A, int)"), "ns::operator<<");
  EXPECT_EQ(short_name("ns::A::operator bool() const"), "ns::A::operator bool");
  EXPECT_EQ(short_name("void my_operator<3>(int)"), "my_operator");
}

TEST(ShortName, KeepsLambdas) {
  EXPECT_EQ(short_name("run(int)::{lambda(int)#1}::operator()(int) const"), "run");
  EXPECT_EQ(short_name("ns::{lambda(int)#1}::operator()(int) const"), "ns::{lambda(int)#1}::operator()");
}

TEST(ShortName, ReadsComparisonsAndArrowsInsideTemplateArguments) {
  EXPECT_EQ(short_name("void pick<(4>3), decltype(a->b)>(int)"), "pick");
}

TEST(ShortName, LeavesOtherLanguagesNamesAlone) {
  for (const char* name : {"triton_poi_fused_add_0", "loop_add_fusion.3", "ampere_sgemm_128x64_tn", "", "a b"}) {
    EXPECT_EQ(short_name(name), name);
  }
}

TEST(ShortName, EndsOnUnbalancedBrackets) {
  for (const char* name : {"f<", "f<(", "f{", "operator", "operator("}) {
    EXPECT_FALSE(short_name(name).empty());
  }
}

}  // namespace
}  // namespace gpuscope::base
