// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fakes/cuda.h"
#include "gpuscope/timing/context.h"

namespace gpuscope::timing {
namespace {

using fakes::Cuda;
using testing::HasSubstr;
using testing::StartsWith;

/// What a call complains of; empty when it does not.
template <typename Failure>
std::string complaint(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

class Events : public testing::Test {
 protected:
  Events() : cuda_(Cuda::reset()), pools_(make()) {}

  EventPools make() {
    cuda_.devices = 2;
    return EventPools(cuda_.table());
  }
  std::unique_ptr<Event> event(EventOptions options = {}, int device = 0) {
    return std::make_unique<Event>(pools_.of(device), options);
  }

  Cuda& cuda_;
  EventPools pools_;
};

TEST_F(Events, TellTheMillisecondsBetweenThem) {
  const auto start = event();
  const auto end = event();
  start->record(0);
  end->record(Cuda::stream(0));
  EXPECT_DOUBLE_EQ(start->elapsed_time(*end), 1.0);
  EXPECT_DOUBLE_EQ(end->elapsed_time(*start), -1.0);
}

TEST_F(Events, OfADeviceThatWasResetComeFromAnotherPool) {
  const auto before = event();
  cuda_.context_id = 2;
  const auto pool = pools_.of(0);
  EXPECT_EQ(pool->counts().created, 0U);
  EXPECT_EQ(pools_.of(0), pool);
}

TEST_F(Events, ComeFromThePoolAndGoBack) {
  for (int round = 0; round < 5000; ++round) {
    const auto start = event();
    const auto end = event();
    start->record(0);
    end->record(0);
  }
  EXPECT_EQ(cuda_.created, 2);
  const EventPool::Counts counts = pools_.counts(0);
  EXPECT_EQ(counts.created, 2U);
  EXPECT_EQ(counts.in_use, 0U);
  EXPECT_EQ(counts.free, 2U);
}

TEST_F(Events, OfThePoolAreNeverDestroyed) {
  {
    EventPools pools(cuda_.table());
    const auto one = std::make_unique<Event>(pools.of(0), EventOptions{});
  }
  EXPECT_EQ(cuda_.created, 1);
  EXPECT_EQ(cuda_.destroyed, 0);
}

std::atomic<bool> makes_event{false};
std::atomic<bool> may_go_on{false};

TEST_F(Events, ArePassedOverInTheChildOfAForkWhileAnotherThreadMakesOne) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP();
#endif
  auto held = event();
  driver::Cuda slow = cuda_.table();
  slow.event_create = [](driver::CuEvent*, unsigned) {
    makes_event = true;
    while (!may_go_on) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 2;  // out of memory
  };
  const auto pool = std::make_shared<EventPool>(slow, 0);
  std::thread making([&] { EXPECT_THROW(pool->take(), base::CudaError); });
  while (!makes_event) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that hangs says no
    pool->give_back(nullptr);
    const std::string why = complaint<base::NotAvailable>([&] { pool->take(); });
    _exit(why.find("forked") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  may_go_on = true;
  making.join();
  EXPECT_EQ(status, 0);
}

TEST_F(Events, ThatBlockOrAreSharedOrDoNotTimeAreNotPooled) {
  event({.timing = true, .blocking = true});
  event({.timing = false});
  event({.timing = false, .interprocess = true});
  EXPECT_EQ(cuda_.created, 3);
  EXPECT_EQ(cuda_.destroyed, 3);
  EXPECT_EQ(pools_.counts(0).created, 0U);
}

TEST_F(Events, AreMadeWithTheFlagsTheyNeed) {
  const auto blocking = event({.timing = true, .blocking = true});
  const auto shared = event({.timing = false, .interprocess = true});
  EXPECT_EQ(cuda_.events[reinterpret_cast<driver::CuEvent>(blocking->handle())].flags, 1U);
  EXPECT_EQ(cuda_.events[reinterpret_cast<driver::CuEvent>(shared->handle())].flags, 6U);
}

TEST_F(Events, OfOnePoolServeManyThreads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this] {
      for (int round = 0; round < 2000; ++round) {
        const auto taken = pools_.of(0)->take();
        pools_.of(0)->give_back(taken);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_LE(cuda_.created, 4);
  EXPECT_EQ(pools_.counts(0).in_use, 0U);
}

TEST_F(Events, ThatCannotBeMadeLeaveThePoolAsItWas) {
  cuda_.refuse_events = true;
  EXPECT_THROW(event(), base::CudaError);
  cuda_.refuse_events = false;
  EXPECT_EQ(pools_.counts(0).in_use, 0U);
  event();
  EXPECT_EQ(pools_.counts(0).free, 1U);
}

TEST_F(Events, LeaveTheCallersContextCurrent) {
  cuda_.current = Cuda::context(7);
  {
    const auto start = event({.timing = true, .blocking = true});
    start->record(0);
    start->synchronize();
  }
  EXPECT_EQ(cuda_.current, Cuda::context(7));
}

TEST_F(Events, RefuseAStreamOfAnotherDevice) {
  const auto start = event();
  EXPECT_EQ(complaint<base::InvalidArgument>([&] { start->record(Cuda::stream(1)); }),
            "stream is of device 1; this event is of device 0 and records on that device's streams only");
  EXPECT_FALSE(start->recorded());
}

TEST_F(Events, SayWhatTheDriverSaysOfAStreamItRefuses) {
  const auto start = event();
  cuda_.refuse_records = true;
  EXPECT_THAT(complaint<base::CudaError>([&] { start->record(0); }), HasSubstr("cuEventRecord failed"));
}

TEST_F(Events, HaveNoTimeBeforeTheyAreRecorded) {
  const auto start = event();
  const auto end = event();
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)start->elapsed_time(*end); }),
              StartsWith("the start event has not been recorded"));
  start->record(0);
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)start->elapsed_time(*end); }),
              StartsWith("end has not been recorded"));
}

