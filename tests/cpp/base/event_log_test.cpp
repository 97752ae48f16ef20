// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gpuscope/base/event_logs.h"

namespace gpuscope::base {
namespace {

constexpr uint32_t kChunk = EventChunk::kCapacity;
constexpr uint64_t kMax = static_cast<uint64_t>(EventLog::kMaxChunks) * kChunk;

void append_numbers(EventLog& log, uint64_t from, uint64_t until) {
  for (uint64_t number = from; number < until; ++number) {
    log.append(number, static_cast<uint32_t>(number), Op::Mark, static_cast<uint32_t>(number));
  }
}

std::vector<uint64_t> read_numbers(EventLog& log) {
  std::vector<uint64_t> numbers;
  log.read(log.end(), [&](const Event& event) { numbers.push_back(event.word); });
  return numbers;
}

bool is_range(const std::vector<uint64_t>& numbers, uint64_t from, uint64_t until) {
  bool good = numbers.size() == until - from;
  for (std::size_t at = 0; good && at < numbers.size(); ++at) {
    good = numbers[at] == from + at;
  }
  return good;
}

std::size_t count_logs() {
  std::size_t count = 0;
  EventLogs::process().each([&](EventLog&) { ++count; });
  return count;
}

void drain_all() {
  EventLogs::process().each([](EventLog& log) {
    log.skip_all();
    log.take_dropped();
    EventLogs::release_if_done(log);
  });
}

TEST(EventLog, GivesBackWhatWasAppended) {
  EventLog log;
  log.append(0x123456789ABCDEF0, 0xFEDCBA98, Op::GpuTime, 0xABCDEF);
  log.read(log.end(), [](const Event& event) {
    EXPECT_EQ(event.word, 0x123456789ABCDEF0U);
    EXPECT_EQ(event.id, 0xFEDCBA98U);
    EXPECT_EQ(static_cast<Op>(event.op), Op::GpuTime);
    EXPECT_EQ(event.detail, 0xABCDEFU);
  });
}

TEST(EventLog, KeepsOrderAcrossChunks) {
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{kChunk - 1}, uint64_t{kChunk}, uint64_t{kChunk + 1},
                               uint64_t{kChunk} * 2, uint64_t{kChunk} * 3 + 5}) {
    EventLog log;
    append_numbers(log, 0, count);
    EXPECT_TRUE(is_range(read_numbers(log), 0, count)) << count;
    EXPECT_TRUE(read_numbers(log).empty());
  }
}

TEST(EventLog, ReadsOnlyUpToTheGivenPosition) {
  EventLog log;
  append_numbers(log, 0, kChunk);
  const EventLog::Position middle = log.end();
  append_numbers(log, kChunk, kChunk + 10);
  std::vector<uint64_t> numbers;
  log.read(middle, [&](const Event& event) { numbers.push_back(event.word); });
  EXPECT_TRUE(is_range(numbers, 0, kChunk));
  EXPECT_TRUE(is_range(read_numbers(log), kChunk, kChunk + 10));
}

TEST(EventLog, CountsWhatFindsNoRoom) {
  EventLog log;
  append_numbers(log, 0, kMax + 100);
  EXPECT_EQ(log.take_dropped(), 100U);
  EXPECT_EQ(log.take_dropped(), 0U);
  EXPECT_TRUE(is_range(read_numbers(log), 0, kMax));
}

TEST(EventLog, CountsARegionThatFindsNoRoomOnce) {
  EventLog log;
  append_numbers(log, 0, kMax);
  for (const Op op : {Op::Enter, Op::CallEnter, Op::CallExit, Op::Exit, Op::Argument, Op::Strand, Op::Mark}) {
    log.append(0, 0, op);
  }
  EXPECT_EQ(log.take_dropped(), 3U) << "a region, a call in it and a mark";
}

TEST(EventLog, CountsARegionThatLosesItsEnd) {
  EventLog log;
  append_numbers(log, 0, kMax - 1);
  log.append(0, 0, Op::Enter);
  log.append(0, 0, Op::Enter);
  log.append(0, 0, Op::Exit);
  log.append(0, 0, Op::Exit);
  EXPECT_EQ(log.take_dropped(), 2U);
}

