// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/collector.h"

#include <cupti.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fakes/cubins.h"
#include "fakes/cuda.h"
#include "fakes/cupti.h"
#include "gpuscope/activity/calls.h"
#include "gpuscope/activity/layout.h"
#include "gpuscope/base/event_logs.h"

namespace gpuscope::activity {
namespace {

using base::Event;
using base::Op;
using fakes::Cupti;

class Collectors : public testing::Test {
 protected:
  Collectors() : cupti_(Cupti::reset()) {}

  std::unique_ptr<Collector> make(uint32_t version = 130001) {
    return std::make_unique<Collector>(cupti_.table(version));
  }
  static std::vector<Event> logged() {
    std::vector<Event> events;
    base::EventLog& log = *base::EventLogs::current();
    log.read(log.end(), [&](const Event& event) { events.push_back(event); });
    return events;
  }

  Cupti& cupti_;
};

TEST_F(Collectors, SubscribeAndSwitchKindsOn) {
  const auto collector = make();
  EXPECT_EQ(collector->start({}), Tier::Sole);
  EXPECT_EQ(cupti_.subscribed, 1);
  EXPECT_EQ(cupti_.kinds, (std::set<int>{kMemcpy, kMemcpyPeer, kMemset, kConcurrentKernel}));
}

TEST_F(Collectors, NeverSwitchSerializingKindsOn) {
  const auto collector = make();
  collector->start({.graph_trace = true, .synchronization = true, .may_share = true});
  EXPECT_EQ(cupti_.kinds.count(3), 0U);   // KERNEL
  EXPECT_EQ(cupti_.kinds.count(39), 0U);  // EXTERNAL_CORRELATION
}

TEST_F(Collectors, SwitchOptionalKindsOnWhenAsked) {
  const auto collector = make();
  collector->start({.graph_trace = true, .synchronization = true, .overheads = true});
  EXPECT_EQ(cupti_.kinds.count(kGraphTrace), 1U);
  EXPECT_EQ(cupti_.kinds.count(kOverhead), 1U);
  EXPECT_EQ(cupti_.kinds.count(kSynchronization), 1U);
}

TEST_F(Collectors, RecordMemoryWithItsLibraryWhenAsked) {
  const auto collector = make();
  collector->start({.memory = true});
  EXPECT_EQ(cupti_.kinds.count(kMemory), 1U);
  EXPECT_EQ(cupti_.kinds.count(kMemoryPool), 1U);
  EXPECT_TRUE(cupti_.names_libraries);
  EXPECT_TRUE(collector->names_libraries());
  EXPECT_EQ(collector->memory_why(), "");
  collector->stop();
  EXPECT_TRUE(cupti_.kinds.empty());
  EXPECT_FALSE(cupti_.names_libraries);
}

TEST_F(Collectors, RecordMemoryWithoutItsLibraryBeforeCuda126) {
  driver::Cupti table = cupti_.table(22);
  table.enable_allocation_source = nullptr;
  Collector collector(table);
  collector.start({.memory = true});
  EXPECT_EQ(cupti_.kinds.count(kMemory), 1U);
  EXPECT_FALSE(collector.names_libraries());
}

TEST_F(Collectors, RecordNoMemoryUnlessAsked) {
  const auto collector = make();
  collector->start({});
  EXPECT_EQ(cupti_.kinds.count(kMemory) + cupti_.kinds.count(kMemoryPool), 0U);
  EXPECT_FALSE(cupti_.names_libraries);
}

TEST_F(Collectors, GoOnWithoutMemoryWhenItIsRefused) {
  cupti_.refused_kinds = {{kMemory, 5}};
  const auto collector = make();
  EXPECT_EQ(collector->start({.memory = true}), Tier::Sole);
  EXPECT_EQ(collector->memory_why(), "cuptiActivityEnable failed with CUPTI_ERROR_FAKE (5)");
  EXPECT_FALSE(collector->names_libraries());
  collector->start({});
  EXPECT_EQ(collector->memory_why(), "");
}

TEST_F(Collectors, WatchEveryCallOfTheList) {
  const auto collector = make();
  collector->start({});
  for (const DriverCall& call : driver_calls()) {
    EXPECT_EQ(cupti_.callbacks.count({kDriverDomain, call.callback}), 1U) << call.name;
  }
}

TEST_F(Collectors, GoWithoutWhenTheSlotIsTaken) {
  for (const driver::CuptiResult code : {driver::kCuptiMultipleSubscribers, driver::kCuptiMaxLimitReached}) {
    Cupti::reset().subscribe_code = code;
    const auto collector = make();
    EXPECT_EQ(collector->start({}), Tier::None);
    EXPECT_EQ(collector->why(), "another tool holds CUPTI in this process");
    EXPECT_TRUE(cupti_.kinds.empty());
  }
}

TEST_F(Collectors, NameTheHolderOfTheSlot) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  cupti_.holder = "nsys";
  const auto collector = make();
  collector->start({});
  EXPECT_EQ(collector->holder(), "nsys");
  EXPECT_EQ(collector->why(), "another tool (nsys) holds CUPTI in this process");
}

TEST_F(Collectors, AskTheOldWayWhereTheNewOneIsMissing) {
  driver::Cupti table = cupti_.table(26);
  table.subscribe_v2 = nullptr;
  Collector collector(table);
  EXPECT_EQ(collector.start({}), Tier::Sole);
  cupti_.subscribe_code = driver::kCuptiMaxLimitReached;
  EXPECT_EQ(collector.start({}), Tier::None);
  EXPECT_EQ(collector.why(), "another tool holds CUPTI in this process");
}

TEST_F(Collectors, TellOtherRefusalsByNameAndCode) {
  cupti_.subscribe_code = 15;
  const auto collector = make();
  EXPECT_EQ(collector->start({}), Tier::None);
  EXPECT_EQ(collector->why(), "cuptiSubscribe failed with CUPTI_ERROR_FAKE (15)");
}

TEST_F(Collectors, ShareRecordsWithAnIdleHolder) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  const auto collector = make();
  EXPECT_EQ(collector->start({.may_share = true}), Tier::Shared);
  EXPECT_EQ(cupti_.kinds.count(kDriver), 1U);
  EXPECT_EQ(cupti_.kinds.count(kRuntime), 1U);
  EXPECT_EQ(cupti_.kinds.count(kConcurrentKernel), 1U);
  collector->stop();
  EXPECT_TRUE(cupti_.kinds.empty());
  EXPECT_EQ(cupti_.unsubscriptions, 0);
}