TEST_F(Events, DoNotTellWhatThePoolsLastUserRecorded) {
  cuda_.done = false;
  event()->record(0);
  const auto again = event();
  EXPECT_TRUE(again->query());
  EXPECT_EQ(again->synchronize(), 0.0);
  again->wait(0, 0);
  EXPECT_EQ(cuda_.waited_in, nullptr);
}

TEST_F(Events, HaveNoTimeWithoutTiming) {
  const auto start = event();
  const auto end = event({.timing = false});
  start->record(0);
  end->record(0);
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)start->elapsed_time(*end); }),
              StartsWith("end was made without timing"));
}

TEST_F(Events, HaveNoTimeBeforeTheGpuReachesThem) {
  cuda_.done = false;
  const auto start = event();
  const auto end = event();
  start->record(0);
  end->record(0);
  EXPECT_FALSE(end->query());
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)start->elapsed_time(*end); }),
              HasSubstr("not been reached"));
}

TEST_F(Events, OfTwoDevicesAreNotCompared) {
  const auto start = event({}, 0);
  const auto end = event({}, 1);
  start->record(0);
  end->record(0);
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)start->elapsed_time(*end); }),
              StartsWith("end is of device 1; the start event is of device 0"));
}

TEST_F(Events, HoldBackTheDefaultStreamOfTheDeviceThatIsMeant) {
  const auto start = event({}, 0);
  start->record(0);
  start->wait(0, 1);
  EXPECT_EQ(cuda_.waited_in, Cuda::primary(1));
  start->wait(Cuda::stream(0), 0);
  EXPECT_EQ(cuda_.waited_in, Cuda::primary(0));
}

TEST_F(Events, ForGraphsAreRecordedAsNodesWhileAStreamCaptures) {
  const auto inside = event({.external = true});
  cuda_.capturing = 1;
  inside->record(Cuda::stream(0));
  EXPECT_TRUE(cuda_.events[reinterpret_cast<driver::CuEvent>(inside->handle())].external);
}

TEST_F(Events, AreNotRecordedIntoGraphsWhereThatIsNotWanted) {
  const auto start = event();
  cuda_.capturing = 1;
  EXPECT_FALSE(start->record(Cuda::stream(0), false));
  EXPECT_FALSE(start->recorded());
  cuda_.capturing = 0;
  EXPECT_TRUE(start->record(Cuda::stream(0), false));
}

TEST_F(Events, OfAGraphAreNeverAskedFor) {
  const auto start = event();
  const auto end = event();
  end->record(0);
  cuda_.capturing = 1;
  start->record(Cuda::stream(0));
  cuda_.capturing = 0;
  cuda_.asked = 0;
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)start->query(); }),
              StartsWith("the event was recorded into a CUDA graph"));
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { start->synchronize(); }),
              StartsWith("the event was recorded into a CUDA graph"));
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)start->elapsed_time(*end); }),
              StartsWith("the start event was recorded into a CUDA graph"));
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)end->elapsed_time(*start); }),
              StartsWith("end was recorded into a CUDA graph"));
  EXPECT_EQ(cuda_.asked, 0);
}

TEST_F(Events, OfAGraphCanBeRecordedAnew) {
  const auto start = event();
  cuda_.capturing = 1;
  start->record(Cuda::stream(0));
  cuda_.capturing = 0;
  start->record(Cuda::stream(0));
  EXPECT_TRUE(start->query());
}