TEST(EventLog, GoesOnAfterItWasFull) {
  EventLog log;
  append_numbers(log, 0, kMax + 1);
  read_numbers(log);
  append_numbers(log, 7, 9);
  EXPECT_TRUE(is_range(read_numbers(log), 7, 9));
}

// What the reader gets of a log that was full when `drop` logged, and to which a mark is appended once it was read.
template <class F>
std::vector<std::pair<Op, uint64_t>> read_after_loss(EventLog& log, F&& drop) {
  append_numbers(log, 0, kMax);
  drop();
  log.skip_all();
  log.append(7, 7, Op::Mark);
  std::vector<std::pair<Op, uint64_t>> events;
  log.read(log.end(), [&](const Event& event) {
    events.emplace_back(static_cast<Op>(event.op),
                        event.op == static_cast<uint8_t>(Op::Strand) ? event.word : event.id);
  });
  return events;
}

constexpr uint32_t kPushed = EnterDetail::make(RegionKind::Range, EnterDetail::kPopped);
using Events = std::vector<std::pair<Op, uint64_t>>;

TEST(EventLog, NamesTheTaskAgainOnceThereIsRoom) {
  EventLog log;
  const Events events = read_after_loss(log, [&] {
    log.append(41, 0, Op::Strand);
    log.append(0, 5, Op::Origin);
    log.append(42, 0, Op::Strand, kStrandIsTask);
    log.append(0, 6, Op::Origin);
  });
  EXPECT_EQ(events, (Events{{Op::Strand, 42}, {Op::Origin, 6}, {Op::Mark, 7}}));
}

TEST(EventLog, BeginsWhatIsOpenOnceThereIsRoom) {
  EventLog log;
  const Events events = read_after_loss(log, [&] {
    log.append(0, 1, Op::Enter);
    log.append(0, 2, Op::Enter, kPushed);
    log.append(0, 3, Op::Enter, kPushed);
    log.append(0, 0, Op::Pop, kPushed);
  });
  EXPECT_EQ(events, (Events{{Op::Enter, 1}, {Op::Enter, 2}, {Op::Mark, 7}}));
}

TEST(EventLog, EndsWhatHasEndedOnceThereIsRoom) {
  EventLog log;
  const Events events = read_after_loss(log, [&] {
    log.append(0, 0, Op::Pop, kPushed);
    log.append(0, 1, Op::Exit);
    log.append(0, 1, Op::Enter);
    log.append(0, 1, Op::Exit);
  });
  EXPECT_EQ(events, (Events{{Op::Pop, 0}, {Op::Exit, 1}, {Op::Mark, 7}}));
}

TEST(EventLog, LeavesOpenWhatOnlyAnotherThreadsRegionOfThatNameHasEnded) {
  EventLog log;
  const Events events = read_after_loss(log, [&] {
    log.append(0, 1, Op::Enter);
    log.append(0, 1, Op::Exit, ExitDetail::kElsewhere);
  });
  EXPECT_EQ(events, (Events{{Op::Enter, 1}, {Op::Exit, 1}, {Op::Mark, 7}}));
}

TEST(EventLog, BeginsNothingOfATaskThatIsLeft) {
  EventLog log;
  const Events events = read_after_loss(log, [&] {
    log.append(0, 1, Op::Enter);
    log.append(0, 2, Op::Enter, kPushed);
    log.append(42, 0, Op::Strand);
    log.append(0, 3, Op::Enter);
  });
  EXPECT_EQ(events, (Events{{Op::Enter, 2}, {Op::Strand, 42}, {Op::Mark, 7}}));
}

TEST(EventLog, KeepsFewOfManyThatAreOpen) {
  EventLog log;
  const Events events = read_after_loss(log, [&] {
    for (uint32_t depth = 0; depth < 100; ++depth) {
      log.append(0, depth, Op::Enter, kPushed);
    }
    for (uint32_t depth = 0; depth < 99; ++depth) {
      log.append(0, 0, Op::Pop, kPushed);
    }
  });
  EXPECT_EQ(events, (Events{{Op::Enter, 0}, {Op::Mark, 7}}));
}

