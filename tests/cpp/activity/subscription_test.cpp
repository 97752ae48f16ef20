// SPDX-License-Identifier: Apache-2.0
#include <cupti.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fakes/cubins.h"
#include "fakes/cuda.h"
#include "fakes/cupti.h"
#include "gpuscope/activity/allocation_calls.h"
#include "gpuscope/activity/collector.h"
#include "gpuscope/activity/cubin.h"
#include "gpuscope/activity/layout.h"
#include "gpuscope/base/event_log.h"
#include "gpuscope/base/hooks.h"

namespace gpuscope::activity {
namespace {

using base::AllocationStep;
using base::DriverAllocation;
using fakes::Cupti;

std::vector<DriverAllocation> heard;

using Callbacks = std::set<std::pair<int, uint32_t>>;

class Subscriptions : public testing::Test {
 protected:
  Subscriptions() : cupti_(Cupti::reset()), collector_(std::make_unique<Collector>(cupti_.table())) {
    heard.clear();
    base::allocation_sink = [](const DriverAllocation& told) noexcept { heard.push_back(told); };
  }
  ~Subscriptions() override { base::allocation_sink = nullptr; }

  void allocate(CUdeviceptr address, size_t bytes, int result = 0) {
    cuMemAlloc_v2_params params{&address, bytes};
    cupti_.allocation(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, &params, result, fakes::Cuda::primary(1));
  }
  /// What somebody alone switches on.
  Callbacks of_a_watch() {
    collector_->watch_allocations();
    const Callbacks found = cupti_.callbacks;
    collector_->unwatch_allocations();
    return found;
  }
  Callbacks of_a_recording() {
    collector_->start({});
    const Callbacks found = cupti_.callbacks;
    collector_->stop();
    return found;
  }
  static std::size_t logged() {
    std::size_t events = 0;
    base::EventLog& log = *base::EventLogs::current();
    log.read(log.end(), [&](const base::Event&) { ++events; });
    return events;
  }

  Cupti& cupti_;
  std::unique_ptr<Collector> collector_;
};

TEST_F(Subscriptions, WatchAllocationsWithoutARecording) {
  EXPECT_EQ(collector_->watch_allocations(), "");
  EXPECT_TRUE(collector_->watches_allocations());
  EXPECT_EQ(collector_->tier(), Tier::None);
  EXPECT_TRUE(cupti_.kinds.empty());
  for (const uint32_t callback : allocation_calls()) {
    EXPECT_TRUE(cupti_.callbacks.contains({kDriverDomain, callback})) << callback;
  }
  EXPECT_FALSE(cupti_.callbacks.contains({kDriverDomain, fakes::kLaunchKernel}));
}

TEST_F(Subscriptions, TellOfAllocationsWithTheDeviceOfTheContext) {
  collector_->watch_allocations();
  allocate(4096, 100);
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].address, 4096U);
  EXPECT_EQ(heard[0].bytes, 100U);
  EXPECT_EQ(heard[0].device, 1);
  EXPECT_EQ(heard[0].context, reinterpret_cast<uint64_t>(fakes::Cuda::primary(1)));
}

TEST_F(Subscriptions, TellOfRefusedAllocations) {
  collector_->watch_allocations();
  allocate(0, 100, 2);
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].result, 2);
}

TEST_F(Subscriptions, TellWhenTheCallBegan) {
  collector_->watch_allocations();
  cuMemFree_v2_params params{4096};
  uint64_t inside = 0;
  cupti_.allocation(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, &params, 0, nullptr, [&] { inside = base::ticks(); });
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_LE(heard[0].began_ticks, inside);
  EXPECT_GE(heard[0].ended_ticks, inside);
}

TEST_F(Subscriptions, KnowNoDeviceWhereCuptiTellsNone) {
  driver::Cupti table = cupti_.table();
  table.get_device_id = nullptr;
  collector_ = std::make_unique<Collector>(table);
  collector_->watch_allocations();
  allocate(4096, 100);
  EXPECT_EQ(heard.at(0).device, base::kUnknownDevice);
}

TEST_F(Subscriptions, LogNoCallsForAWatchAlone) {
  collector_->watch_allocations();
  logged();
  allocate(4096, 100);
  EXPECT_EQ(logged(), 0U);
}

TEST_F(Subscriptions, LogCallsForARecordingBesideAWatch) {
  collector_->watch_allocations();
  collector_->start({});
  logged();
  allocate(4096, 100);
  EXPECT_EQ(logged(), 2U);
  EXPECT_EQ(heard.size(), 1U);
}

TEST_F(Subscriptions, LogOnlyWhatARecordingAskedFor) {
  collector_->watch_allocations();
  collector_->start({});
  logged();
  cuMemUnmap_params params{4096, 100};
  cupti_.allocation(CUPTI_DRIVER_TRACE_CBID_cuMemUnmap, &params);
  EXPECT_EQ(logged(), 0U);
  EXPECT_EQ(heard.size(), 1U);
}

TEST_F(Subscriptions, TellNobodyOfAllocationsInARecordingAlone) {
  collector_->start({});
  allocate(4096, 100);
  EXPECT_TRUE(heard.empty());
}

