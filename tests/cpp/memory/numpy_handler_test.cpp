// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/numpy_handler.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpuscope/memory/history.h"

namespace gpuscope::memory {
namespace {

constexpr std::size_t kLarge = 4096;

int freed = 0;

/// As NumPy's own, of a library that cannot grow a block beyond 1 MiB.
NumpyHandler make_handler(std::string_view name = "default_allocator") {
  NumpyHandler handler;
  std::ranges::copy(name, handler.name.begin());
  handler.functions.malloc = [](void*, std::size_t bytes) { return std::malloc(bytes); };
  handler.functions.calloc = [](void*, std::size_t count, std::size_t bytes) { return std::calloc(count, bytes); };
  handler.functions.realloc = [](void*, void* address, std::size_t bytes) {
    return bytes <= 1U << 20 ? std::realloc(address, bytes) : nullptr;
  };
  handler.functions.free = [](void*, void* address, std::size_t) {
    ++freed;
    std::free(address);
  };
  return handler;
}

bool same(const NumpyHandler::Functions& one, const NumpyHandler::Functions& other) {
  return one.malloc == other.malloc && one.calloc == other.calloc && one.realloc == other.realloc &&
         one.free == other.free && one.context == other.context;
}

/// A handler that is watched while a history is recorded.
class NumpyHandlerTest : public testing::Test {
 protected:
  void SetUp() override {
    History::process().start(100, false);
    ASSERT_EQ(watch_.watch(handler_), "");
  }
  void TearDown() override { History::process().stop(); }

  void* take(std::size_t bytes) { return handler_.functions.malloc(nullptr, bytes); }
  void give_back(void* address, std::size_t bytes) { handler_.functions.free(nullptr, address, bytes); }
  static std::vector<int64_t> bytes() { return History::process().read().bytes; }