TEST(EventLog, ForgetsWhatWasLostBeforeAnotherSessionBegan) {
  EventLog log;
  const Events events = read_after_loss(log, [&] {
    log.append(0, 1, Op::Enter);
    listening.store(1 << kListenBits | kListenRegions);
  });
  listening.store(0);
  EXPECT_EQ(events, (Events{{Op::Mark, 7}}));
}

TEST(EventLog, ReusesChunksThatWereRead) {
  EventLog log;
  for (int round = 0; round < 5; ++round) {  // far more than the log may hold
    append_numbers(log, 0, kMax / 2);
    read_numbers(log);
  }
  EXPECT_EQ(log.take_dropped(), 0U);
}

TEST(EventLog, LosesNothingWhileAReaderDrains) {
#if defined(__SANITIZE_THREAD__)
  constexpr uint64_t kEvents = 1'000'000;
#else
  constexpr uint64_t kEvents = 40'000'000;  // some ten thousand chunks: what goes wrong between two of them is rare
#endif
  EventLog log;
  std::atomic<bool> done{false};
  uint64_t next = 0;
  uint64_t misplaced = 0;
  uint64_t dropped = 0;
  std::thread reader([&] {
    bool last = false;
    while (!last) {
      last = done;
      log.read(log.end(), [&](const Event& event) {
        misplaced += event.word < next;
        next = event.word + 1;
      });
      dropped += log.take_dropped();
    }
  });
  append_numbers(log, 0, kEvents);
  done = true;
  reader.join();
  EXPECT_EQ(misplaced, 0U);
  if (dropped == 0) {
    EXPECT_EQ(next, kEvents);
  }
}

TEST(EventLog, CountsEveryEventAsReadOrDroppedUnderASlowReader) {
  constexpr uint64_t kEvents = 3 * kMax;
  EventLog log;
  std::atomic<bool> done{false};
  uint64_t seen = 0;
  uint64_t dropped = 0;
  std::thread reader([&] {
    bool last = false;
    while (!last) {
      last = done;
      log.read(log.end(), [&](const Event&) { ++seen; });
      dropped += log.take_dropped();
      std::this_thread::yield();
    }
  });
  append_numbers(log, 0, kEvents);
  done = true;
  reader.join();
  EXPECT_EQ(seen + dropped + log.take_dropped(), kEvents);
}

void spin(std::chrono::nanoseconds time) {
  for (const auto began = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - began < time;) {
  }
}

TEST(WorkTimer, TimesTheFirstWorksOneByOne) {
  EventLog log;
  for (int work = 0; work < 10; ++work) {
    WorkTimer(log).stop(1'000'000);
  }
  const uint64_t told = log.take_work();
  EXPECT_GE(told, 10'000'000U);
  EXPECT_LT(told, 11'000'000U);
  EXPECT_EQ(log.take_work(), 0U);
}

TEST(WorkTimer, StandsForWorksThatAreNotTimed) {
  constexpr uint64_t kWorks = 50'000;
  EventLog log;
  uint64_t timed = 0;
  for (uint64_t work = 0; work < kWorks; ++work) {
    WorkTimer timer(log);
    timed += timer.is_on() ? 1 : 0;
    timer.stop(1'000'000);
  }
  EXPECT_LT(timed, kWorks / 25);
  const double told = static_cast<double>(log.take_work()) / (kWorks * 1e6);
  EXPECT_GT(told, 0.9);
  EXPECT_LT(told, 1.1);
}

TEST(WorkTimer, HasNoFixedStep) {
  EventLog log;
  std::vector<int> steps;
  for (int work = 0, last = 0; work < 5'000; ++work) {
    if (WorkTimer(log).is_on()) {
      steps.push_back(work - std::exchange(last, work));
    }
  }
  std::ranges::sort(steps);
  EXPECT_GT(std::ranges::unique(steps).begin() - steps.begin(), 20);
}

