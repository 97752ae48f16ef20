// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/sample_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace gpuscope::base {
namespace {

Sample sample(uint64_t number) { return {number, number + 1, 0, 1, 1, 1, 1, false}; }

std::vector<uint64_t> numbers(SampleLog& log) {
  std::vector<uint64_t> found;
  log.read([&](const Sample& read) { found.push_back(read.begin_ticks); });
  return found;
}

TEST(SampleLog, HandsOverInOrderAndOnce) {
  SampleLog log;
  log.begin();
  for (uint64_t number = 0; number < 3; ++number) {
    log.append(sample(number));
  }
  EXPECT_EQ(numbers(log), (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_TRUE(numbers(log).empty());
}

TEST(SampleLog, BeforeItBeginsThereIsNothingToRead) {
  SampleLog log;
  EXPECT_TRUE(numbers(log).empty());
}

TEST(SampleLog, AFullLogDropsAndCounts) {
  SampleLog log;
  log.begin();
  int half_full = 0;
  constexpr uint64_t kMany = 1U << 16;
  for (uint64_t number = 0; number < kMany; ++number) {
    half_full += log.append(sample(number)) ? 1 : 0;
  }
  EXPECT_EQ(half_full, 1);
  const std::vector<uint64_t> kept = numbers(log);
  EXPECT_EQ(kept.front(), 0U);
  EXPECT_EQ(log.take_dropped(), kMany - kept.size());
  EXPECT_EQ(log.take_dropped(), 0U);
  log.append(sample(7));
  EXPECT_EQ(numbers(log), std::vector<uint64_t>{7});
}

TEST(SampleLog, IsReadWhileItIsWritten) {
  SampleLog log;
  log.begin();
  constexpr uint64_t kMany = 200'000;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t number = 0; number < kMany; ++number) {
      log.append(sample(number));
    }
    done = true;
  });
  std::vector<uint64_t> found;
  while (!done) {
    log.read([&](const Sample& read) { found.push_back(read.begin_ticks); });
  }
  writer.join();
  log.read([&](const Sample& read) { found.push_back(read.begin_ticks); });
  EXPECT_TRUE(std::ranges::is_sorted(found));
  EXPECT_EQ(found.size() + log.take_dropped(), kMany);
}

}  // namespace
}  // namespace gpuscope::base
