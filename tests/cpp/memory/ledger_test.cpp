// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/ledger.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/hooks.h"

namespace gpuscope::memory {
namespace {

using base::AllocationKind;
using base::AllocationStep;
using base::DriverAllocation;

class Ledgers : public testing::Test {
 protected:
  ~Ledgers() override {
    base::stack_source = nullptr;
    base::region_source = nullptr;
    base::OpenRegions::end(base::OpenRegions::kLedger);
  }

  /// A call that begins and ends now.
  static DriverAllocation event(AllocationStep step, AllocationKind kind, uint64_t address, uint64_t handle = 0,
                                uint64_t bytes = 0) {
    DriverAllocation told;
    told.step = step;
    told.kind = kind;
    told.address = address;
    told.handle = handle;
    told.bytes = bytes;
    told.device = kind == AllocationKind::Pinned ? base::kHostMemory : 0;
    told.began_ticks = told.ended_ticks = base::ticks();
    return told;
  }
  void take(uint64_t address, uint64_t bytes, AllocationKind kind = AllocationKind::Device) {
    ledger_.record(event(AllocationStep::Allocated, kind, address, 0, bytes));
  }
  void release(uint64_t address, AllocationKind kind = AllocationKind::Device) {
    ledger_.record(event(AllocationStep::Released, kind, address));
  }
  void refuse(uint64_t bytes, AllocationKind kind = AllocationKind::Device) {
    DriverAllocation refused = event(AllocationStep::Allocated, kind, 0, 0, bytes);
    refused.result = 2;
    ledger_.record(refused);
  }
  void create(uint64_t handle, uint64_t bytes) {
    ledger_.record(event(AllocationStep::Allocated, AllocationKind::Virtual, 0, handle, bytes));
  }
  void move(AllocationStep step, uint64_t address, uint64_t handle, uint64_t bytes = 0) {
    ledger_.record(event(step, AllocationKind::Virtual, address, handle, bytes));
  }
  std::vector<uint64_t> live_bytes() {
    std::vector<uint64_t> bytes;
    for (const Allocation& allocation : ledger_.live()) {
      bytes.push_back(allocation.bytes);
    }
    std::ranges::sort(bytes);
    return bytes;
  }
  using Bytes = std::vector<uint64_t>;