TEST_F(Collectors, DoNotStartOnWhatCannotTrace) {
  driver::Cupti table = cupti_.table();
  table.flush_all = nullptr;
  Collector collector(table);
  EXPECT_EQ(collector.start({}), Tier::None);
  EXPECT_EQ(cupti_.subscriptions, 0);
}

TEST_F(Collectors, GoOnWhenAttributesAreRefused) {
  cupti_.refused_attributes = true;
  EXPECT_EQ(make()->start({}), Tier::Sole);
}

TEST_F(Collectors, LeaveZeroingOfBuffersAsItWas) {
  cupti_.attributes = {{kZeroedBuffers, 0}};
  const auto collector = make();
  collector->start({});
  EXPECT_EQ(cupti_.attributes[kZeroedBuffers], 1);
  collector->stop();
  EXPECT_EQ(cupti_.attributes[kZeroedBuffers], 0);
}

TEST_F(Collectors, HaveThreadsShareBuffersForGood) {
  cupti_.attributes = {{kPerThreadBuffers, 1}};
  const auto collector = make();
  collector->start({});
  EXPECT_EQ(cupti_.attributes[kPerThreadBuffers], 0);
  collector->stop();
  EXPECT_EQ(cupti_.attributes[kPerThreadBuffers], 0);
}

TEST_F(Collectors, SetNoAttributeThatTheyCouldNotRead) {
  driver::Cupti table = cupti_.table();
  table.get_attribute = [](int, size_t*, void*) { return 1; };
  cupti_.attributes = {{kZeroedBuffers, 0}};
  Collector collector(table);
  collector.start({});
  EXPECT_EQ(cupti_.attributes[kZeroedBuffers], 0);
}

