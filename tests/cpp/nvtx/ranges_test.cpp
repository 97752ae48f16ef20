// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvtx/ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "fakes/window.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/nvtx/names.h"

namespace gpuscope::nvtx {
namespace {

using fakes::Window;
using testing::ElementsAre;
using testing::IsEmpty;

nvtxEventAttributes_t attributes(const char* message) {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = message;
  return event;
}

void push(nvtxDomainHandle_t domain, const char* message) {
  const nvtxEventAttributes_t event = attributes(message);
  nvtxDomainRangePushEx(domain, &event);
}

TEST(Nvtx, RangesNestAsTheyWerePushed) {
  Window window;
  EXPECT_EQ(nvtxRangePushA("outer"), 0);
  EXPECT_EQ(nvtxRangePushA("inner"), 1);
  EXPECT_EQ(nvtxRangePop(), 1);
  EXPECT_EQ(nvtxRangePushA("second"), 1);
  EXPECT_EQ(nvtxRangePop(), 1);
  EXPECT_EQ(nvtxRangePop(), 0);
  const store::Store& store = window.close();
  EXPECT_THAT(window.regions(), ElementsAre("outer", "outer/inner", "outer/second"));
  EXPECT_EQ(store.path.kind[store.region.path[0]], static_cast<uint32_t>(base::RegionKind::Range));
}

TEST(Nvtx, PopWithoutPushClosesNothing) {
  Window window;
  EXPECT_LT(nvtxRangePop(), 0);
  nvtxRangePushA("after");
  nvtxRangePop();
  EXPECT_LT(nvtxRangePop(), 0);
  window.close();
  EXPECT_THAT(window.regions(), ElementsAre("after"));
  EXPECT_EQ(window.unmatched_exits(), 0U);
}

TEST(Nvtx, RangeThatIsNeverPoppedStaysOpen) {
  Window window;
  nvtxRangePushA("open");
  window.close();
  EXPECT_THAT(window.regions(), ElementsAre("open!"));
  nvtxRangePop();
}

TEST(Nvtx, RangeOfBeforeTheSessionIsNotClosedInIt) {
  nvtxRangePushA("before");
  Window window;
  EXPECT_EQ(nvtxRangePushA("within"), 1);
  EXPECT_EQ(nvtxRangePop(), 1);
  EXPECT_EQ(nvtxRangePop(), 0);
  nvtxRangePushA("later");
  nvtxRangePop();
  window.close();
  EXPECT_THAT(window.regions(), ElementsAre("within", "later"));
  EXPECT_EQ(window.unmatched_exits(), 0U);
}

TEST(Nvtx, DepthIsCountedWhileNobodyListens) {
  EXPECT_EQ(nvtxRangePushA("quiet"), 0);
  EXPECT_EQ(nvtxRangePushA("quiet"), 1);
  EXPECT_EQ(nvtxRangePop(), 1);
  EXPECT_EQ(nvtxRangePop(), 0);
  EXPECT_NE(nvtxRangeStartA("quiet"), nvtxRangeStartA("quiet"));
  Window window;
  window.close();
  EXPECT_THAT(window.regions(), IsEmpty());
}

TEST(Nvtx, RangesOfDomainsCloseInTheirOwnOrder) {
  nvtxDomainHandle_t first = nvtxDomainCreateA("first");
  nvtxDomainHandle_t second = nvtxDomainCreateW(L"second");
  EXPECT_EQ(nvtxDomainCreateA("first"), first);
  Window window;
  push(first, "a");
  push(second, "b");
  EXPECT_EQ(nvtxDomainRangePop(first), 0);
  push(first, "c");
  EXPECT_EQ(nvtxDomainRangePop(first), 0);
  EXPECT_EQ(nvtxDomainRangePop(second), 0);
  EXPECT_LT(nvtxRangePop(), 0);
  window.close();
  EXPECT_THAT(window.regions(), ElementsAre("first:a", "first:a/second:b", "first:a/second:b/first:c"));
  nvtxDomainDestroy(first);
}

TEST(Nvtx, RangeClosesWhileAnotherTaskHasItsTurn) {
  Window window;
  const auto turn_to_task = [](uint64_t key) {
    base::EventLogs::current()->append(key, 0, base::Op::Strand);
    nvtxMarkA("turn");
  };
  turn_to_task(1);
  nvtxRangePushA("range");
  turn_to_task(2);
  nvtxRangePop();
  window.close();
  EXPECT_THAT(window.regions(), ElementsAre("range"));
  EXPECT_EQ(window.unmatched_exits(), 0U);
}

TEST(Nvtx, StartedRangeEndsOnAnotherThreadAndOutOfOrder) {
  Window window;
  const nvtxRangeId_t first = nvtxRangeStartA("first");
  const nvtxRangeId_t second = nvtxRangeStartW(L"second");
  nvtxRangeStartA("open");
  nvtxRangePushA("pushed");
  std::thread([first] { nvtxRangeEnd(first); }).join();
  nvtxRangeEnd(second);
  nvtxRangeEnd(second);
  nvtxRangeEnd(12345);
  nvtxRangePop();
  window.close();
  EXPECT_THAT(window.regions(), ElementsAre("first~", "second~", "open~!", "pushed"));
}

TEST(Nvtx, NamesComeAsBytesWideOrRegistered) {
  nvtxDomainHandle_t domain = nvtxDomainCreateA("names");
  nvtxEventAttributes_t registered = attributes(nullptr);
  registered.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  registered.message.registered = nvtxDomainRegisterStringA(domain, "registered");
  nvtxEventAttributes_t wide = attributes(nullptr);
  wide.messageType = NVTX_MESSAGE_TYPE_UNICODE;
  wide.message.unicode = L"wide \u00E9\u4E2D\U0001F600";
  const wchar_t surrogate[] = {L'x', static_cast<wchar_t>(0xD800), 0};
  Window window;
  nvtxDomainMarkEx(domain, &registered);
  registered.message.registered = nvtxDomainRegisterStringW(domain, L"registered wide");
  nvtxDomainMarkEx(domain, &registered);
  nvtxMarkEx(&wide);
  nvtxMarkW(surrogate);
  nvtxMarkA("not UTF-8: \xFF");
  window.close();
  EXPECT_THAT(window.marks(), ElementsAre("registered", "registered wide", "wide \u00E9\u4E2D\U0001F600", "x\uFFFD",
                                          "not UTF-8: \uFFFD"));
}

TEST(Nvtx, MessageThatIsMissingHasNoName) {
  nvtxEventAttributes_t odd = attributes("read past its end");
  odd.size = 8;
  nvtxEventAttributes_t unknown = attributes("x");
  unknown.messageType = 77;
  nvtxEventAttributes_t forged = attributes(nullptr);
  forged.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  forged.message.registered = reinterpret_cast<nvtxStringHandle_t>(0x7fff12345678);
  Window window;
  nvtxMarkA(nullptr);
  nvtxMarkW(nullptr);
  nvtxMarkEx(nullptr);
  for (const nvtxEventAttributes_t* event : {&odd, &unknown, &forged}) {
    nvtxMarkEx(event);
  }
  nvtxDomainRangePushEx(reinterpret_cast<nvtxDomainHandle_t>(0x7fff12345678), &odd);
  nvtxDomainRangePop(reinterpret_cast<nvtxDomainHandle_t>(0x7fff12345678));
  window.close();
  EXPECT_THAT(window.marks(), testing::Each("(no name)"));
  EXPECT_THAT(window.marks(), testing::SizeIs(6));
  EXPECT_THAT(window.regions(), ElementsAre("(no name)"));
}

TEST(Nvtx, TextThatChangesInPlaceIsReadAnew) {
  Window window;
  std::string text = "step 1";
  nvtxMarkA(text.c_str());
  text.back() = '2';
  nvtxMarkA(text.c_str());
  nvtxMarkA(std::string(100'000, 'a').c_str());
  window.close();
  EXPECT_EQ(window.marks()[0], "step 1");
  EXPECT_EQ(window.marks()[1], "step 2");
  EXPECT_EQ(window.marks()[2], std::string(4096, 'a'));
}

TEST(Nvtx, MoreNamesThanAreCachedKeepApart) {
  constexpr int kNames = 5000;
  Window window;
  for (int name = 0; name < kNames; ++name) {
    nvtxMarkA(std::to_string(name).c_str());
  }
  window.close();
  const std::vector<std::string> marks = window.marks();
  ASSERT_EQ(marks.size(), std::size_t{kNames});
  for (int name = 0; name < kNames; ++name) {
    ASSERT_EQ(marks[name], std::to_string(name));
  }
}

TEST(Nvtx, NumbersAndCategoriesAreGivenAlong) {
  nvtxDomainHandle_t domain = nvtxDomainCreateA("payloads");
  nvtxDomainNameCategoryA(domain, 7, "loading");
  nvtxNameCategoryW(7, L"other");
  Window window;
  const auto push_payload = [&](int32_t type, auto fill, uint32_t category = 0) {
    nvtxEventAttributes_t event = attributes("range");
    event.payloadType = type;
    event.category = category;
    fill(event.payload);
    nvtxDomainRangePushEx(domain, &event);
    nvtxDomainRangePop(domain);
  };
  using Payload = decltype(nvtxEventAttributes_t::payload);
  push_payload(
      NVTX_PAYLOAD_TYPE_UNSIGNED_INT64, [](Payload& payload) { payload.ullValue = UINT64_MAX; }, 7);
  push_payload(
      NVTX_PAYLOAD_TYPE_INT64, [](Payload& payload) { payload.llValue = -3; }, 8);
  push_payload(NVTX_PAYLOAD_TYPE_DOUBLE, [](Payload& payload) { payload.dValue = 0.5; });
  push_payload(NVTX_PAYLOAD_TYPE_UNSIGNED_INT32, [](Payload& payload) { payload.uiValue = 4000000000; });
  push_payload(NVTX_PAYLOAD_TYPE_INT32, [](Payload& payload) { payload.iValue = -4; });
  push_payload(NVTX_PAYLOAD_TYPE_FLOAT, [](Payload& payload) { payload.fValue = 1.5F; });
  push_payload(99, [](Payload&) {});
  window.close();
  using Values = std::map<std::string, std::string>;
  EXPECT_EQ(window.payload(0), (Values{{"category", "'loading'"}, {"payload", "18446744073709551615"}}));
  EXPECT_EQ(window.payload(1), (Values{{"category", "8"}, {"payload", "-3"}}));
  EXPECT_EQ(window.payload(2), (Values{{"payload", "0.500000"}}));
  EXPECT_EQ(window.payload(3), (Values{{"payload", "4000000000"}}));
  EXPECT_EQ(window.payload(4), (Values{{"payload", "-4"}}));
  EXPECT_EQ(window.payload(5), (Values{{"payload", "1.500000"}}));
  EXPECT_EQ(window.payload(6), Values{});
}

TEST(Nvtx, ThreadsKeepTheirRangesApart) {
  constexpr int kThreads = 4;
  constexpr int kRanges = 2000;
  Window window;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread] {
      nvtxDomainHandle_t domain = nvtxDomainCreateA("threads");
      for (int range = 0; range < kRanges; ++range) {
        push(domain, std::to_string(range % 50).c_str());
        nvtxRangePushA(std::to_string(thread).c_str());
        nvtxRangeEnd(nvtxRangeStartA("apart"));
        nvtxRangePop();
        nvtxDomainRangePop(domain);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  window.close();
  std::map<std::string, int> counts;
  for (const std::string& region : window.regions()) {
    ++counts[region];
  }
  EXPECT_EQ(counts.size(), 50U + 50 * kThreads + 1);
  EXPECT_EQ(counts["threads:49"], kThreads * kRanges / 50);
  EXPECT_EQ(counts["threads:49/3"], kRanges / 50);
  EXPECT_EQ(counts["apart~"], kThreads * kRanges);
}

TEST(Nvtx, ThreadsAreCalledWhatTheyWereNamed) {
  const auto self = static_cast<uint32_t>(syscall(SYS_gettid));
  EXPECT_EQ(thread_name(self), 0U);
  nvtxNameOsThreadA(self, "loader of the data");
  EXPECT_EQ(base::Names::process().text(thread_name(self)), "loader of the data");
}

TEST(Nvtx, LibraryIsKnownByItsFile) {
  nvtxMarkA("first call");
  EXPECT_THAT(attached_libraries(), testing::Contains(testing::HasSubstr("gpuscope_tests")));
}

TEST(Nvtx, WhatIsNoNvtxIsRefused) {
  EXPECT_FALSE(attach(nullptr));
  EXPECT_FALSE(attach([](uint32_t) -> const void* { return nullptr; }));
  EXPECT_FALSE(attach([](uint32_t) -> const void* {
    static const std::size_t too_small = 8;
    return &too_small;
  }));
  EXPECT_FALSE(attach_extension(nullptr));
}

}  // namespace
}  // namespace gpuscope::nvtx
