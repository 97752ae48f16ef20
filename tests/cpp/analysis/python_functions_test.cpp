// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "fakes/stores.h"
#include "gpuscope/analysis/instances.h"

namespace gpuscope::analysis {
namespace {

using store::kNone;
using ::testing::ElementsAre;

class Nesting : public ::testing::Test {
 protected:
  void function(std::string_view name, int64_t start_ns, int64_t end_ns, uint16_t thread = 0) {
    make_.store().python_function.append({start_ns, end_ns - start_ns, make_.id(name), kNone, kNone, thread, 0, 0});
  }
  FunctionNesting nest() { return nest_functions(make_.store()); }

  fakes::StoreBuilder make_;
  uint32_t path_ = make_.path("region");
};

TEST_F(Nesting, OfAnEmptyRecordingIsEmpty) { EXPECT_THAT(nest().self_cpu_ns, ElementsAre()); }

TEST_F(Nesting, SelfTimeIsWithoutWhatLiesDirectlyInside) {
  function("f", 0, 100);
  function("g", 10, 40);
  make_.region(path_, 50, 60);
  make_.api(make_.call("cuLaunchKernel"), 70, 75, 1);
  EXPECT_THAT(nest().self_cpu_ns, ElementsAre(55, 30));
}

TEST_F(Nesting, WhatARegionHoldsIsNoPartOfTheFunctionAround) {
  function("f", 0, 100);
  make_.region(path_, 10, 90);
  function("g", 20, 30);
  const FunctionNesting found = nest();
  EXPECT_THAT(found.self_cpu_ns, ElementsAre(20, 10));
  EXPECT_THAT(found.region_caller, ElementsAre(0));
  EXPECT_THAT(found.caller, ElementsAre(kNone, kNone));
  EXPECT_THAT(found.region, ElementsAre(kNone, 0));
}

TEST_F(Nesting, ARegionThatOutlivesTheFunctionThatBeganItLiesOutside) {
  function("f", 0, 100);
  function("__enter__", 5, 20);
  make_.region(path_, 10, 90);
  const FunctionNesting found = nest();
  EXPECT_THAT(found.region_caller, ElementsAre(0));
  EXPECT_THAT(found.self_cpu_ns, ElementsAre(15, 5));
  EXPECT_THAT(found.region_self_cpu_ns, ElementsAre(80));
}

TEST_F(Nesting, AFunctionThatOutlivesTheRegionThatItEndsLiesOutside) {
  function("f", 0, 100);
  make_.region(path_, 10, 90);
  function("__exit__", 70, 95);
  const FunctionNesting found = nest();
  EXPECT_THAT(found.self_cpu_ns, ElementsAre(15, 25));
  EXPECT_THAT(found.region_self_cpu_ns, ElementsAre(60));
}

TEST_F(Nesting, TimesOfTheirOwnAddUpToTheWhole) {
  function("main", 0, 100);
  function("start", 5, 40);
  function("enter", 10, 20);
  make_.region(path_, 15, 90);
  function("work", 25, 35);
  make_.region(path_, 45, 60);
  make_.api(make_.call("cuLaunchKernel"), 50, 55, 1);
  function("end", 80, 95);
  const FunctionNesting found = nest();
  EXPECT_THAT(found.self_cpu_ns, ElementsAre(10, 5, 5, 10, 15));
  EXPECT_THAT(found.region_self_cpu_ns, ElementsAre(40, 10));  // with the call's 5 they are the 100
}

TEST_F(Nesting, RecursionCountsOnceInTotals) {
  function("f", 0, 100);
  function("f", 10, 90);
  function("f", 200, 210);
  EXPECT_THAT(nest().total_cpu_ns, ElementsAre(100, 0, 10));
}

TEST_F(Nesting, ThreadsHoldNothingOfEachOther) {
  function("f", 0, 100);
  function("g", 10, 20, 1);
  const FunctionNesting found = nest();
  EXPECT_THAT(found.caller, ElementsAre(kNone, kNone));
  EXPECT_THAT(found.self_cpu_ns, ElementsAre(100, 10));
}

}  // namespace
}  // namespace gpuscope::analysis