TEST_F(Subscriptions, AreOneForBothWhicheverComesFirst) {
  collector_->watch_allocations();
  EXPECT_EQ(collector_->start({}), Tier::Sole);
  EXPECT_EQ(cupti_.subscriptions, 1);
  collector_->stop();
  collector_->unwatch_allocations();
  EXPECT_EQ(collector_->start({}), Tier::Sole);
  EXPECT_EQ(collector_->watch_allocations(), "");
  EXPECT_EQ(cupti_.subscriptions, 2);
}

TEST_F(Subscriptions, LeaveToTheWatchWhatItNeedsAfterTheRecording) {
  const Callbacks alone = of_a_watch();
  for (const bool watch_first : {true, false}) {
    if (watch_first) {
      collector_->watch_allocations();
    }
    collector_->start({});
    collector_->watch_allocations();
    collector_->stop();
    EXPECT_EQ(cupti_.callbacks, alone);
    EXPECT_TRUE(cupti_.kinds.empty());
    heard.clear();
    allocate(4096, 100);
    EXPECT_EQ(heard.size(), 1U);
    collector_->unwatch_allocations();
    EXPECT_EQ(cupti_.subscribed, 0);
  }
}

TEST_F(Subscriptions, LeaveToTheRecordingWhatItNeedsAfterTheWatch) {
  const Callbacks alone = of_a_recording();
  for (const bool watch_first : {true, false}) {
    if (watch_first) {
      collector_->watch_allocations();
    }
    collector_->start({});
    collector_->watch_allocations();
    collector_->unwatch_allocations();
    EXPECT_EQ(cupti_.callbacks, alone);
    EXPECT_EQ(collector_->tier(), Tier::Sole);
    logged();
    cupti_.call(fakes::kLaunchKernel);
    EXPECT_EQ(logged(), 2U);
    collector_->stop();
    EXPECT_EQ(cupti_.subscribed, 0);
  }
}

TEST_F(Subscriptions, StayWithTheWatchWhenARecordingGivesUp) {
  collector_->watch_allocations();
  cupti_.refused_kinds[kConcurrentKernel] = 38;
  EXPECT_EQ(collector_->start({}), Tier::None);
  EXPECT_EQ(collector_->why(), "cuptiActivityEnable failed with CUPTI_ERROR_FAKE (38)");
  allocate(4096, 100);
  EXPECT_EQ(heard.size(), 1U);
}

TEST_F(Subscriptions, AreWatchedOnceHoweverOftenAsked) {
  collector_->watch_allocations();
  EXPECT_EQ(collector_->watch_allocations(), "");
  EXPECT_EQ(cupti_.subscriptions, 1);
  collector_->unwatch_allocations();
  collector_->unwatch_allocations();
  EXPECT_EQ(cupti_.unsubscriptions, 1);
}

TEST_F(Subscriptions, TellTheWatchWhoHoldsTheSlot) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  cupti_.holder = "nsys";
  EXPECT_EQ(collector_->watch_allocations(), "another tool (nsys) holds CUPTI in this process");
  EXPECT_FALSE(collector_->watches_allocations());
}

TEST_F(Subscriptions, DoNotLetAWatchChangeWhatARecordingSays) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  cupti_.holder = "nsys";
  collector_->start({.may_share = true});
  cupti_.holder = "ncu";
  collector_->watch_allocations();
  EXPECT_EQ(collector_->holder(), "nsys");
  EXPECT_EQ(collector_->tier(), Tier::Shared);
  collector_->unwatch_allocations();
  EXPECT_EQ(cupti_.kinds.count(kConcurrentKernel), 1U);
}

TEST_F(Subscriptions, CountContextsAndCode) {
  collector_->watch_allocations();
  const std::string image = fakes::Cubin().add({".text.kernel", 5000}).call("vprintf").image();
  const ModuleCallbackData module{1, image.size(), image.data()};
  cupti_.resource(kContextCreated, fakes::Cuda::primary(0));
  cupti_.resource(kModuleLoaded, nullptr, &module);
  cupti_.resource(kModuleLoaded, nullptr, &module);
  cupti_.resource(kModuleLoaded, nullptr, nullptr);
  EXPECT_EQ(collector_->loaded().contexts, 1U);
  EXPECT_EQ(collector_->loaded().modules, 3U);
  EXPECT_EQ(collector_->loaded().code_bytes, 10000U);
  EXPECT_EQ(collector_->loaded().services, kPrintf);
}

TEST_F(Subscriptions, TellOfContextsThatGo) {
  collector_->watch_allocations();
  cupti_.resource(kContextDestroyStarting, fakes::Cuda::primary(0));
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].step, AllocationStep::ContextGone);
  EXPECT_EQ(heard[0].context, reinterpret_cast<uint64_t>(fakes::Cuda::primary(0)));
}

TEST_F(Subscriptions, BearSwitchingOnTwoThreadsWhileOthersAllocate) {
  static std::atomic<int> told;
  told = 0;
  base::allocation_sink = [](const DriverAllocation&) noexcept { ++told; };
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int round = 0; round < 500; ++round) {
      collector_->start({});
      collector_->stop();
    }
    done = true;
  });
  threads.emplace_back([&] {
    while (!done) {
      collector_->watch_allocations();
      collector_->unwatch_allocations();
    }
  });
  threads.emplace_back([&] {
    while (!done) {
      allocate(4096, 100);
    }
  });
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(cupti_.subscribed, 0);
  collector_->watch_allocations();
  told = 0;
  allocate(4096, 100);
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace gpuscope::activity