TEST_F(Events, NeverTouchTheDefaultStreamWhileAnotherCaptures) {
  const auto start = event();
  start->record(0);
  cuda_.capturing = 1;
  cuda_.recorded = 0;
  cuda_.waited_in = nullptr;
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { start->record(0); }),
              StartsWith("stream is the default stream while another stream"));
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { start->wait(0, 0); }),
              StartsWith("stream is the default stream while another stream"));
  EXPECT_EQ(cuda_.recorded, 0);
  EXPECT_EQ(cuda_.waited_in, nullptr);
}

TEST_F(Events, ThatProcessesShareCannotTime) {
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { event({.timing = true, .interprocess = true}); }),
              StartsWith("interprocess is True"));
  EXPECT_EQ(cuda_.created, 0);
}

TEST_F(Events, GoToOtherProcesses) {
  const auto own = event({.timing = false, .interprocess = true});
  const std::string handle = own->ipc_handle();
  EXPECT_EQ(handle.size(), 64U);
  const Event theirs(pools_.of(0), handle);
  EXPECT_EQ(theirs.handle(), own->handle());
  EXPECT_TRUE(theirs.recorded());
}

TEST_F(Events, ThatAreNotSharedHaveNoHandleToShare) {
  const auto own = event();
  EXPECT_THAT(complaint<base::InvalidArgument>([&] { (void)own->ipc_handle(); }), StartsWith("interprocess was False"));
}

TEST_F(Events, RefuseAHandleOfAnotherLength) {
  EXPECT_EQ(complaint<base::InvalidArgument>([&] { const Event theirs(pools_.of(0), std::string("short")); }),
            "handle has 5 bytes; accepted are the 64 bytes that ipc_handle() gave");
}

TEST_F(Events, AskForStatesWithoutSpoilingACapture) {
  const auto start = event();
  start->record(0);
  const int before = cuda_.capture_mode_exchanges;
  start->query();
  EXPECT_EQ(cuda_.capture_mode_exchanges, before + 2);
}

TEST_F(Events, AreNotAvailableWithoutADriver) {
  driver::Cuda none;
  EventPools pools(none);
  EXPECT_THAT(complaint<base::NotAvailable>([&] { pools.of(0); }), StartsWith("the GPU is not available"));
  EXPECT_EQ(pools.counts(0).created, 0U);
}

TEST_F(Events, AreNotAvailableWhereTheDriverFindsNoDevice) {
  cuda_.initialized = false;
  EXPECT_THAT(complaint<base::NotAvailable>([&] { event(); }), HasSubstr("cuInit failed with CUDA_ERROR_FAKE"));
}

TEST_F(Events, AreNotAvailableOnADeviceThatIsNotThere) {
  EXPECT_THAT(complaint<base::NotAvailable>([&] { event({}, 5); }), HasSubstr("this process sees 2 devices"));
}

TEST_F(Events, KnowTheDeviceOfAStream) {
  EXPECT_EQ(stream_device(cuda_.table(), Cuda::stream(1)), 1);
  EXPECT_EQ(stream_device(cuda_.table(), 0), 0);
  cuda_.current = Cuda::primary(1);
  EXPECT_EQ(stream_device(cuda_.table(), 0), 1);
  EXPECT_EQ(cuda_.current, Cuda::primary(1));
  EXPECT_EQ(stream_device(driver::Cuda{}, 1234), 0);
}

TEST_F(Events, WaitForNothingWhereNoContextIs) {
  EXPECT_EQ(synchronize(cuda_.table(), 0), 0.0);
  EXPECT_EQ(cuda_.contexts_retained, 0);
  cuda_.active_contexts = 1;
  EXPECT_GT(synchronize(cuda_.table(), 0), 0.0);
  EXPECT_EQ(cuda_.contexts_retained, 0);
}

TEST_F(Events, ArePlacedOnTheHostsClock) {
  const HostAnchors anchors(pools_.of(0));
  const HostAnchor anchor = anchors.take(1'000'000'000);
  ASSERT_NE(anchor.event, nullptr);
  EXPECT_GT(anchor.host_ns, 0);
  EXPECT_GE(anchor.error_ns, 0);
}

TEST_F(Events, AreNotPlacedWhenTheGpuDoesNotAnswer) {
  cuda_.done = false;
  const HostAnchors anchors(pools_.of(0));
  EXPECT_EQ(anchors.take(1000).event, nullptr);
  EXPECT_EQ(pools_.counts(0).in_use, 0U);
}

}  // namespace
}  // namespace gpuscope::timing
