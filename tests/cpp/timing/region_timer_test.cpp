// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/region_timer.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "fakes/cuda.h"

namespace gpuscope::timing {
namespace {

using fakes::Cuda;
using State = RegionTimer::State;

class RegionTimers : public testing::Test {
 protected:
  RegionTimers() : cuda_(Cuda::reset()), timer_(cuda_.table()) { cuda_.current = Cuda::context(1); }

  Cuda& cuda_;
  RegionTimer timer_;
};

TEST_F(RegionTimers, TellTheTimeBetweenTheirEvents) {
  const uint32_t pair = timer_.begin();
  ASSERT_NE(pair, RegionTimer::kNoPair);
  ASSERT_TRUE(timer_.end(pair));
  const RegionTimer::Elapsed reading = timer_.read(pair);
  EXPECT_EQ(reading.state, State::Done);
  EXPECT_EQ(reading.duration_ns, 1'000'000);
}

TEST_F(RegionTimers, RecordNothingWithoutAContext) {
  cuda_.current = nullptr;
  EXPECT_EQ(timer_.begin(), RegionTimer::kNoPair);
}

TEST_F(RegionTimers, RecordNothingIntoACapture) {
  cuda_.capturing = 1;
  EXPECT_EQ(timer_.begin(), RegionTimer::kNoPair);
  EXPECT_EQ(cuda_.created, 0);
}

TEST_F(RegionTimers, AreVoidWhenTheirEndFallsIntoACapture) {
  const uint32_t pair = timer_.begin();
  cuda_.capturing = 1;
  EXPECT_FALSE(timer_.end(pair));
  cuda_.capturing = 0;
  EXPECT_EQ(timer_.begin(), pair);
}

TEST_F(RegionTimers, WaitForWorkThatStillRuns) {
  cuda_.done = false;
  const uint32_t pair = timer_.begin();
  timer_.end(pair);
  EXPECT_EQ(timer_.read(pair).state, State::Running);
}

TEST_F(RegionTimers, ReuseTheirEvents) {
  for (int round = 0; round < 5000; ++round) {
    const uint32_t pair = timer_.begin();
    ASSERT_NE(pair, RegionTimer::kNoPair);
    timer_.end(pair);
    timer_.read(pair);
  }
  EXPECT_EQ(cuda_.created, 2);
}

TEST_F(RegionTimers, RunOutInsteadOfGrowing) {
  std::set<uint32_t> pairs;
  for (uint32_t count = 0; count < RegionTimer::kPairs; ++count) {
    pairs.insert(timer_.begin());
  }
  EXPECT_EQ(pairs.size(), RegionTimer::kPairs);
  EXPECT_EQ(timer_.begin(), RegionTimer::kNoPair);
}

TEST_F(RegionTimers, WorkInEveryContext) {
  for (int round = 0; round < 100; ++round) {
    cuda_.current = Cuda::context(round % 2 == 0 ? 1 : 2);
    const uint32_t pair = timer_.begin();
    ASSERT_NE(pair, RegionTimer::kNoPair);
    timer_.end(pair);
    timer_.read(pair);
  }
  EXPECT_EQ(cuda_.created, 4);
}

TEST_F(RegionTimers, TakeThePairsOfContextsThatAreGone) {
  for (uintptr_t context = 1; context <= 2 * RegionTimer::kPairs; ++context) {
    cuda_.current = Cuda::context(context);
    const uint32_t pair = timer_.begin();
    ASSERT_NE(pair, RegionTimer::kNoPair) << context;
    timer_.end(pair);
    timer_.read(pair);
  }
}

TEST_F(RegionTimers, BeginAnewWithEventsThatCannotBeRecorded) {
  timer_.end(timer_.begin());
  timer_.take_all_back();
  cuda_.refuse_records = true;
  EXPECT_EQ(timer_.begin(), RegionTimer::kNoPair);
  cuda_.refuse_records = false;
  EXPECT_NE(timer_.begin(), RegionTimer::kNoPair);
  EXPECT_EQ(cuda_.created, 4);
}

TEST_F(RegionTimers, GiveThePairBackWhenNoEventCanBeMade) {
  cuda_.refuse_events = true;
  for (uint32_t count = 0; count < 2 * RegionTimer::kPairs; ++count) {
    EXPECT_EQ(timer_.begin(), RegionTimer::kNoPair);
  }
  cuda_.refuse_events = false;
  EXPECT_NE(timer_.begin(), RegionTimer::kNoPair);
}

TEST_F(RegionTimers, OfAnEarlierSessionAreTakenBack) {
  for (uint32_t count = 0; count < RegionTimer::kPairs; ++count) {
    timer_.begin();
  }
  timer_.take_all_back();
  EXPECT_NE(timer_.begin(), RegionTimer::kNoPair);
}

TEST_F(RegionTimers, GiveEachThreadItsOwnPair) {
  constexpr int kThreads = 4;
  std::vector<std::vector<uint32_t>> taken(kThreads);
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      for (int count = 0; count < 100; ++count) {
        taken[static_cast<std::size_t>(number)].push_back(timer_.begin());
      }
    });
  }
  std::set<uint32_t> all;
  for (int number = 0; number < kThreads; ++number) {
    threads[static_cast<std::size_t>(number)].join();
    all.insert(taken[static_cast<std::size_t>(number)].begin(), taken[static_cast<std::size_t>(number)].end());
  }
  EXPECT_EQ(all.size(), 100U * kThreads);
}

}  // namespace
}  // namespace gpuscope::timing
