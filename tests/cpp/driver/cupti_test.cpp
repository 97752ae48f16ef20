// SPDX-License-Identifier: Apache-2.0

#include "fakes/cupti.h"

#include <gtest/gtest.h>

#include "fakes/cuda.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::driver {
namespace {

Cupti complete() { return fakes::Cupti::instance().table(); }

TEST(CuptiTable, ACompleteOneCanTrace) { EXPECT_EQ(cupti_shortcoming(complete()), ""); }

TEST(CuptiTable, AnEmptyOneSaysThatTheLibraryIsMissing) {
  EXPECT_EQ(cupti_shortcoming(Cupti{}), "libcupti was not found");
}

TEST(CuptiTable, OneWithoutAVersionSaysSo) {
  Cupti table = complete();
  table.version = 0;
  EXPECT_NE(cupti_shortcoming(table).find("did not tell its version"), std::string::npos);
}

TEST(CuptiTable, AnOldOneNamesItsVersionAndTheOldestAccepted) {
  Cupti table = complete();
  table.version = 18;
  EXPECT_NE(cupti_shortcoming(table).find("is version 18, older than CUDA 12.0's (19)"), std::string::npos);
  table.version = 19;
  EXPECT_EQ(cupti_shortcoming(table), "");
}

TEST(CuptiTable, EachFunctionThatTracingNeedsIsAskedFor) {
  const auto lacks = [](auto&& drop) {
    Cupti table = complete();
    drop(table);
    return cupti_shortcoming(table).find("lacks a function") != std::string::npos;
  };
  EXPECT_TRUE(lacks([](Cupti& table) { table.subscribe = nullptr; }));
  EXPECT_TRUE(lacks([](Cupti& table) { table.unsubscribe = nullptr; }));
  EXPECT_TRUE(lacks([](Cupti& table) { table.enable_callback = nullptr; }));
  EXPECT_TRUE(lacks([](Cupti& table) { table.register_callbacks = nullptr; }));
  EXPECT_TRUE(lacks([](Cupti& table) { table.activity_enable = nullptr; }));
  EXPECT_TRUE(lacks([](Cupti& table) { table.activity_disable = nullptr; }));
  EXPECT_TRUE(lacks([](Cupti& table) { table.flush_all = nullptr; }));
  EXPECT_TRUE(lacks([](Cupti& table) { table.get_next_record = nullptr; }));
}

TEST(CuptiTable, NamesAnErrorEvenWithoutTheFunctionForIt) {
  EXPECT_EQ(complete().error_name(1), "CUPTI_ERROR_FAKE");
  EXPECT_EQ(Cupti{}.error_name(1), "CUptiResult");
}

TEST(CudaTable, NamesAnErrorEvenWithoutTheFunctionForIt) {
  EXPECT_EQ(fakes::Cuda::instance().table().error_name(1), "CUDA_ERROR_FAKE");
  EXPECT_EQ(Cuda{}.error_name(1), "CUresult");
}

TEST(Library, TakesTheCopyThatIsAlreadyLoaded) {
  const Library library = Library::open({"libc.so.6"}, {"/nowhere/libc.so.6"});
  ASSERT_TRUE(library);
  EXPECT_NE(library.path().find("libc.so.6"), std::string::npos);
  EXPECT_NE(library.symbol("getpid"), nullptr);
  EXPECT_EQ(library.symbol("no_such_function"), nullptr);
}

TEST(Library, TellsWhyNoneOpened) {
  const Library library = Library::open({"libnone.so.1"}, {"/nowhere/libnone.so.1"});
  EXPECT_FALSE(library);
  EXPECT_NE(library.why().find("/nowhere/libnone.so.1"), std::string::npos);
  EXPECT_EQ(library.symbol("getpid"), nullptr);
}

TEST(Library, FindsMappedFilesByTheStartOfTheirName) {
  EXPECT_EQ(mapped_files("libc.so").size(), 1U);
  EXPECT_TRUE(mapped_files("libnone.so").empty());
}

}  // namespace
}  // namespace gpuscope::driver