TEST_F(Collectors, GoOnWithoutOptionalFunctions) {
  driver::Cupti table = cupti_.table();
  table.set_attribute = nullptr;
  table.set_thread_id_type = nullptr;
  table.get_num_dropped = nullptr;
  table.get_graph_node_id = nullptr;
  table.register_timestamp = nullptr;
  Collector collector(table);
  EXPECT_EQ(collector.start({}), Tier::Sole);
  EXPECT_EQ(collector.dropped(), 0U);
  cupti_.node(5);
}

TEST_F(Collectors, TakeEverythingBackWhenKernelsAreRefused) {
  cupti_.refused_kinds[kConcurrentKernel] = 38;
  const auto collector = make();
  EXPECT_EQ(collector->start({}), Tier::None);
  EXPECT_EQ(collector->why(), "cuptiActivityEnable failed with CUPTI_ERROR_FAKE (38)");
  EXPECT_TRUE(cupti_.kinds.empty());
  EXPECT_EQ(cupti_.subscribed, 0);
}

TEST_F(Collectors, TakeEverythingBackWhenBuffersAreRefused) {
  cupti_.register_code = 1;
  const auto collector = make();
  EXPECT_EQ(collector->start({}), Tier::None);
  EXPECT_EQ(collector->why(), "cuptiActivityRegisterCallbacks failed with CUPTI_ERROR_FAKE (1)");
  EXPECT_EQ(cupti_.subscribed, 0);
}

TEST_F(Collectors, UnsubscribeOnce) {
  const auto collector = make();
  collector->start({});
  collector->stop();
  collector->stop();
  EXPECT_EQ(cupti_.unsubscriptions, 1);
}

TEST_F(Collectors, StartAndStopThousandsOfTimes) {
  const auto collector = make();
  for (int round = 0; round < 3000; ++round) {
    ASSERT_EQ(collector->start({}), Tier::Sole);
    collector->stop();
  }
  EXPECT_EQ(cupti_.subscribed, 0);
  EXPECT_TRUE(cupti_.kinds.empty());
  EXPECT_EQ(collector->buffers().count(), 0U);
}

TEST_F(Collectors, TakeTheirBuffersBackWhenNoMoreAreAskedFor) {
  const auto collector = make();
  collector->start({});
  std::set<int> kinds = {kConcurrentKernel};
  cupti_.on_flush = [&](bool) { kinds = cupti_.kinds; };
  collector->stop();
  EXPECT_TRUE(kinds.empty());
}

TEST_F(Collectors, ForceNoFlushWhereBuffersComeHome) {
  const auto collector = make();
  collector->start({});
  cupti_.finish(fakes::kernel_record({}));
  collector->stop();
  EXPECT_EQ(collector->buffers().lent(), 0U);
  EXPECT_EQ(cupti_.forced_flushes, 0);
}

TEST_F(Collectors, ForceAFlushForBuffersOfWorkThatGoesOn) {
  const auto collector = make();
  collector->start({});
  uint8_t* buffer = nullptr;
  size_t size = 0;
  size_t most = 0;
  cupti_.requested(&buffer, &size, &most);
  cupti_.on_flush = [&](bool forced) {
    if (forced) {
      cupti_.completed(nullptr, 0, buffer, size, 0);
    }
  };
  collector->stop();
  EXPECT_EQ(cupti_.forced_flushes, 1);
  EXPECT_EQ(collector->buffers().lent(), 0U);
}

TEST_F(Collectors, HaveRawTimestampsWhileTheyAreWanted) {
  const auto collector = make();
  collector->start({.raw_timestamps = true});
  EXPECT_TRUE(collector->is_raw());
  EXPECT_EQ(cupti_.raw_timestamps, std::vector<int>{1});
  collector->stop();
  EXPECT_FALSE(collector->is_raw());
  EXPECT_EQ(cupti_.raw_timestamps, (std::vector<int>{1, 0}));
  collector->start({});
  EXPECT_EQ(cupti_.raw_timestamps.size(), 2U);
}

TEST_F(Collectors, GiveBuffersBackBeforeTimestampsAreOfAnotherClock) {
  const auto collector = make();
  std::vector<std::size_t> switched;
  cupti_.on_flush = [&](bool) { switched.push_back(cupti_.raw_timestamps.size()); };
  collector->start({.raw_timestamps = true});
  collector->stop();
  EXPECT_EQ(switched.front(), 0U);
  EXPECT_EQ(switched.back(), 1U);
}

