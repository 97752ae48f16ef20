// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "gpuscope/base/hooks.h"

namespace gpuscope::base {
namespace {

constexpr uint32_t kStep = 6;
constexpr uint32_t kForward = 7;
constexpr uint32_t kLoss = 8;

// As they are told.
constexpr uint32_t told(uint32_t name) { return name + 1; }

class OpenRegionsTest : public testing::Test {
 protected:
  OpenRegionsTest() { OpenRegions::begin(OpenRegions::kLedger); }
  ~OpenRegionsTest() override {
    OpenRegions::end(OpenRegions::kLedger);
    OpenRegions::end(OpenRegions::kHistory);
  }
  // Two tasks of one thread.
  const int one_ = 1;
  const int other_ = 2;
};

TEST_F(OpenRegionsTest, TellTheInnermost) {
  EXPECT_EQ(OpenRegions::of_task(&one_), 0U);
  OpenRegions::enter(kStep, &one_);
  OpenRegions::enter(kForward, &one_);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kForward));
  OpenRegions::exit(kForward, &one_);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kStep));
  OpenRegions::exit(kStep, &one_);
  EXPECT_EQ(OpenRegions::of_task(&one_), 0U);
}

TEST_F(OpenRegionsTest, MayCloseInAnyOrder) {
  OpenRegions::enter(kStep, &one_);
  OpenRegions::enter(kForward, &one_);
  OpenRegions::exit(kStep, &one_);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kForward));
}

TEST_F(OpenRegionsTest, OfOneTaskAreNotThoseOfAnother) {
  OpenRegions::enter(kForward, &one_);
  OpenRegions::enter(kLoss, &other_);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kForward));
  EXPECT_EQ(OpenRegions::of_task(&other_), told(kLoss));
}

TEST_F(OpenRegionsTest, OfNoTaskAreThoseOfTheTasksInside) {
  OpenRegions::enter(kStep, nullptr);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kStep));
}

TEST_F(OpenRegionsTest, OfOneNameCloseInTheTaskThatClosesOne) {
  OpenRegions::enter(kStep, &one_);
  OpenRegions::enter(kLoss, &one_);
  OpenRegions::enter(kLoss, &other_);
  OpenRegions::exit(kLoss, &one_);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kStep));
  EXPECT_EQ(OpenRegions::of_task(&other_), told(kLoss));
}

TEST_F(OpenRegionsTest, MayBeClosedByAnotherTask) {
  OpenRegions::enter(kStep, &one_);
  OpenRegions::exit(kStep, &other_);
  EXPECT_EQ(OpenRegions::of_task(&one_), 0U);
}

TEST_F(OpenRegionsTest, ClosingWhatWasOpenBeforeChangesNothing) {
  OpenRegions::enter(kForward, &one_);
  OpenRegions::exit(kStep, &one_);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kForward));
}

TEST_F(OpenRegionsTest, AreOfTheirThread) {
  OpenRegions::enter(kStep, &one_);
  std::thread([&] { EXPECT_EQ(OpenRegions::of_task(&one_), 0U); }).join();
}

TEST_F(OpenRegionsTest, OfTheOnlyThreadAreThoseOfTheProgram) {
  OpenRegions::enter(kStep, &one_);
  OpenRegions::enter(kLoss, &one_);
  std::thread([] { EXPECT_EQ(OpenRegions::of_program(), told(kLoss)); }).join();
  OpenRegions::exit(kLoss, &one_);
  EXPECT_EQ(OpenRegions::of_program(), told(kStep));
  OpenRegions::exit(kStep, &one_);
  EXPECT_EQ(OpenRegions::of_program(), 0U);
}

TEST_F(OpenRegionsTest, OfSeveralThreadsAreNobodyElses) {
  OpenRegions::enter(kStep, &one_);
  std::thread([&] {
    OpenRegions::enter(kLoss, &other_);
    EXPECT_EQ(OpenRegions::of_program(), 0U);
    OpenRegions::exit(kLoss, &other_);
  }).join();
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kStep));
}

TEST_F(OpenRegionsTest, DeeperThanAreKeptCountAsTheLastOne) {
  for (uint32_t name = 0; name < OpenRegions::kMax + 5; ++name) {
    OpenRegions::enter(name, &one_);
  }
  EXPECT_EQ(OpenRegions::of_task(&one_), told(OpenRegions::kMax - 1));
  for (uint32_t name = OpenRegions::kMax + 5; name-- != 1;) {
    OpenRegions::exit(name, &one_);
  }
  EXPECT_EQ(OpenRegions::of_task(&one_), told(0));
}

TEST_F(OpenRegionsTest, OfManyTasksThatEndInAnyOrderNoneIsLeft) {
  std::array<int, 3 * OpenRegions::kMax> tasks{};
  for (const int& task : tasks) {
    OpenRegions::enter(kStep, &task);
  }
  for (const int& task : tasks) {
    OpenRegions::exit(kStep, &task);
  }
  OpenRegions::enter(kLoss, &one_);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kLoss));
  OpenRegions::exit(kLoss, &one_);
  EXPECT_EQ(OpenRegions::of_program(), 0U);
}

TEST_F(OpenRegionsTest, LeftOpenAreForgottenWithTheLastUser) {
  OpenRegions::enter(kStep, &one_);
  OpenRegions::begin(OpenRegions::kHistory);
  OpenRegions::end(OpenRegions::kLedger);
  EXPECT_EQ(OpenRegions::of_task(&one_), told(kStep));
  OpenRegions::end(OpenRegions::kHistory);
  EXPECT_FALSE(OpenRegions::wanted());
  OpenRegions::begin(OpenRegions::kHistory);
  EXPECT_EQ(OpenRegions::of_task(&one_), 0U);
  EXPECT_EQ(OpenRegions::of_program(), 0U);
}

}  // namespace
}  // namespace gpuscope::base