  NumpyHandler handler_ = make_handler();
  const NumpyHandler::Functions own_ = handler_.functions;
  NumpyDefault watch_;
};

TEST_F(NumpyHandlerTest, RecordsWhatIsTakenAndGivenBackOnTheHost) {
  void* address = take(kLarge);
  give_back(address, kLarge);
  const HistoryColumns columns = History::process().read();
  EXPECT_EQ(columns.bytes, (std::vector<int64_t>{kLarge, -int64_t{kLarge}}));
  EXPECT_EQ(columns.address, std::vector<uint64_t>(2, reinterpret_cast<uint64_t>(address)));
  EXPECT_EQ(columns.device, std::vector<int32_t>(2, kHost));
  EXPECT_EQ(columns.source, std::vector<uint8_t>(2, static_cast<uint8_t>(Source::Numpy)));
}

TEST_F(NumpyHandlerTest, ClearedMemoryCountsItsElements) {
  void* address = handler_.functions.calloc(nullptr, 16, 8);
  EXPECT_EQ(bytes(), std::vector<int64_t>{128});
  give_back(address, 128);
}

TEST_F(NumpyHandlerTest, AGrownBlockIsGivenBackAndTakenAgain) {
  void* address = handler_.functions.realloc(nullptr, take(kLarge), 2 * kLarge);
  EXPECT_EQ(bytes(), (std::vector<int64_t>{kLarge, kUnknownRelease, 2 * kLarge}));
  give_back(address, 2 * kLarge);
}

TEST_F(NumpyHandlerTest, ABlockThatCannotBeGrownIsTakenNoSecondTime) {
  void* address = take(kLarge);
  EXPECT_EQ(handler_.functions.realloc(nullptr, address, 2U << 20), nullptr);
  EXPECT_EQ(bytes().size(), 2U);
  give_back(address, kLarge);
}

TEST_F(NumpyHandlerTest, WhatIsRefusedIsNotRecorded) {
  const NumpyHandler::Functions recording = handler_.functions;
  EXPECT_EQ(recording.realloc(nullptr, nullptr, 2U << 20), nullptr);
  EXPECT_TRUE(bytes().empty());
}

TEST_F(NumpyHandlerTest, NumbersThatMeetAnArrayAreLeftOut) {
  give_back(take(63), 63);
  EXPECT_TRUE(bytes().empty());
  give_back(take(64), 64);
  EXPECT_EQ(bytes().size(), 2U);
}

TEST_F(NumpyHandlerTest, ASmallBlockThatGrewIsSeen) {
  void* address = handler_.functions.realloc(nullptr, take(8), kLarge);
  EXPECT_EQ(bytes().back(), int64_t{kLarge});
  give_back(address, kLarge);
}

TEST_F(NumpyHandlerTest, WhatAThreadLeavesOutIsItsOwnAndOnlyWhatItTakes) {
  void* before = take(kLarge);
  EXPECT_FALSE(leave_out_numpy(true));
  void* left_out = take(kLarge);
  give_back(before, kLarge);
  std::thread([&] { give_back(take(2 * kLarge), 2 * kLarge); }).join();
  EXPECT_TRUE(leave_out_numpy(false));
  EXPECT_EQ(bytes(), (std::vector<int64_t>{kLarge, -int64_t{kLarge}, 2 * kLarge, -2 * int64_t{kLarge}}));
  give_back(left_out, kLarge);
}

TEST_F(NumpyHandlerTest, ItsOwnFunctionsAreBackAtTheEnd) {
  void* address = take(kLarge);
  watch_.unwatch();
  EXPECT_TRUE(same(handler_.functions, own_));
  freed = 0;
  give_back(address, kLarge);
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(bytes().size(), 1U);
}

TEST_F(NumpyHandlerTest, TheLastOfSeveralUsersEndsIt) {
  ASSERT_EQ(watch_.watch(handler_), "");
  watch_.unwatch();
  EXPECT_TRUE(records(handler_));
  watch_.unwatch();
  watch_.unwatch();  // one too many
  EXPECT_FALSE(records(handler_));
}

TEST_F(NumpyHandlerTest, ItCanBeWatchedAgain) {
  watch_.unwatch();
  ASSERT_EQ(watch_.watch(handler_), "");
  give_back(take(kLarge), kLarge);
  EXPECT_EQ(bytes().size(), 2U);
}

TEST_F(NumpyHandlerTest, ItBeginsAndEndsWhileOtherThreadsAllocate) {
  std::atomic<bool> ends{false};
  freed = 0;
  std::thread program([&] {
    const auto function = [](auto& member) { return std::atomic_ref(member).load(); };
    do {
      void* address = function(handler_.functions.malloc)(nullptr, kLarge);
      function(handler_.functions.free)(nullptr, address, kLarge);
    } while (!ends);
  });
  for (int round = 0; round < 1000; ++round) {
    watch_.unwatch();
    ASSERT_EQ(watch_.watch(handler_), "");
  }
  ends = true;
  program.join();
  EXPECT_GT(freed, 0);
}

NumpyHandler::Functions beneath;  // what another tool calls

TEST_F(NumpyHandlerTest, FunctionsThatAnotherToolHasExchangedSinceAreLeftAndCalledOnce) {
  beneath = handler_.functions;
  const auto of_tool = [](void* context, std::size_t bytes) { return beneath.malloc(context, bytes); };
  handler_.functions.malloc = of_tool;
  watch_.unwatch();
  EXPECT_EQ(handler_.functions.malloc, of_tool);
  EXPECT_EQ(handler_.functions.free, own_.free);
  ASSERT_EQ(watch_.watch(handler_), "");
  EXPECT_EQ(handler_.functions.malloc, of_tool);
  void* address = take(kLarge);
  EXPECT_EQ(bytes(), std::vector<int64_t>{kLarge});
  handler_.functions.malloc = beneath.malloc;
  give_back(address, kLarge);
}

TEST_F(NumpyHandlerTest, AWrappedHandlerIsCalledWithItsContext) {
  int calls = 0;
  NumpyHandler program = make_handler("program");
  program.functions.context = &calls;
  program.functions.malloc = [](void* context, std::size_t bytes) {
    ++*static_cast<int*>(context);
    return std::malloc(bytes);
  };
  NumpyWrapper wrapper(program);
  NumpyHandler& wrapped = wrapper.handler();
  EXPECT_EQ(wrapped.name, program.name);
  EXPECT_TRUE(records(wrapped));
  void* address = wrapped.functions.malloc(wrapped.functions.context, kLarge);
  EXPECT_EQ(calls, 1);
  freed = 0;
  wrapped.functions.free(wrapped.functions.context, address, kLarge);
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(bytes(), (std::vector<int64_t>{kLarge, -int64_t{kLarge}}));
}

TEST_F(NumpyHandlerTest, AWrappedHandlerOverNumPysOwnIsRecordedOnce) {
  NumpyHandler program = make_handler("program");
  program.functions.context = &handler_;
  program.functions.malloc = [](void* context, std::size_t bytes) {
    return static_cast<NumpyHandler*>(context)->functions.malloc(nullptr, bytes + 64);
  };
  NumpyWrapper wrapper(program);
  NumpyHandler& wrapped = wrapper.handler();
  void* address = wrapped.functions.malloc(wrapped.functions.context, kLarge);
  EXPECT_EQ(bytes(), std::vector<int64_t>{kLarge});
  wrapped.functions.free(wrapped.functions.context, address, kLarge);
}

TEST(NumpyDefaultTest, HandlersThatAreNotKnownAreRefusedAndStayAsTheyAre) {
  NumpyHandler renamed = make_handler("another_allocator");
  NumpyHandler newer = make_handler();
  newer.version = 2;
  NumpyHandler with_context = make_handler();
  with_context.functions.context = &newer;
  for (NumpyHandler* handler : {&renamed, &newer, &with_context}) {
    NumpyDefault watch;
    const NumpyHandler::Functions before = handler->functions;
    EXPECT_NE(watch.watch(*handler).find("which is not known"), std::string::npos);
    watch.unwatch();
    EXPECT_TRUE(same(handler->functions, before));
  }
}

TEST(NumpyDefaultTest, AHandlerInReadOnlyMemoryIsRefused) {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* handler = new (page) NumpyHandler(make_handler());
  ASSERT_EQ(mprotect(page, 4096, PROT_READ), 0);
  NumpyDefault watch;
  EXPECT_EQ(watch.watch(*handler), "NumPy's default handler cannot be changed");
  munmap(page, 4096);
}

}  // namespace
}  // namespace gpuscope::memory
