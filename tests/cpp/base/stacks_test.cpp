// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "gpuscope/base/hooks.h"

namespace gpuscope::base {
namespace {

TEST(Stacks, AFrameBelowTheSameCallerIsTheSameStack) {
  Stacks stacks;
  const uint32_t outer = stacks.intern({0, 1, 2, 10});
  const uint32_t inner = stacks.intern({outer, 3, 2, 20});
  EXPECT_NE(outer, 0U);
  EXPECT_NE(inner, outer);
  EXPECT_EQ(stacks.intern({0, 1, 2, 10}), outer);
  EXPECT_EQ(stacks.intern({outer, 3, 2, 20}), inner);
  EXPECT_EQ(stacks[inner], (Frame{outer, 3, 2, 20}));
}

TEST(Stacks, FunctionFileLineAndCallerAllCount) {
  Stacks stacks;
  const uint32_t one = stacks.intern({0, 1, 1, 1});
  std::vector<uint32_t> ids{one};
  for (const Frame frame : {Frame{one, 1, 1, 1}, Frame{0, 2, 1, 1}, Frame{0, 1, 2, 1}, Frame{0, 1, 1, 2}}) {
    for (const uint32_t id : ids) {
      EXPECT_NE(stacks.intern(frame), id);
    }
    ids.push_back(stacks.intern(frame));
  }
}

TEST(Stacks, NoStackAndUnknownOnesAreEmptyFrames) {
  Stacks stacks;
  EXPECT_EQ(stacks[0], Frame{});
  EXPECT_EQ(stacks[77], Frame{});
}

TEST(Stacks, ThatAreTooManyAreNone) {
  Stacks stacks;
  uint32_t line = 0;
  while (stacks.intern({0, 1, 1, ++line}) != 0) {
    ASSERT_LT(line, 1U << 21);
  }
  EXPECT_EQ(stacks.intern({0, 1, 1, 1}), 1U);
}

TEST(Stacks, ThreadsAgreeOnTheIds) {
  Stacks stacks;
  std::vector<std::vector<uint32_t>> ids(4);
  std::vector<std::thread> threads;
  for (std::vector<uint32_t>& mine : ids) {
    threads.emplace_back([&stacks, &mine] {
      uint32_t parent = 0;
      for (uint32_t line = 0; line < 1000; ++line) {
        parent = stacks.intern({parent, 1, 1, line});
        mine.push_back(parent);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[3]);
}

uint32_t always_seven(const void*) noexcept { return 7; }

TEST(Stacks, AStackIsSaidOfTheEventThatComesNext) {
  EventLog log;
  append_stack(log);  // without a source there is nothing to say
  EXPECT_FALSE(log.has_more(log.end()));
  stack_source.store(always_seven);
  append_stack(log);
  stack_source.store(nullptr);
  std::vector<Event> events;
  log.read(log.end(), [&](const Event& event) { events.push_back(event); });
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].word, 7U);
  EXPECT_EQ(events[0].op, static_cast<uint32_t>(Op::Argument));
  EXPECT_EQ(events[0].detail, static_cast<uint32_t>(Argument::Stack));
}

TEST(Stacks, ACallIsLeftByItsOwnEndAlone) {
  const int outer = 0;
  const int inner = 0;
  known_call = &outer;
  leave_call(&inner);
  EXPECT_EQ(known_call, &outer);
  leave_call(&outer);
  EXPECT_EQ(known_call, nullptr);
}

}  // namespace
}  // namespace gpuscope::base