TEST_F(Collectors, LeaveTimestampsAsTheyAreWhereAnotherClientHasRecordsToo) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  const auto collector = make();
  EXPECT_EQ(collector->start({.may_share = true, .raw_timestamps = true}), Tier::Shared);
  EXPECT_FALSE(collector->is_raw());
  EXPECT_TRUE(cupti_.raw_timestamps.empty());
}

TEST_F(Collectors, LeaveTimestampsAsTheyAreInAnOlderCupti) {
  Collector collector(cupti_.table(28));
  collector.start({.raw_timestamps = true});
  EXPECT_FALSE(collector.is_raw());
  EXPECT_TRUE(cupti_.raw_timestamps.empty());
}

TEST_F(Collectors, SwitchOffOnlyWhatTheySwitchedOn) {
  cupti_.kinds.insert(kSynchronization);  // by another client
  const auto collector = make();
  cupti_.refused_kinds[kSynchronization] = 1;
  collector->start({.synchronization = true});
  collector->stop();
  EXPECT_EQ(cupti_.kinds.count(kSynchronization), 1U);
  EXPECT_EQ(cupti_.kinds.count(kConcurrentKernel), 0U);
}

TEST_F(Collectors, MayEndTheirRecordsBeforeTheyStop) {
  const auto collector = make();
  collector->start({});
  collector->disable_kinds();
  EXPECT_TRUE(cupti_.kinds.empty());
  EXPECT_EQ(cupti_.forced_flushes, 0);
  EXPECT_EQ(cupti_.subscribed, 1);
}

TEST_F(Collectors, LogBothEndsOfADriverCall) {
  const auto collector = make();
  collector->start({});
  logged();
  const uint32_t correlation = cupti_.call(fakes::kLaunchKernel, 700);
  const std::vector<Event> events = logged();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(static_cast<Op>(events[0].op), Op::CallEnter);
  EXPECT_EQ(events[0].id, correlation);
  EXPECT_EQ(events[0].detail, fakes::kLaunchKernel);
  EXPECT_EQ(static_cast<Op>(events[1].op), Op::CallExit);
  EXPECT_EQ(events[1].id, 700U);
  EXPECT_LE(events[0].word, events[1].word);
}

TEST_F(Collectors, LogGraphNodesAndWhatTheyWereClonedFrom) {
  const auto collector = make();
  collector->start({});
  logged();
  cupti_.node(11);
  cupti_.node(12, 11);
  const std::vector<Event> events = logged();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].word, 11U);
  EXPECT_EQ(events[1].word, 12U);
  EXPECT_EQ(static_cast<Op>(events[2].op), Op::NodeOrigin);
  EXPECT_EQ(events[2].word, 11U);
}

TEST_F(Collectors, CountModuleUnloads) {
  const auto collector = make();
  collector->start({});
  const ResourceCallbackData data{};
  cupti_.callback.load()(cupti_.user_data, kResourceDomain, kModuleUnloadStarting, &data);
  EXPECT_EQ(collector->unloads(), 1U);
}

TEST_F(Collectors, RememberThatCuptiGaveUp) {
  const auto collector = make();
  collector->start({});
  EXPECT_FALSE(collector->broken());
  cupti_.callback.load()(cupti_.user_data, kStateDomain, kFatalError, nullptr);
  EXPECT_TRUE(collector->broken());
}

TEST_F(Collectors, AddUpWhatCuptiDropped) {
  const auto collector = make();
  collector->start({});
  cupti_.dropped = 3;
  EXPECT_EQ(collector->dropped(), 3U);
  cupti_.dropped = 4;
  EXPECT_EQ(collector->dropped(), 7U);
}

TEST_F(Collectors, MoveDeliveredBuffersIntoThePool) {
  const auto collector = make();
  collector->start({});
  cupti_.finish(fakes::kernel_record({}));
  collector->flush(false);
  const BufferPool::Buffer* buffer = collector->buffers().take_completed();
  ASSERT_NE(buffer, nullptr);
  EXPECT_EQ(buffer->valid, 216U);
}