TEST(WorkTimer, CountsWhatIsDoneUntilItsEnd) {
  uint64_t told = 0;
  for (int attempt = 0; told == 0 && attempt < 100; ++attempt) {  // 0 where the scheduler interrupted it
    EventLog log;
    {
      const WorkTimer timer(log);
      spin(std::chrono::microseconds(20));
    }
    told = log.take_work();
  }
  EXPECT_GE(told, 19'000U);  // less what timing takes
}

TEST(WorkTimer, CountsFunctionsApart) {
  EventLog log;
  WorkTimer(log, WorkTimer::Of::Function, 1'000'000).stop();
  EXPECT_EQ(log.take_work(), 0U);
  EXPECT_GE(log.take_function_work(), 1'000'000U);
  EXPECT_EQ(log.take_function_work(), 0U);
}

TEST(WorkTimer, LeavesOutWhatTheSchedulerTook) {
  EventLog log;
  {
    const WorkTimer timer(log);
    spin(std::chrono::microseconds(200));
  }
  EXPECT_EQ(log.take_work(), 0U);
}

TEST(EventLogs, GiveAThreadOneLog) {
  EventLog* mine = EventLogs::current();
  EXPECT_EQ(EventLogs::current(), mine);
  EventLog* others = nullptr;
  std::thread([&] { others = EventLogs::current(); }).join();
  EXPECT_NE(others, mine);
}

TEST(EventLogs, HandAnEndedThreadsLogToTheNext) {
  drain_all();
  EventLog* first = nullptr;
  uint32_t generation = 0;
  std::thread([&] {
    first = EventLogs::current();
    generation = first->generation;
    append_numbers(*first, 0, 5);
  }).join();
  drain_all();
  std::atomic<bool> reused{false};
  std::vector<std::thread> threads;
  std::atomic<int> ready{0};
  const std::size_t many = count_logs();
  for (std::size_t number = 0; number < many; ++number) {  // alive together, so that they use up every free log
    threads.emplace_back([&] {
      EventLog* log = EventLogs::current();
      if (log == first) {
        reused = log->generation == generation + 1 && log->strand == 0;
      }
      ++ready;
      while (ready < static_cast<int>(many)) {
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(reused);
}

TEST(EventLogs, KeepAnEndedThreadsLogUntilItIsRead) {
  drain_all();
  EventLog* log = nullptr;
  std::thread([&] {
    log = EventLogs::current();
    append_numbers(*log, 10, 15);
  }).join();
  EventLogs::release_if_done(*log);
  std::thread([&] { EXPECT_NE(EventLogs::current(), log); }).join();
  EXPECT_TRUE(is_range(read_numbers(*log), 10, 15));
}

TEST(EventLogs, DoNotGrowWithShortThreads) {
  drain_all();
  const std::size_t before = count_logs();
  for (int round = 0; round < 5000; ++round) {
    std::thread([] { EventLogs::current()->append(1, 1, Op::Mark); }).join();
    if (round % 10 == 0) {
      drain_all();
    }
  }
  EXPECT_LE(count_logs(), before + 20);
}

TEST(EventLogs, LoseNothingOfThreadsThatComeAndGo) {
  constexpr int kThreads = 400;
  constexpr uint64_t kEvents = 300;
  drain_all();
  std::atomic<bool> done{false};
  std::atomic<uint64_t> seen{0};
  std::thread reader([&] {
    bool last = false;
    while (!last) {
      last = done;
      EventLogs::process().each([&](EventLog& log) {
        log.read(log.end(), [&](const Event& event) { seen += event.id == 77; });
        EventLogs::release_if_done(log);
      });
    }
  });
  std::vector<std::thread> starters;
  for (int starter = 0; starter < 4; ++starter) {
    starters.emplace_back([] {
      for (int count = 0; count < kThreads / 4; ++count) {
        std::thread([] {
          for (uint64_t number = 0; number < kEvents; ++number) {
            EventLogs::current()->append(number, 77, Op::Mark);
          }
        }).join();
      }
    });
  }
  for (std::thread& starter : starters) {
    starter.join();
  }
  done = true;
  reader.join();
  EXPECT_EQ(seen, kThreads * kEvents);
}

}  // namespace
}  // namespace gpuscope::base
