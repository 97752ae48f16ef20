// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/peaks.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace gpuscope::memory {
namespace {

TEST(PeaksTest, TellsTheHighestReportOfItsDeviceSinceItsBeginning) {
  Peaks::process().report(0, 1000);
  PeakMemory peak(0);
  Peaks::process().report(0, 300);
  Peaks::process().report(0, 500);
  Peaks::process().report(0, 400);
  Peaks::process().report(1, 900);
  EXPECT_EQ(peak.bytes(), 500);
}

TEST(PeaksTest, KnowsNothingWithoutAReport) {
  const PeakMemory peak(0);
  EXPECT_EQ(peak.bytes(), std::nullopt);
}

TEST(PeaksTest, TakesNothingInUseForAReport) {
  const PeakMemory peak(0);
  Peaks::process().report(0, 0);
  EXPECT_EQ(peak.bytes(), 0);
}

TEST(PeaksTest, WatchesTheHostToo) {
  const PeakMemory peak(-1);
  Peaks::process().report(-1, 7);
  EXPECT_EQ(peak.bytes(), 7);
}

TEST(PeaksTest, NestsScopes) {
  const PeakMemory outer(0);
  Peaks::process().report(0, 800);
  const PeakMemory inner(0);
  Peaks::process().report(0, 200);
  EXPECT_EQ(outer.bytes(), 800);
  EXPECT_EQ(inner.bytes(), 200);
}

TEST(PeaksTest, KeepsWhatItHadWhenClosed) {
  PeakMemory peak(0);
  Peaks::process().report(0, 100);
  peak.close();
  const PeakMemory next(0);
  Peaks::process().report(0, 200);
  EXPECT_EQ(peak.bytes(), 100);
}

TEST(PeaksTest, IsWantedWhileAScopeIsOpen) {
  EXPECT_FALSE(Peaks::process().wanted());
  {
    const PeakMemory peak(0);
    EXPECT_TRUE(Peaks::process().wanted());
  }
  EXPECT_FALSE(Peaks::process().wanted());
}

TEST(PeaksTest, RefusesOneMoreThanThereAreAndRecovers) {
  std::vector<std::unique_ptr<PeakMemory>> peaks;
  for (uint32_t scope = 0; scope < Peaks::kMost; ++scope) {
    peaks.push_back(std::make_unique<PeakMemory>(0));
    EXPECT_TRUE(peaks.back()->is_open());
  }
  EXPECT_FALSE(PeakMemory(0).is_open());
  peaks.pop_back();
  EXPECT_TRUE(PeakMemory(0).is_open());
}

TEST(PeaksTest, TakesReportsOfManyThreads) {
  const PeakMemory peak(2);
  std::vector<std::thread> threads;
  for (int64_t thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([thread] {
      for (int64_t number = 0; number < 1000; ++number) {
        Peaks::process().report(2, thread * 1000 + number);
        const PeakMemory another(2);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(peak.bytes(), 4999);
}

}  // namespace
}  // namespace gpuscope::memory