struct Request {
  uint8_t* buffer = nullptr;
  size_t size = 1;
  size_t most = 1;
};

Request request(const Cupti& cupti) {
  Request request;
  cupti.requested(&request.buffer, &request.size, &request.most);
  return request;
}

using Memory = std::vector<std::unique_ptr<uint8_t, decltype(&std::free)>>;

/// What was lent, and never comes back.
Memory exhaust(const Cupti& cupti, Collector& collector) {
  Memory lent;
  while (collector.buffers().count() < BufferPool::kMaxBuffers) {
    lent.emplace_back(request(cupti).buffer, &std::free);
  }
  return lent;
}

TEST_F(Collectors, HaveABufferForEveryThreadThatBeginsToLaunch) {
  const auto collector = make();
  collector->start({});
  std::mutex mutex;
  Memory lent;
  std::vector<std::thread> threads;
  for (int number = 0; number < 64; ++number) {
    threads.emplace_back([&] {
      const std::lock_guard lock(mutex);
      lent.emplace_back(request(cupti_).buffer, &std::free);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(std::ranges::none_of(lent, [](const auto& buffer) { return buffer == nullptr; }));
  EXPECT_EQ(collector->buffers().lent(), 64U);
}

TEST_F(Collectors, RefuseABufferWhereCuptiBearsIt) {
  const auto collector = make(27);
  collector->start({});
  const Memory lent = exhaust(cupti_, *collector);
  const Request refused = request(cupti_);
  EXPECT_EQ(refused.buffer, nullptr);
  EXPECT_EQ(refused.size, 0U);
  EXPECT_EQ(collector->buffers().exhausted(), 1U);
}

TEST_F(Collectors, NeverRefuseABufferWhereCuptiWouldCrash) {
  const auto collector = make(26);
  collector->start({});
  const Memory lent = exhaust(cupti_, *collector);
  const Request scrap = request(cupti_);
  ASSERT_NE(scrap.buffer, nullptr);
  EXPECT_GT(scrap.size, 216U);
  EXPECT_EQ(collector->buffers().exhausted(), 1U);
  cupti_.completed(nullptr, 0, scrap.buffer, scrap.size, 216);
  EXPECT_EQ(collector->buffers().take_completed(), nullptr);
  EXPECT_EQ(collector->buffers().foreign(), 0U);
}

TEST_F(Collectors, CountBuffersOfAnotherClient) {
  const auto collector = make();
  collector->start({});
  uint8_t foreign[64];
  cupti_.completed(nullptr, 0, foreign, sizeof(foreign), 0);
  EXPECT_EQ(collector->buffers().foreign(), 1U);
}

TEST_F(Collectors, AnswerLateCallbacksAfterTheirEnd) {
  make()->start({});
  uint8_t late[64];
  cupti_.completed(nullptr, 0, late, sizeof(late), 0);
  EXPECT_EQ(request(cupti_).buffer, nullptr);
}

TEST_F(Collectors, LogCallsOfManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 2000;
  const auto collector = make();
  collector->start({});
  base::EventLogs::process().each([](base::EventLog& log) { log.skip_all(); });
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([this] {
      for (int count = 0; count < kCalls; ++count) {
        cupti_.call(fakes::kLaunchKernel);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  int events = 0;
  base::EventLogs::process().each([&](base::EventLog& log) { log.read(log.end(), [&](const Event&) { ++events; }); });
  EXPECT_EQ(events, 2 * kThreads * kCalls);
}

TEST(DriverCalls, AreFoundByTheirIds) {
  ASSERT_NE(find_call(fakes::kLaunchKernel), nullptr);
  EXPECT_EQ(find_call(fakes::kLaunchKernel)->name, "cuLaunchKernel");
  EXPECT_EQ(find_call(fakes::kMemcpyAsync)->kind, store::CallKind::Memcpy);
  EXPECT_EQ(find_call(fakes::kGraphLaunch)->kind, store::CallKind::GraphLaunch);
  EXPECT_EQ(find_call(fakes::kCtxSynchronize)->kind, store::CallKind::Sync);
}

TEST(DriverCalls, OfTheRuntimeFollowBehindTheDrivers) {
  constexpr uint32_t kCudaLaunchKernel = 211;
  ASSERT_NE(find_call(kRuntimeCalls + kCudaLaunchKernel), nullptr);
  EXPECT_EQ(find_call(kRuntimeCalls + kCudaLaunchKernel)->name, "cudaLaunchKernel");
}

TEST(DriverCalls, ThatAreNotWatchedAreNotFound) {
  EXPECT_EQ(find_call(0), nullptr);
  EXPECT_EQ(find_call(UINT32_MAX), nullptr);
  EXPECT_EQ(find_call(kRuntimeCalls - 1), nullptr);
}

using base::AllocationStep;
using base::DriverAllocation;

std::vector<DriverAllocation> sink_calls;

using Callbacks = std::set<std::pair<int, uint32_t>>;

class Subscriptions : public testing::Test {
 protected:
  Subscriptions() : cupti_(Cupti::reset()), collector_(std::make_unique<Collector>(cupti_.table())) {
    sink_calls.clear();
    base::allocation_sink = [](const DriverAllocation& allocation) noexcept { sink_calls.push_back(allocation); };
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
  ASSERT_EQ(sink_calls.size(), 1U);
  EXPECT_EQ(sink_calls[0].address, 4096U);
  EXPECT_EQ(sink_calls[0].bytes, 100U);
  EXPECT_EQ(sink_calls[0].device, 1);
  EXPECT_EQ(sink_calls[0].context, reinterpret_cast<uint64_t>(fakes::Cuda::primary(1)));
}

TEST_F(Subscriptions, TellOfRefusedAllocations) {
  collector_->watch_allocations();
  allocate(0, 100, 2);
  ASSERT_EQ(sink_calls.size(), 1U);
  EXPECT_EQ(sink_calls[0].result, 2);
}

TEST_F(Subscriptions, TellWhenTheCallBegan) {
  collector_->watch_allocations();
  cuMemFree_v2_params params{4096};
  uint64_t inside = 0;
  cupti_.allocation(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, &params, 0, nullptr, [&] { inside = base::ticks(); });
  ASSERT_EQ(sink_calls.size(), 1U);
  EXPECT_LE(sink_calls[0].began_ticks, inside);
  EXPECT_GE(sink_calls[0].ended_ticks, inside);
}

TEST_F(Subscriptions, KnowNoDeviceWhereCuptiTellsNone) {
  driver::Cupti table = cupti_.table();
  table.get_device_id = nullptr;
  collector_ = std::make_unique<Collector>(table);
  collector_->watch_allocations();
  allocate(4096, 100);
  EXPECT_EQ(sink_calls.at(0).device, base::kUnknownDevice);
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
  EXPECT_EQ(sink_calls.size(), 1U);
}

TEST_F(Subscriptions, LogOnlyWhatARecordingAskedFor) {
  collector_->watch_allocations();
  collector_->start({});
  logged();
  cuMemUnmap_params params{4096, 100};
  cupti_.allocation(CUPTI_DRIVER_TRACE_CBID_cuMemUnmap, &params);
  EXPECT_EQ(logged(), 0U);
  EXPECT_EQ(sink_calls.size(), 1U);
}

TEST_F(Subscriptions, TellNobodyOfAllocationsInARecordingAlone) {
  collector_->start({});
  allocate(4096, 100);
  EXPECT_TRUE(sink_calls.empty());
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
    sink_calls.clear();
    allocate(4096, 100);
    EXPECT_EQ(sink_calls.size(), 1U);
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
  EXPECT_EQ(sink_calls.size(), 1U);
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
  ASSERT_EQ(sink_calls.size(), 1U);
  EXPECT_EQ(sink_calls[0].step, AllocationStep::ContextDestroyed);
  EXPECT_EQ(sink_calls[0].context, reinterpret_cast<uint64_t>(fakes::Cuda::primary(0)));
}

TEST_F(Subscriptions, BearSwitchingOnTwoThreadsWhileOthersAllocate) {
  static std::atomic<int> calls;
  calls = 0;
  base::allocation_sink = [](const DriverAllocation&) noexcept { ++calls; };
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
  calls = 0;
  allocate(4096, 100);
  EXPECT_EQ(calls, 1);
}

}  // namespace

}  // namespace gpuscope::activity
