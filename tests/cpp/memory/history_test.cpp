// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/history.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/file.h"
#include "gpuscope/base/hooks.h"

namespace gpuscope::memory {
namespace {

// All columns follow from the address, so that a mixture of two events is found.
Report report(uint64_t address) {
  const auto number = static_cast<int64_t>(address);
  return {
      address, -number, 2 * number, 3 * number, static_cast<int32_t>(address % 8), static_cast<Source>(address % 4)};
}

std::size_t mixtures(const HistoryColumns& columns) {
  std::size_t found = 0;
  for (std::size_t row = 0; row < columns.address.size(); ++row) {
    const Report whole = report(columns.address[row]);
    const bool good = columns.bytes[row] == whole.bytes && columns.allocated[row] == whole.allocated &&
                      columns.reserved[row] == whole.reserved && columns.device[row] == whole.device &&
                      columns.source[row] == static_cast<uint8_t>(whole.source);
    found += good ? 0 : 1;
  }
  return found;
}

TEST(HistoryTest, KeepsEventsInTheirOrder) {
  History history;
  history.start(10, false);
  for (uint64_t address = 1; address <= 3; ++address) {
    history.record(report(address));
  }
  const HistoryColumns columns = history.read();
  EXPECT_EQ(columns.address, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(mixtures(columns), 0U);
  EXPECT_EQ(columns.lost, 0U);
}

TEST(HistoryTest, LeavesOutWhatWasRecordedBefore) {
  History history;
  history.start(3, false);
  for (uint64_t address = 1; address <= 5; ++address) {
    history.record(report(address));
  }
  EXPECT_EQ(history.read(4).address, std::vector<uint64_t>{5});
  EXPECT_EQ(history.read(1).address, (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_TRUE(history.read(9).address.empty());
}

TEST(HistoryTest, FindsTheStackThatTookMostOfWhatLives) {
  static std::atomic<uint32_t> stack{0};
  base::StackSource before = base::stack_source.exchange([](const void*) noexcept { return stack.load(); });
  History history;
  history.start(20, true);
  const auto take = [&](uint32_t by, uint64_t address, int64_t bytes, int32_t device = kHost) {
    stack = by;
    history.record({address, bytes, 0, 0, device, Source::Numpy});
  };
  take(1, 0x10, 900);
  const uint64_t since = history.recorded();
  take(2, 0x20, 800);
  take(3, 0x30, 300);
  take(3, 0x40, 300);
  take(4, 0x50, 5000, 0);
  take(5, 0x20, -800);
  history.record({0x60, 7000, 0, 0, kHost, Source::Driver});
  const Largest largest = history.largest(since, kHost);
  base::stack_source = before;
  EXPECT_EQ(largest.stack, 3U);
  EXPECT_EQ(largest.bytes, 600);
  EXPECT_EQ(history.largest(history.recorded(), kHost).bytes, 0);
}

TEST(HistoryTest, KnowsWhatItTakesItself) {
  History history;
  EXPECT_EQ(history.resident_bytes(), 0U);
  history.start(4, false);
  history.record(report(1));
  EXPECT_EQ(history.resident_bytes(), 64U);
  for (uint64_t address = 2; address <= 9; ++address) {
    history.record(report(address));
  }
  EXPECT_EQ(history.resident_bytes(), 4 * 64U);
}

TEST(HistoryTest, SaysWhenAndOnWhichThread) {
  History history;
  history.start(10, false);
  const int64_t before = base::Clock::process().now_ns();
  history.record(report(1));
  const HistoryColumns columns = history.read();
  EXPECT_GE(columns.time_ns[0], before);
  EXPECT_LE(columns.time_ns[0], base::Clock::process().now_ns());
  EXPECT_EQ(columns.thread[0], base::thread_id());
}

TEST(HistoryTest, KeepsTheLastOnesWhenFull) {
  History history;
  history.start(5, false);  // less than the ring behind it, which is a power of two
  for (uint64_t address = 1; address <= 100; ++address) {
    history.record(report(address));
  }
  const HistoryColumns columns = history.read();
  EXPECT_EQ(columns.address, (std::vector<uint64_t>{96, 97, 98, 99, 100}));
  EXPECT_EQ(columns.lost, 95U);
  EXPECT_EQ(history.recorded(), 100U);
  EXPECT_EQ(history.overwritten(), 95U);
}

TEST(HistoryTest, RecordsNothingBeforeItsStart) {
  History history;
  history.record(report(1));
  EXPECT_FALSE(history.recording());
  EXPECT_TRUE(history.read().address.empty());
}

TEST(HistoryTest, StaysReadableAfterItsStop) {
  History history;
  history.start(5, false);
  history.record(report(1));
  history.stop();
  history.record(report(2));
  EXPECT_EQ(history.read().address, std::vector<uint64_t>{1});
}

// Bytes of addresses that this process uses, by /proc/self/statm.
std::size_t address_space() {
  const std::string pages = base::read_file("/proc/self/statm");
  return std::stoul(pages) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(HistoryTest, TakesNothingMoreWhenItsCapacityGoesBackAndForth) {
  History history;
  const auto restart = [&](int times) {
    for (int round = 0; round < times; ++round) {
      for (const uint64_t capacity : {100'000, 10, 1'000, 100'000}) {
        history.start(capacity, false);
        history.record(report(1));
      }
    }
  };
  restart(1);
  const std::size_t before = address_space();
  restart(100);
  EXPECT_LT(address_space() - before, std::size_t{1} << 20);
}

TEST(HistoryTest, KeepsTheLastOnesOfASmallerCapacityToo) {
  History history;
  history.start(100, false);
  for (uint64_t address = 1; address <= 300; ++address) {
    history.record(report(address));
  }
  history.start(3, false);
  for (uint64_t address = 301; address <= 310; ++address) {
    history.record(report(address));
  }
  EXPECT_EQ(history.read().address, (std::vector<uint64_t>{308, 309, 310}));
  EXPECT_EQ(history.overwritten(), 7U);
}

class HistoryRestartTest : public testing::TestWithParam<uint64_t> {};

TEST_P(HistoryRestartTest, BeginsAnewWithAnyCapacity) {
  History history;
  history.start(4, false);
  for (uint64_t address = 1; address <= 6; ++address) {
    history.record(report(address));
  }
  history.start(GetParam(), false);
  EXPECT_TRUE(history.read().address.empty());
  EXPECT_EQ(history.recorded(), 0U);
  history.record(report(7));
  EXPECT_EQ(history.read().address, std::vector<uint64_t>{7});
}

INSTANTIATE_TEST_SUITE_P(Capacities, HistoryRestartTest, testing::Values(1, 3, 4, 5, 100'000));

TEST(HistoryTest, AsksForStacksOnlyWhenTheyAreWanted) {
  base::stack_source = [](const void*) noexcept -> uint32_t { return 17; };
  History history;
  history.start(4, false);
  history.record(report(1));
  EXPECT_EQ(history.read().stack, std::vector<uint32_t>{0});
  history.start(4, true);
  history.record(report(1));
  EXPECT_EQ(history.read().stack, std::vector<uint32_t>{17});
  base::stack_source = nullptr;
}

TEST(HistoryTest, SaysInWhatRegion) {
  constexpr uint32_t kLargest = (1U << 20) + 1;  // as many as base::Names has
  base::region_source = []() noexcept { return kLargest; };
  History history;
  history.start(4, false);
  history.record(report(3));
  base::region_source = nullptr;
  history.record(report(3));
  const HistoryColumns columns = history.read();
  EXPECT_EQ(columns.region, (std::vector<uint32_t>{kLargest, 0}));
  EXPECT_EQ(mixtures(columns), 0U);
}

TEST(HistoryTest, WantsOpenRegionsWhileItRecords) {
  base::OpenRegions::end(base::OpenRegions::kLedger);
  History history;
  history.start(4, false);
  EXPECT_TRUE(base::OpenRegions::wanted());
  history.stop();
  EXPECT_FALSE(base::OpenRegions::wanted());
}

TEST(HistoryTest, KeepsWhatEveryThreadReports) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 2000;
  History history;
  history.start(kThreads * kEach, false);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&history, thread] {
      for (uint64_t number = 0; number < kEach; ++number) {
        history.record(report(thread * kEach + number + 1));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const HistoryColumns columns = history.read();
  EXPECT_EQ(columns.address.size(), kThreads * kEach);
  EXPECT_EQ(columns.lost, 0U);
  std::vector<uint64_t> last(kThreads, 0);
  for (const uint64_t address : columns.address) {
    const uint64_t thread = (address - 1) / kEach;
    EXPECT_LT(last[thread], address);
    last[thread] = address;
  }
}

TEST(HistoryTest, ShowsNoMixtureOfTwoEventsWhileItIsOverwritten) {
  History history;
  history.start(8, false);  // so small that writers run into each other
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    writers.emplace_back([&, thread] {
      for (uint64_t number = 1; !done.load(std::memory_order_relaxed); ++number) {
        history.record(report(number * 4 + thread));
      }
    });
  }
  std::size_t seen = 0;
  std::size_t mixed = 0;
  for (int round = 0; round < 2000 || seen == 0; ++round) {
    const HistoryColumns columns = history.read();
    seen += columns.address.size();
    mixed += mixtures(columns);
  }
  done = true;
  for (std::thread& writer : writers) {
    writer.join();
  }
  EXPECT_EQ(mixed, 0U);
}

TEST(HistoryTest, MayBeginAnewWhileOthersReport) {
  History history;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t number = 1; !done.load(std::memory_order_relaxed); ++number) {
      history.record(report(number));
    }
  });
  std::size_t mixed = 0;
  for (uint64_t round = 0; round < 300; ++round) {
    history.start(1 + round % 3 * 1000, false);
    mixed += mixtures(history.read());
  }
  done = true;
  writer.join();
  EXPECT_EQ(mixed, 0U);
}

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
  for (uint32_t scope = 0; scope < Peaks::kMax; ++scope) {
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