  Ledger ledger_;
};

TEST_F(Ledgers, TakeNoMoreMemoryHoweverOftenItsRulesComeToPass) {
  const auto round = [this](uint64_t number) {
    const uint64_t at = 4096 * (1 + number % 1000);
    take(at, 100);
    take(at, 200);  // its release was missed
    release(at);
    release(at);  // not known
    take(at, 100, AllocationKind::Pinned);
    release(at, AllocationKind::Pinned);
    ledger_.record(event(AllocationStep::Allocated, AllocationKind::Array, 0, number, 64));
    ledger_.record(event(AllocationStep::Released, AllocationKind::Array, 0, number));
    create(number, 8192);
    move(AllocationStep::Mapped, at, number, 8192);
    move(AllocationStep::Retained, 0, number);
    move(AllocationStep::Released, 0, number);
    move(AllocationStep::Released, 0, number);
    move(AllocationStep::Unmapped, at, 0, 8192);
    move(AllocationStep::Mapped, at, number + 1, 8192);  // not known
    refuse(1 << 20);
    take(at, 100);
    ledger_.record(event(AllocationStep::ContextDestroyed, AllocationKind::Device, 0));
  };
  for (uint64_t number = 0; number < 2'000; ++number) {
    round(number);
  }
  const std::size_t before = mallinfo2().uordblks;
  for (uint64_t number = 2'000; number < 22'000; ++number) {
    round(number);
  }
  EXPECT_LE(mallinfo2().uordblks, before + 4096);
  EXPECT_TRUE(live_bytes().empty());
}

TEST_F(Ledgers, KeepWhatWasTakenUntilItIsReleased) {
  take(4096, 100);
  take(8192, 200);
  EXPECT_EQ(live_bytes(), (Bytes{100, 200}));
  release(4096);
  EXPECT_EQ(live_bytes(), Bytes{200});
}

TEST_F(Ledgers, SayWhatAnAllocationIs) {
  const int64_t before = base::Clock::process().now_ns();
  DriverAllocation call = event(AllocationStep::Allocated, AllocationKind::Pool, 4096, 0, 100);
  call.pool = 9;
  call.device = 3;
  ledger_.record(call);
  const Allocation allocation = ledger_.live().at(0);
  EXPECT_EQ(allocation.kind, AllocationKind::Pool);
  EXPECT_EQ(allocation.address, 4096U);
  EXPECT_EQ(allocation.pool, 9U);
  EXPECT_EQ(allocation.device, 3);
  EXPECT_EQ(allocation.caller.thread, static_cast<uint64_t>(syscall(SYS_gettid)));
  EXPECT_GE(allocation.time_ns, before);
  EXPECT_LE(allocation.time_ns, base::Clock::process().now_ns());
}

TEST_F(Ledgers, SayWhichLibraryTookAnAllocation) {
  take(4096, 100);
  const uint32_t library = ledger_.live().at(0).caller.library;
  EXPECT_EQ(NativeLibraries::process().names().at(library), "gpuscope_tests");
}

TEST_F(Ledgers, SayInWhatRegionAnAllocationWasTaken) {
  base::region_source = []() noexcept -> uint32_t { return 5; };
  take(4096, 100);
  EXPECT_EQ(ledger_.live().at(0).caller.region, 5U);
}

TEST_F(Ledgers, WantOpenRegionsUntilTheyForget) {
  base::OpenRegions::end(base::OpenRegions::kHistory);
  ledger_.begin(false);
  EXPECT_TRUE(base::OpenRegions::wanted());
  ledger_.forget();
  EXPECT_FALSE(base::OpenRegions::wanted());
}

TEST_F(Ledgers, AskForStacksOnlyWhenTheyAreWanted) {
  base::stack_source = [](const void*) noexcept -> uint32_t { return 77; };
  ledger_.begin(false);
  take(4096, 100);
  EXPECT_EQ(ledger_.live().at(0).caller.stack, 0U);
  ledger_.begin(true);
  take(4096, 100);
  EXPECT_EQ(ledger_.live().at(0).caller.stack, 77U);
}

TEST_F(Ledgers, ReleaseByAnyCallThatFitsTheAddress) {
  take(4096, 100, AllocationKind::Pool);
  release(4096, AllocationKind::Device);
  take(8192, 100, AllocationKind::Pinned);
  release(8192, AllocationKind::Pinned);
  EXPECT_EQ(live_bytes(), Bytes{});
  EXPECT_EQ(ledger_.counts().unknown_releases, 0U);
}

TEST_F(Ledgers, CountReleasesOfWhatTheyDidNotSee) {
  release(4096);
  move(AllocationStep::Released, 0, 5);
  EXPECT_EQ(ledger_.counts().unknown_releases, 2U);
}

TEST_F(Ledgers, TakeAnAddressThatIsGivenOutAgain) {
  take(4096, 100);
  release(4096);
  take(4096, 300);
  EXPECT_EQ(live_bytes(), Bytes{300});
}

TEST_F(Ledgers, KeepANewPieceWhoseAddressIsReleasedLateOnAnotherThread) {
  take(4096, 100);
  DriverAllocation late = event(AllocationStep::Released, AllocationKind::Device, 4096);
  take(4096, 300);  // between the release and its end
  late.ended_ticks = base::ticks();
  ledger_.record(late);
  EXPECT_EQ(live_bytes(), Bytes{300});
  EXPECT_EQ(ledger_.counts().unknown_releases, 0U);
  release(4096);
  EXPECT_EQ(live_bytes(), Bytes{});
}

TEST_F(Ledgers, TellVirtualMemoryAndArraysFromAddresses) {
  take(5, 100);
  create(5, 200);
  ledger_.record(event(AllocationStep::Allocated, AllocationKind::Array, 0, 5, 300));
  EXPECT_EQ(live_bytes(), (Bytes{100, 200, 300}));
  ledger_.record(event(AllocationStep::Released, AllocationKind::Array, 0, 5));
  EXPECT_EQ(live_bytes(), (Bytes{100, 200}));
}

TEST_F(Ledgers, GiveVirtualMemoryItsAddressWhileItIsMapped) {
  create(5, 200);
  EXPECT_EQ(ledger_.live().at(0).address, 0U);
  move(AllocationStep::Mapped, 4096, 5, 200);
  EXPECT_EQ(ledger_.live().at(0).address, 4096U);
  move(AllocationStep::Unmapped, 4096, 0, 200);
  EXPECT_EQ(ledger_.live().at(0).address, 0U);
  EXPECT_EQ(live_bytes(), Bytes{200});
}

TEST_F(Ledgers, KeepVirtualMemoryUntilItIsReleasedAndUnmapped) {
  for (const bool release_first : {true, false}) {
    create(5, 200);
    move(AllocationStep::Mapped, 4096, 5, 200);
    move(release_first ? AllocationStep::Released : AllocationStep::Unmapped, release_first ? 0 : 4096,
         release_first ? 5 : 0, 200);
    EXPECT_EQ(live_bytes(), Bytes{200});
    move(release_first ? AllocationStep::Unmapped : AllocationStep::Released, release_first ? 4096 : 0,
         release_first ? 0 : 5, 200);
    EXPECT_EQ(live_bytes(), Bytes{});
  }
}

TEST_F(Ledgers, KeepVirtualMemoryForEachWhoHoldsIt) {
  create(5, 200);
  move(AllocationStep::Retained, 0, 5);
  move(AllocationStep::Released, 0, 5);
  EXPECT_EQ(live_bytes(), Bytes{200});
  move(AllocationStep::Released, 0, 5);
  EXPECT_EQ(live_bytes(), Bytes{});
}

TEST_F(Ledgers, UnmapNeighboursAtOnce) {
  for (uint64_t handle = 1; handle <= 3; ++handle) {
    create(handle, 100);
    move(AllocationStep::Mapped, 1000 + 100 * handle, handle, 100);
    move(AllocationStep::Released, 0, handle);
  }
  move(AllocationStep::Unmapped, 1100, 0, 200);
  EXPECT_EQ(live_bytes(), Bytes{100});
  EXPECT_EQ(ledger_.live().at(0).address, 1300U);
}

TEST_F(Ledgers, BearMappingsOfWhatTheyDidNotSee) {
  move(AllocationStep::Mapped, 4096, 5, 200);
  move(AllocationStep::Retained, 0, 5);
  move(AllocationStep::Unmapped, 4096, 0, 200);
  EXPECT_EQ(live_bytes(), Bytes{});
}

TEST_F(Ledgers, ForgetWhatWentWithItsContext) {
  for (const uint64_t context : {1, 2}) {
    DriverAllocation call = event(AllocationStep::Allocated, AllocationKind::Device, 4096 * context, 0, 100 * context);
    call.context = context;
    ledger_.record(call);
  }
  create(5, 300);
  DriverAllocation gone;
  gone.step = AllocationStep::ContextDestroyed;
  gone.context = 1;
  ledger_.record(gone);
  EXPECT_EQ(live_bytes(), (Bytes{200, 300}));
}

TEST_F(Ledgers, KeepWhatWasRefusedWithWhatLivedOnThatDevice) {
  take(4096, 100);
  take(8192, 50, AllocationKind::Pinned);
  refuse(1000);
  const Failure failure = ledger_.failures().at(0);
  EXPECT_EQ(failure.bytes, 1000U);
  EXPECT_EQ(failure.live_bytes, 100U);
  EXPECT_EQ(failure.result, 2);
  EXPECT_EQ(live_bytes(), (Bytes{50, 100}));
}

TEST_F(Ledgers, KeepTheLastRefusals) {
  for (uint64_t bytes = 1; bytes <= 20; ++bytes) {
    refuse(bytes);
  }
  const std::vector<Failure> failures = ledger_.failures();
  ASSERT_EQ(failures.size(), Ledger::kFailures);
  EXPECT_EQ(failures.front().bytes, 5U);
  EXPECT_EQ(failures.back().bytes, 20U);
}

TEST_F(Ledgers, BeginWithNothing) {
  take(4096, 100);
  refuse(1);
  release(1);
  ledger_.begin(false);
  EXPECT_EQ(live_bytes(), Bytes{});
  EXPECT_TRUE(ledger_.failures().empty());
  EXPECT_EQ(ledger_.counts().unknown_releases, 0U);
}

TEST_F(Ledgers, ForgetWhatIsLiveButNotWhatWasRefused) {
  take(4096, 100);
  refuse(1);
  ledger_.forget();
  EXPECT_EQ(live_bytes(), Bytes{});
  EXPECT_EQ(ledger_.failures().size(), 1U);
}

TEST_F(Ledgers, BookTheCallsOfManyThreads) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kCalls = 1000;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      for (uint64_t call = 0; call < kCalls; ++call) {
        const uint64_t address = (thread << 32) + 1 + call;
        take(address, 1);
        if (call % 2 == 0) {
          release(address);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(ledger_.live().size(), kThreads * kCalls / 2);
  EXPECT_EQ(ledger_.counts().unknown_releases, 0U);
}

}  // namespace
}  // namespace gpuscope::memory
