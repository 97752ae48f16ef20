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
  EXPECT_THAT(found.self_cpu_ns, ElementsAre(5, 15));
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
