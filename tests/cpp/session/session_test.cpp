// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/session.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fakes/clock_kernel.h"
#include "fakes/cuda.h"
#include "fakes/cupti.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/strings.h"

// A test names only the options that it is about.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kMemoryIsMeasured = false;  // the sanitizers keep what was freed
#else
constexpr bool kMemoryIsMeasured = true;
#endif

#if defined(__SANITIZE_THREAD__)
constexpr bool kForksAreTested = false;  // the sanitizer allows no threads in the child
#else
constexpr bool kForksAreTested = true;
#endif

namespace gpuscope::session {
namespace {

constexpr std::chrono::milliseconds kShort(30);

using attribution::Mode;
using fakes::Cuda;
using fakes::Cupti;
using store::kNone;
using store::Store;

// A region of the program, as the bindings record it.
class Region {
 public:
  explicit Region(const char* name) : id_(base::Names::process().intern(name)) {
    const uint32_t listening = base::listening.load(std::memory_order_relaxed);
    session_ = listening >> base::kListenBits;
    if (listening != 0) {
      base::EventLogs::current()->append(base::ticks(), id_, base::Op::Enter);
      timing::RegionTimer* timer = timing::RegionTimer::current().load(std::memory_order_acquire);
      pair_ = timer != nullptr ? timer->begin() : timing::RegionTimer::kNoPair;
    }
  }
  ~Region() {
    const uint32_t listening = base::listening.load(std::memory_order_relaxed);
    if (listening != 0 && listening >> base::kListenBits == session_) {
      timing::RegionTimer* timer = timing::RegionTimer::current().load(std::memory_order_acquire);
      if (timer != nullptr && pair_ != timing::RegionTimer::kNoPair && timer->end(pair_)) {
        base::EventLogs::current()->append(pair_, id_, base::Op::GpuTime);
      }
      base::EventLogs::current()->append(base::ticks(), id_, base::Op::Exit);
    }
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  uint32_t id_;
  uint32_t session_;
  uint32_t pair_ = timing::RegionTimer::kNoPair;
};

class Sessions : public testing::Test {
 protected:
  Sessions() : cuda_(Cuda::reset()), cupti_(Cupti::reset()), vendor_(make_vendor()) {}

  static std::unique_ptr<Vendor> make_vendor() {
    return std::make_unique<Vendor>(Cuda::instance().table(), Cupti::instance().table());
  }
  Session& start(const Options& options = {}) {
    session_ = std::unique_ptr<Session, base::DeleteOwn>(new Session(*vendor_, options));
    return *session_;
  }
  static std::string region_name(const Store& store, uint32_t region) {
    return region == kNone ? "" : std::string(store.strings[store.path.name[store.region.path[region]]]);
  }
  static uint64_t audit(const Store& store, const std::string& key) {
    return std::stoull(std::string(store.find_info("audit." + key)));
  }

  Cuda& cuda_;
  Cupti& cupti_;
  std::unique_ptr<Vendor> vendor_;
  std::unique_ptr<Session, base::DeleteOwn> session_;
};

// -- windows

TEST_F(Sessions, RecordWhatIsLaunchedInsideTheWindow) {
  Session& session = start();
  cupti_.launch("before");
  session.open();
  {
    const Region region("step");
    for (int count = 0; count < 100; ++count) {
      cupti_.launch("inside");
    }
  }
  const auto store = session.cut();
  cupti_.launch("after");
  ASSERT_NE(store, nullptr);
  ASSERT_EQ(store->kernel.size(), 100U);
  for (std::size_t row = 0; row < 100; ++row) {
    EXPECT_EQ(region_name(*store, store->kernel.region[row]), "step");
  }
  EXPECT_EQ(audit(*store, "launches"), 100U);
  EXPECT_EQ(audit(*store, "missing"), 0U);
}

TEST_F(Sessions, ReadTheSystemsClocksInEachWindow) {
  Session& session = start();
  for (int window = 0; window < 2; ++window) {
    session.open();
    std::this_thread::sleep_for(kShort);
    const auto store = session.cut();
    ASSERT_EQ(store->anchor.size(), 1U);
    EXPECT_LT(std::abs(store->anchor.realtime_ns[0] - store->anchor.start_ns[0]), 10'000'000'000);
  }
}

// -- the GPU's own clock

class ClockedSessions : public Sessions {
 protected:
  ClockedSessions() {
    fakes::GpuWork::reset();
    cuda_.active_contexts = 1;
    driver::Cuda table = gpu_.table();
    table.launch_kernel = [](driver::CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             driver::CuStream, void** arguments, void**) {
      Cupti::instance().call(fakes::kLaunchKernel);  // CUPTI sees what we launch, too
      fakes::ClockKernels::instance().launch(arguments);
      return 0;
    };
    vendor_ = std::make_unique<Vendor>(table, cupti_.table());
  }
  ~ClockedSessions() override {
    session_.reset();
    gpu_.wait();
  }
  Session& start_in(Mode mode, std::chrono::nanoseconds clock_wait = std::chrono::minutes(1)) {
    Options options;
    options.settings.mode = mode;
    options.clock_wait = clock_wait;
    return start(options);
  }
  /// A launch, and its kernel with times of the GPU's clock.
  void launch() {
    const uint32_t number = cupti_.call(fakes::kLaunchKernel);
    const uint64_t now_ns = fakes::ClockKernels::now_ns();
    cupti_.finish(fakes::kernel_record({.correlation = number, .start = now_ns, .end = now_ns + 500}));
  }

  fakes::ClockKernels& gpu_ = fakes::ClockKernels::instance();
};

TEST_F(ClockedSessions, TurnTimesOfTheGpusClockIntoTheirOwnInARing) {
  Session& session = start_in(Mode::Ring);
  EXPECT_EQ(cupti_.raw_timestamps, std::vector<int>{1});
  session.open();
  const int64_t before_ns = base::Clock::process().now_ns();
  launch();
  const int64_t after_ns = base::Clock::process().now_ns();
  const auto store = session.stop();
  ASSERT_EQ(store->kernel.size(), 1U);
  constexpr int64_t kWide = 500'000'000;  // a reading on a busy machine; the GPU's clock is seconds ahead
  EXPECT_GE(store->kernel.start_ns[0], before_ns - kWide);
  EXPECT_LE(store->kernel.start_ns[0], after_ns + kWide);
  EXPECT_NEAR(static_cast<double>(store->kernel.duration_ns[0]), 500, 50);
  EXPECT_EQ(audit(*store, "zero_time"), 0U);
  EXPECT_NE(store->find_info("clock.gpu_readings"), "");
  EXPECT_EQ(cupti_.raw_timestamps, (std::vector<int>{1, 0}));
}

TEST_F(ClockedSessions, DoNotCountLaunchesOfTheirOwn) {
  Session& session = start_in(Mode::Aggregate);
  session.open();
  while (gpu_.launched() < 3) {  // the clock is read again and again
    std::this_thread::sleep_for(kShort);
  }
  const auto store = session.stop();
  EXPECT_EQ(audit(*store, "launches"), 0U);
  EXPECT_EQ(audit(*store, "callbacks"), 0U);
  EXPECT_GT(std::stoi(std::string(store->find_info("clock.gpu_readings"))), 1);
}

TEST_F(ClockedSessions, ReadTheClockOnAfterTheDeviceWasReset) {
  Session& session = start_in(Mode::Ring);
  session.open();
  cuda_.context_id = 2;
  const std::size_t before = gpu_.launched();
  while (gpu_.launched() < before + 3) {
    std::this_thread::sleep_for(kShort);
  }
  launch();
  const auto store = session.stop();
  EXPECT_EQ(audit(*store, "zero_time"), 0U);
  EXPECT_GT(std::stoi(std::string(store->find_info("clock.gpu_readings"))), 1);
  EXPECT_EQ(gpu_.registered, 1);  // the first page's, which went with its context
}

TEST_F(ClockedSessions, LeaveTimestampsToCuptiWhereEveryRowIsKept) {
  start_in(Mode::Full);
  EXPECT_TRUE(cupti_.raw_timestamps.empty());
}

TEST_F(ClockedSessions, LeaveTimestampsToCuptiNoLongerOnceItIsOld) {
  Options options;
  options.clock_wait = std::chrono::minutes(1);
  options.old_cupti = std::chrono::nanoseconds(1);
  start(options);
  EXPECT_TRUE(cupti_.raw_timestamps.empty());  // it has only begun
  session_.reset();
  start(options);
  EXPECT_EQ(cupti_.raw_timestamps, std::vector<int>{1});
}

TEST_F(ClockedSessions, HaveTheGpusClockInEachWindowWhereTheyMayComeForHours) {
  Options options;
  options.clock_wait = std::chrono::minutes(1);
  options.repeats = true;
  Session& session = start(options);
  EXPECT_EQ(cupti_.raw_timestamps, std::vector<int>{1});
  for (const bool last : {false, false, true}) {
    session.open();
    const int64_t before_ns = base::Clock::process().now_ns();
    launch();
    const auto store = last ? session.stop() : session.cut();
    ASSERT_EQ(store->kernel.size(), 1U);
    EXPECT_NEAR(static_cast<double>(store->kernel.start_ns[0] - before_ns), 0, 5e8);  // its clock is seconds ahead
    EXPECT_EQ(audit(*store, "zero_time"), 0U);
    EXPECT_NE(store->find_info("clock.gpu_readings"), "");
  }
}

TEST_F(ClockedSessions, ReadNoClockWhereCuptiCannotHaveItsTimes) {
  driver::Cupti cupti = cupti_.table();
  cupti.version = 120900;
  Vendor vendor(vendor_->cuda, cupti);
  Options options;
  options.settings.mode = Mode::Ring;
  const Session session(vendor, options);
  EXPECT_EQ(gpu_.launched(), 0U);
}

TEST_F(ClockedSessions, LeaveTimestampsToCuptiWhereTheGpuIsBusy) {
  gpu_.busy = true;
  start_in(Mode::Ring, std::chrono::milliseconds(1));
  EXPECT_TRUE(cupti_.raw_timestamps.empty());
}

TEST_F(Sessions, RecordOneWindowAfterTheOther) {
  Session& session = start();
  for (uint64_t launches = 0; launches < 5; ++launches) {
    session.open();
    for (uint64_t count = 0; count < launches; ++count) {
      cupti_.launch();
    }
    const auto store = session.cut();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->kernel.size(), launches);
    EXPECT_EQ(audit(*store, "launches"), launches);
  }
}

TEST_F(Sessions, LeaveOutWhatIsLaunchedWhileTheGpuIsSwitchedOff) {
  Session& session = start();
  session.switch_gpu(false);  // of no window: it has no effect on the next
  session.open();
  for (int round = 0; round < 3; ++round) {
    cupti_.launch("kept");
    session.switch_gpu(false);
    cupti_.launch("left out");
    session.switch_gpu(true);
  }
  cupti_.launch("kept");
  session.switch_gpu(false);
  const auto store = session.cut();
  EXPECT_EQ(store->kernel.size(), 4U);
  EXPECT_EQ(store->api.size(), 4U);
  EXPECT_EQ(audit(*store, "launches"), 4U);
  EXPECT_EQ(audit(*store, "missing"), 0U);
  EXPECT_EQ(audit(*store, "gpu_off"), 4U);
  EXPECT_GT(audit(*store, "gpu_off_ns"), 0U);
  EXPECT_EQ(audit(*store, "regions_off"), 0U);
  session.open();
  cupti_.launch("kept");
  EXPECT_EQ(session.cut()->kernel.size(), 1U);
}

TEST_F(Sessions, GiveTheGpuUpForAnotherAndKeepWhatTheyHave) {
  Session& session = start();
  session.open();
  cupti_.launch("before");
  EXPECT_TRUE(session.release_cupti());
  EXPECT_FALSE(session.release_cupti());
  { const Region region("after"); }
  const auto store = session.cut();
  EXPECT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(store->region.size(), 1U);
  EXPECT_EQ(audit(*store, "missing"), 0U);
  EXPECT_EQ(audit(*store, "gpu_off"), 1U);
  EXPECT_EQ(store->find_info("session.tier"), "cupti");
  session.open();
  const auto next = session.stop();
  EXPECT_EQ(next->find_info("session.tier"), "cpu");
  EXPECT_NE(next->find_info("session.tier_reason").find("another profiler"), std::string_view::npos);
}

TEST_F(Sessions, GiveNoRowsToWhatIsLeftOutAndCountIt) {
  Options options;
  options.settings.no_kernels = true;
  options.settings.no_calls = true;
  Session& session = start(options);
  session.open();
  for (int count = 0; count < 10; ++count) {
    cupti_.launch();
  }
  const auto store = session.cut();
  EXPECT_EQ(store->kernel.size(), 0U);
  EXPECT_EQ(store->api.size(), 0U);
  EXPECT_EQ(audit(*store, "launches"), 10U);
  EXPECT_EQ(audit(*store, "missing"), 0U);
}

TEST_F(Sessions, RecordMemoryInTheRegionThatTookItAndCountItAsNoLaunch) {
  Session& session = start({.memory = true});
  session.open();
  {
    const Region region("load");
    const uint32_t number = cupti_.call(fakes::kMemAlloc);
    const auto now = static_cast<uint64_t>(base::Clock::process().now_ns());
    cupti_.finish(fakes::memory_record({.correlation = number, .at = now, .bytes = 4096, .source = "/lib/libx.so"}));
  }
  const auto store = session.cut();
  ASSERT_NE(store, nullptr);
  ASSERT_EQ(store->device_memory.size(), 1U);
  EXPECT_EQ(region_name(*store, store->device_memory.region[0]), "load");
  EXPECT_EQ(store->strings[store->device_memory.library[0]], "/lib/libx.so");
  for (const char* count : {"launches", "kernels", "missing", "gpu_records", "unattributed"}) {
    EXPECT_EQ(audit(*store, count), 0U) << count;
  }
}

TEST_F(Sessions, GiveMemoryToTheWindowOfItsCallWhenItsRecordComesLate) {
  Session& session = start({.memory = true});
  session.open();
  const uint32_t number = cupti_.call(fakes::kMemAlloc);
  session.cut();
  session.open();
  const auto now = static_cast<uint64_t>(base::Clock::process().now_ns());
  cupti_.finish(fakes::memory_record({.correlation = number, .at = now, .bytes = 4096}));
  EXPECT_EQ(session.cut()->device_memory.size(), 0U);
}

TEST_F(Sessions, SayThatMemoryWasRefused) {
  cupti_.refused_kinds = {{activity::kMemory, 5}};
  Session& session = start({.memory = true});
  session.open();
  EXPECT_EQ(session.cut()->find_info("session.notes"),
            "memory taken from the driver is not recorded, or not all of it: cuptiActivityEnable failed with "
            "CUPTI_ERROR_FAKE (5)\n");
}

TEST_F(Sessions, AskForNoMemoryInAggregateMode) {
  Options options{.memory = true};
  options.settings.mode = Mode::Aggregate;
  start(options);
  EXPECT_EQ(cupti_.kinds.count(activity::kMemory), 0U);
}

TEST_F(Sessions, LeaveOutRegionsWhileTheyAreSwitchedOff) {
  Session& session = start();
  session.open();
  session.switch_regions(false);
  {
    const Region hidden("hidden");
    cupti_.launch();
    session.switch_regions(true);
  }
  { const Region seen("seen"); }
  const auto store = session.cut();
  ASSERT_EQ(store->region.size(), 1U);
  EXPECT_EQ(region_name(*store, 0), "seen");
  EXPECT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(store->kernel.region[0], kNone);
  EXPECT_EQ(audit(*store, "regions_off"), 1U);
}

TEST_F(Sessions, HandOverTheOpenWindowAtTheStop) {
  Session& session = start();
  session.open();
  cupti_.launch();
  const auto store = session.stop();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->kernel.size(), 1U);
}

TEST_F(Sessions, HaveNothingToCutWithoutAnOpenWindow) {
  Session& session = start();
  EXPECT_EQ(session.cut(), nullptr);
  session.open();
  EXPECT_NE(session.cut(), nullptr);
  EXPECT_EQ(session.cut(), nullptr);
  EXPECT_EQ(session.stop(), nullptr);
}

TEST_F(Sessions, StopOnce) {
  Session& session = start();
  session.open();
  EXPECT_NE(session.stop(), nullptr);
  EXPECT_EQ(session.stop(), nullptr);
  session.open();
  EXPECT_EQ(session.cut(), nullptr);
  EXPECT_EQ(cupti_.unsubscriptions, 1);
}

TEST_F(Sessions, StopWhenTheyGo) {
  start();
  session_.reset();
  EXPECT_FALSE(Session::active());
  EXPECT_EQ(cupti_.subscribed, 0);
  EXPECT_EQ(base::listening.load(), 0U);
}

TEST_F(Sessions, RefuseASecondOneMeanwhile) {
  Session& session = start();
  const auto other = make_vendor();
  EXPECT_THROW(Session(*other, {}), base::InvalidArgument);
  EXPECT_TRUE(Session::active());
  session.open();
  cupti_.launch();
  EXPECT_EQ(session.cut()->kernel.size(), 1U);
  session.stop();
  EXPECT_NO_THROW(Session(*other, {}));
}

TEST_F(Sessions, TellTheirWindow) {
  Session& session = start();
  const int64_t before = base::Clock::process().now_ns();
  session.open();
  const auto store = session.cut();
  const int64_t open_ns = std::stoll(std::string(store->find_info("session.start_ns")));
  const int64_t close_ns = std::stoll(std::string(store->find_info("session.stop_ns")));
  EXPECT_LE(before, open_ns);
  EXPECT_LE(open_ns, close_ns);
  EXPECT_LE(close_ns, base::Clock::process().now_ns());
}

TEST_F(Sessions, LendTheMainThreadsRegionInAShortWindow) {
  Session& session = start();
  const Region region("around");
  session.open();
  std::thread([this] { cupti_.launch(); }).join();
  const auto store = session.cut();
  ASSERT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(region_name(*store, store->kernel.region[0]), "around");
}

// -- waiting for the GPU

TEST_F(Sessions, WaitForRecordsThatComeLate) {
  Session& session = start();
  session.open();
  std::atomic<int> flushes{0};
  const auto on_flush = [&](bool) {
    if (++flushes == 3) {
      cupti_.deliver();
    }
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  cupti_.launch();
  const auto store = session.cut();
  EXPECT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(audit(*store, "missing"), 0U);
  EXPECT_EQ(cupti_.forced_flushes, 0);
  session.stop();
}

TEST_F(Sessions, WaitForEveryNodeOfAGraph) {
  Session& session = start();
  session.open();
  const uint32_t correlation = cupti_.call(fakes::kGraphLaunch);
  std::atomic<int> flushes{0};
  const auto on_flush = [&](bool) {
    const int flush = ++flushes;
    if (flush >= 3 && flush < 8) {  // a node at a time
      const auto now = static_cast<uint64_t>(base::Clock::process().now_ns());
      cupti_.finish(fakes::kernel_record(
          {.correlation = correlation, .start = now, .end = now + 1, .graph = 1, .node = uint64_t(flush)}));
    }
    cupti_.deliver();
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  const auto store = session.cut();
  EXPECT_EQ(store->kernel.size(), 5U);
  EXPECT_EQ(audit(*store, "graph_launches"), 1U);
  EXPECT_EQ(audit(*store, "missing"), 0U);
  session.stop();
}

TEST_F(Sessions, GiveUpOnRecordsThatNeverCome) {
  Session& session = start();
  session.open();
  cupti_.call(fakes::kLaunchKernel);
  cupti_.call(fakes::kGraphLaunch);
  const auto store = session.cut(kShort);
  EXPECT_EQ(store->kernel.size(), 0U);
  EXPECT_EQ(audit(*store, "launches"), 1U);
  EXPECT_EQ(audit(*store, "missing"), 2U);
  EXPECT_EQ(cupti_.forced_flushes, 1);
}

TEST_F(Sessions, AskForUnfinishedWorkAtTheLimit) {
  Session& session = start();
  session.open();
  const uint32_t correlation = cupti_.call(fakes::kLaunchKernel);
  const auto on_flush = [&](bool forced) {
    if (forced) {
      cupti_.finish(fakes::kernel_record(
          {.correlation = correlation, .start = static_cast<uint64_t>(base::Clock::process().now_ns())}));
      cupti_.deliver();
    }
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  const auto store = session.cut(kShort);
  ASSERT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(store->kernel.flags[0], store::kIncomplete);
  EXPECT_EQ(audit(*store, "incomplete"), 1U);
  session.stop();
}

TEST_F(Sessions, EndRecordsWhereABufferNeverComesWhileThreadsLaunch) {
  Session& session = start();
  session.open();
  const auto on_flush = [&](bool) {
    if (cupti_.kinds.empty()) {
      cupti_.deliver();
    }
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  cupti_.launch();
  const auto store = session.stop();
  EXPECT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(audit(*store, "missing"), 0U);
}

TEST_F(Sessions, GoOnRecordingAfterAWindow) {
  Session& session = start();
  session.open();
  cupti_.call(fakes::kLaunchKernel);
  session.cut(kShort);
  EXPECT_EQ(cupti_.kinds.count(activity::kConcurrentKernel), 1U);
}

TEST_F(Sessions, GoOnRecordingWhileALaunchOfTheWindowIsUnderWay) {
  Session& session = start();
  session.open();
  std::set<std::size_t> kinds;  // how many were on at each flush of the flusher's thread
  const auto on_flush = [&, stopping = std::this_thread::get_id()](bool) {
    if (std::this_thread::get_id() != stopping) {
      kinds.insert(cupti_.kinds.size());
    }
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  cupti_.call(fakes::kLaunchKernel, 0, [&] { session.stop(kShort); });
  EXPECT_EQ(kinds.size(), 1U);
  EXPECT_EQ(kinds.count(0), 0U);
}

TEST_F(Sessions, DoNotWaitLongForCopiesThatBringNoRecord) {
  Session& session = start();
  session.open();
  cupti_.call(fakes::kMemcpyAsync);
  const auto store = session.cut();
  EXPECT_EQ(cupti_.forced_flushes, 0);
  EXPECT_EQ(audit(*store, "missing"), 0U);
  EXPECT_EQ(audit(*store, "copies_without_record"), 1U);
}

TEST_F(Sessions, GiveNoLaterWindowWhatCameTooLate) {
  Session& session = start();
  session.open();
  uint32_t late = 0;
  {
    const Region region("first");
    late = cupti_.call(fakes::kLaunchKernel);
  }
  EXPECT_EQ(audit(*session.cut(kShort), "missing"), 1U);
  session.open();
  cupti_.launch();
  const auto now = static_cast<uint64_t>(base::Clock::process().now_ns());
  cupti_.finish(fakes::kernel_record({.correlation = late, .start = now, .end = now + 1}));
  const auto store = session.cut();
  EXPECT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(audit(*store, "launches"), 1U);
  EXPECT_EQ(audit(*store, "gpu_records"), 1U);
}

TEST_F(Sessions, EmptyBuffersWhileAFlushWaits) {
  Session& session = start();
  session.open();
  std::atomic<bool> waits{false};
  std::atomic<bool> returns{false};
  const auto on_flush = [&](bool) {
    waits = true;
    while (!returns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  while (!waits) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  cupti_.launch();
  cupti_.deliver();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const activity::BufferPool& buffers = vendor_->collector.buffers();
  while (buffers.unread() != 0 && std::chrono::steady_clock::now() < limit) {
    base::EventLog::wake().release();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(buffers.unread(), 0U);
  returns = true;
  cupti_.change([&] { cupti_.on_flush = nullptr; });
  EXPECT_EQ(session.cut()->kernel.size(), 1U);
}

// -- other threads go on launching

TEST_F(Sessions, WaitForALaunchThatWasUnderWay) {
  Session& session = start();
  session.open();
  std::atomic<bool> entered{false};
  std::atomic<bool> returns{false};
  std::thread launching([&] {
    const uint32_t correlation = cupti_.call(fakes::kLaunchKernel, 0, [&] {
      entered = true;
      while (!returns) {
        std::this_thread::yield();
      }
    });
    const auto now = static_cast<uint64_t>(base::Clock::process().now_ns());
    cupti_.finish(fakes::kernel_record({.correlation = correlation, .start = now, .end = now + 1}));
  });
  while (!entered) {
    std::this_thread::yield();
  }
  std::atomic<int> flushes{0};
  const auto on_flush = [&](bool) {
    returns = ++flushes >= 3;
    cupti_.deliver();
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  const auto store = session.cut();
  launching.join();
  EXPECT_EQ(audit(*store, "launches"), 1U);
  EXPECT_EQ(store->kernel.size(), 1U);
  session.stop();
}

TEST_F(Sessions, WaitForNothingOfWhatIsLaunchedAfterTheEnd) {
  Session& session = start();
  session.open();
  cupti_.call(fakes::kMemcpyAsync);  // brings no record, so that the end waits until none has come for a while
  const auto on_flush = [&](bool) {
    cupti_.launch("later");
    cupti_.deliver();
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  const auto store = session.cut();
  EXPECT_EQ(cupti_.forced_flushes, 0);
  EXPECT_LE(audit(*store, "launches"), 1U);  // of the flush that was under way at the cut
  EXPECT_EQ(store->kernel.size(), audit(*store, "launches"));
  session.stop();
}

// With each flush, every thread that launches takes another buffer, while the earlier ones wait for their kernels.
TEST_F(Sessions, AskForFewBuffersWhileTheyWait) {
  Session& session = start();
  session.open();
  cupti_.call(fakes::kLaunchKernel);
  session.cut(std::chrono::milliseconds(500));
  EXPECT_LE(cupti_.flushes, 150);
}

TEST_F(Sessions, LoseNothingOfThreadsThatEndAfterOneLaunch) {
  constexpr std::size_t kThreads = 10'000;
  Session& session = start();
  session.open();
  for (std::size_t count = 0; count < kThreads; count += 50) {
    std::vector<std::thread> threads;
    for (int number = 0; number < 50; ++number) {
      threads.emplace_back([&] { cupti_.launch(); });
    }
    std::ranges::for_each(threads, &std::thread::join);
  }
  const auto store = session.cut();
  EXPECT_EQ(audit(*store, "launches"), kThreads);
  EXPECT_EQ(store->kernel.size(), kThreads);
  EXPECT_EQ(audit(*store, "pool_exhausted"), 0U);
}

// -- the audit

TEST_F(Sessions, TellOfWhatCuptiDropped) {
  Session& session = start();
  session.open();
  cupti_.change([&] { cupti_.dropped = 5; });
  EXPECT_EQ(audit(*session.cut(), "dropped"), 5U);
  session.open();
  EXPECT_EQ(audit(*session.cut(), "dropped"), 0U);
}

TEST_F(Sessions, TellOfWhatCuptiDroppedUntilItWasGivenUp) {
  Session& session = start();
  session.open();
  cupti_.change([&] { cupti_.dropped = 5; });
  session.release_cupti();
  EXPECT_EQ(audit(*session.cut(), "dropped"), 5U);
}

class NewNames : public Sessions {
 protected:
  static constexpr uint32_t kCount = 1000;

  // Regions with names that are kept for a recording, as programs make them.
  static void log_new_names() {
    base::EventLog& log = *base::EventLogs::current();
    for (uint32_t number = 0; number < kCount; ++number) {
      log.append(base::ticks(), log.id_of("new " + std::to_string(number)), base::Op::Enter);
      log.append(base::ticks(), 0, base::Op::Exit);
    }
  }
  static void expect_new_names(const Store& store) {
    ASSERT_EQ(store.region.size(), kCount);
    for (uint32_t row = 0; row < kCount; ++row) {
      ASSERT_EQ(region_name(store, row), "new " + std::to_string(row));
    }
  }
};

TEST_F(NewNames, AreNotDisturbedByTheEndOfOneThatHasStopped) {
  start();
  std::unique_ptr<Session, base::DeleteOwn> stopped = std::move(session_);
  stopped->open();
  stopped->stop();
  Session& next = start();
  next.open();
  log_new_names();
  stopped->switch_regions(false);
  stopped.reset();
  expect_new_names(*next.cut());
}

TEST_F(NewNames, AreNotDisturbedByOneThatIsRefused) {
  Session& session = start();
  session.open();
  log_new_names();
  EXPECT_THROW(Session(*vendor_, {}), base::InvalidArgument);
  expect_new_names(*session.cut());
}

TEST_F(Sessions, TellOfForeignBuffers) {
  Session& session = start();
  session.open();
  uint8_t foreign[8];
  cupti_.completed(nullptr, 0, foreign, sizeof(foreign), 0);
  EXPECT_EQ(audit(*session.cut(), "foreign_buffers"), 1U);
}

TEST_F(Sessions, TellOfAnExhaustedPool) {
  Session& session = start();
  session.open();
  std::vector<uint8_t*> taken;  // by as many threads as it takes
  do {
    size_t size = 0;
    size_t most = 0;
    taken.push_back(nullptr);
    cupti_.requested(&taken.back(), &size, &most);
  } while (taken.back() != nullptr);
  for (uint8_t* buffer : taken) {
    if (buffer != nullptr) {
      cupti_.completed(nullptr, 0, buffer, activity::BufferPool::kBufferBytes, 0);
    }
  }
  EXPECT_GE(audit(*session.cut(), "pool_exhausted"), 1U);
}

TEST_F(Sessions, NameTheDevicesOfTheProgram) {
  cuda_.devices = 2;
  Session& session = start();
  session.open();
  const auto store = session.cut();
  ASSERT_EQ(store->device.size(), 2U);
  EXPECT_EQ(store->strings[store->device.name[1]], "fake GPU");
  EXPECT_EQ(store->strings[store->device.uuid[1]], "GPU-01000000-0000-0000-0000-000000000000");
}

TEST_F(Sessions, AskForNoDevicesBeforeTheProgramDid) {
  cuda_.initialized = false;
  Session& session = start();
  session.open();
  EXPECT_EQ(session.cut()->device.size(), 0U);
}

TEST_F(Sessions, SayThatCuptiGaveUp) {
  Session& session = start();
  session.open();
  cupti_.callback.load()(cupti_.user_data, activity::kStateDomain, activity::kFatalError, nullptr);
  EXPECT_NE(session.cut()->find_info("session.notes").find("fatal error"), std::string_view::npos);
}

// -- tiers

TEST_F(Sessions, HaveCuptiToThemselves) {
  EXPECT_EQ(start().tier(), "cupti");
  EXPECT_EQ(session_->tier_reason(), "");
}

TEST_F(Sessions, CollectOnTheCpuWhenAskedTo) {
  start({.cuda = false, .no_cuda_reason = "not asked for"});
  EXPECT_EQ(session_->tier(), "cpu");
  EXPECT_EQ(session_->tier_reason(), "not asked for");
  EXPECT_EQ(cupti_.subscriptions, 0);
}

TEST_F(Sessions, CollectOnTheCpuWithoutADriver) {
  vendor_ = std::make_unique<Vendor>(driver::Cuda{}, Cupti::instance().table());
  start();
  EXPECT_EQ(session_->tier(), "cpu");
  EXPECT_NE(session_->tier_reason().find("no NVIDIA driver"), std::string::npos);
}

TEST_F(Sessions, TimeRegionsWithEventsWithoutCupti) {
  vendor_ = std::make_unique<Vendor>(Cuda::instance().table(), driver::Cupti{});
  start();
  EXPECT_EQ(session_->tier(), "events");
  EXPECT_NE(session_->tier_reason().find("libcupti was not found"), std::string::npos);
}

TEST_F(Sessions, TimeRegionsWithEventsBesideAnotherTool) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  cupti_.holder = "nsys";
  start();
  EXPECT_EQ(session_->tier(), "events");
  EXPECT_NE(session_->tier_reason().find("nsys"), std::string::npos);
}

TEST_F(Sessions, ShareCuptiWithAnIdleHolder) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  start({.may_share_cupti = true});
  EXPECT_EQ(session_->tier(), "cupti-shared");
}

TEST_F(Sessions, JoinLaunchesByTimeWhereCuptiIsShared) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  Session& session = start({.may_share_cupti = true});
  session.open();
  {
    const Region region("step");
    const auto now = static_cast<uint64_t>(base::Clock::process().now_ns());
    cupti_.finish(fakes::kernel_record({.correlation = 5, .start = now, .end = now + 1}));
    cupti_.finish(fakes::api_record(activity::kDriver, fakes::kLaunchKernel,
                                    {.correlation = 5, .start = now, .end = now + 1}, static_cast<uint64_t>(gettid())));
  }
  const auto store = session.cut();
  ASSERT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(region_name(*store, store->kernel.region[0]), "step");
  EXPECT_EQ(audit(*store, "launches"), 1U);
}

TEST_F(Sessions, RecordRegionsInEveryTier) {
  Session& session = start({.cuda = false});
  session.open();
  { const Region region("cpu work"); }
  const auto store = session.cut();
  ASSERT_EQ(store->region.size(), 1U);
  EXPECT_EQ(region_name(*store, 0), "cpu work");
}

class EventSessions : public Sessions {
 protected:
  EventSessions() {
    vendor_ = std::make_unique<Vendor>(Cuda::instance().table(), driver::Cupti{});
    cuda_.current = Cuda::context(1);
  }
};

TEST_F(EventSessions, TellTheGpuTimeOfARegion) {
  Session& session = start();
  session.open();
  { const Region region("step"); }
  const auto store = session.cut();
  ASSERT_EQ(store->region_gpu.size(), 1U);
  EXPECT_EQ(store->region_gpu.region[0], 0U);
  EXPECT_EQ(store->region_gpu.duration_ns[0], 1'000'000);
}

TEST_F(EventSessions, KeepOneRowAPathInAggregateMode) {
  Session& session = start({.settings = {.mode = Mode::Aggregate}});
  session.open();
  for (int count = 0; count < 10; ++count) {
    const Region region("step");
  }
  const auto store = session.cut();
  ASSERT_EQ(store->region_gpu.size(), 1U);
  EXPECT_EQ(store->region_gpu.duration_ns[0], 10'000'000);
}

TEST_F(EventSessions, GiveNoLaterWindowATimeThatCameTooLate) {
  Session& session = start();
  session.open();
  cuda_.done = false;
  { const Region region("first"); }
  EXPECT_EQ(session.cut(kShort)->region_gpu.size(), 0U);
  {
    const std::lock_guard lock(cuda_.mutex);
    cuda_.done = true;
    for (auto& [handle, event] : cuda_.events) {
      event.done = true;
    }
  }
  session.open();
  EXPECT_EQ(session.cut()->region_gpu.size(), 0U);
}

TEST_F(EventSessions, HavePairsForEverAfterManySessions) {
  for (uint32_t count = 0; count < timing::RegionTimer::kPairs + 10; ++count) {
    start({.cuda = true});
    const Region left_open("left open");
    session_.reset();
  }
  Session& session = start();
  session.open();
  { const Region region("step"); }
  EXPECT_EQ(session.cut()->region_gpu.size(), 1U);
}

// -- harm to the program

TEST_F(Sessions, HandOverWhatTheyHaveWhenMemoryRunsOut) {
  Session& session = start();
  session.open();
  {
    const Region region("kept");
    cupti_.launch();
    cupti_.change([&] { cupti_.on_next_record = [] { throw std::bad_alloc(); }; });
  }
  const auto store = session.cut();
  cupti_.change([&] { cupti_.on_next_record = nullptr; });
  ASSERT_NE(store, nullptr);
  EXPECT_NE(store->find_info("session.notes").find("memory ran out"), std::string_view::npos);
  EXPECT_EQ(store->region.size(), 1U);
  EXPECT_EQ(audit(*store, "missing"), 1U);
}

TEST_F(Sessions, GoOnAfterMemoryRanOut) {
  Session& session = start();
  session.open();
  cupti_.launch();
  cupti_.change([&] { cupti_.on_next_record = [] { throw std::bad_alloc(); }; });
  session.cut();
  cupti_.change([&] { cupti_.on_next_record = nullptr; });
  session.open();
  {
    const Region region("next");
    cupti_.launch();
  }
  const auto store = session.cut();
  ASSERT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(region_name(*store, store->kernel.region[0]), "next");
  EXPECT_EQ(store->find_info("session.notes"), "");
}

TEST_F(Sessions, LoseNoBufferWhenMemoryRunsOut) {
  Session& session = start();
  session.open();
  cupti_.launch();
  cupti_.change([&] { cupti_.on_next_record = [] { throw std::bad_alloc(); }; });
  session.cut();
  EXPECT_EQ(vendor_->collector.buffers().ready(), 1U);
  EXPECT_EQ(vendor_->collector.buffers().lent(), 0U);
}

TEST_F(Sessions, KnowNoRegionFromWhenMemoryRanOut) {
  Session& session = start();
  session.open();
  {
    const Region region("its end is missed");
    cupti_.change([&] { cupti_.on_next_record = [] { throw std::bad_alloc(); }; });
    cupti_.launch();
    const int flushes = cupti_.flushes;
    base::EventLog::wake().release();
    while (cupti_.flushes < flushes + 2) {  // one whole round in between
      base::EventLog::wake().release();
      std::this_thread::yield();
    }
  }
  session.cut();
  cupti_.change([&] { cupti_.on_next_record = nullptr; });
  session.open();
  cupti_.launch();
  const auto store = session.cut();
  ASSERT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(region_name(*store, store->kernel.region[0]), "");
}

TEST_F(Sessions, LeaveSignalsToTheProgramsThreads) {
  std::atomic<bool> blocked{false};
  const auto on_flush = [&, stopping = std::this_thread::get_id()](bool) {
    if (std::this_thread::get_id() == stopping) {
      return;
    }
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGINT) == 1;
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  Session& session = start();
  session.open();
  session.cut();
  session.stop();
  EXPECT_TRUE(blocked);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

std::size_t count_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

// A thread that has been joined leaves /proc a moment later.
std::size_t count_threads_down_to(std::size_t wanted) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (count_threads() > wanted && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return count_threads();
}

TEST_F(Sessions, LeaveNothingBehindAfterAThousand) {
  const auto count_logs = [] {
    std::size_t logs = 0;
    base::EventLogs::process().each([&](base::EventLog&) { ++logs; });
    return logs;
  };
  const std::size_t threads = count_threads();
  start();
  session_.reset();
  const std::size_t logs = count_logs();
  for (int round = 0; round < 1000; ++round) {
    Session& session = start();
    session.open();
    cupti_.launch();
    std::thread([] { const Region region("worker"); }).join();
    ASSERT_EQ(session.stop()->kernel.size(), 1U);
  }
  session_.reset();
  EXPECT_LE(count_threads_down_to(threads), threads);
  EXPECT_LE(count_logs(), logs + 2);
  EXPECT_EQ(cupti_.subscribed, 0);
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(Sessions, StartAndStopTenThousandTimesWhileThreadsGoOnLaunching) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < 2; ++number) {
    threads.emplace_back([&] {
      while (!done) {
        cupti_.launch();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  std::size_t before = 0;
  const int rounds = kMemoryIsMeasured ? 10'000 : 1'000;  // sanitizers take minutes for them
  for (int round = 0; round < rounds; ++round) {
    Session& session = start();
    session.open();
    cupti_.launch();
    const auto store = session.stop();
    ASSERT_EQ(audit(*store, "missing") + audit(*store, "pool_exhausted"), 0U) << round;
    ASSERT_GE(store->kernel.size(), 1U);
    ASSERT_EQ(store->kernel.size(), audit(*store, "launches"));
    session_.reset();
    before = round == 2000 ? resident_bytes() : before;
  }
  done = true;
  std::ranges::for_each(threads, &std::thread::join);
  if (kMemoryIsMeasured) {
    EXPECT_LE(resident_bytes(), before + (std::size_t{8} << 20));
  }
}

TEST_F(Sessions, KeepCountUnderChurn) {
  constexpr int kThreads = 4;
  Session& session = start();
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&] {
      while (!done) {
        const Region outer("outer");
        for (int count = 0; count < 3; ++count) {
          const Region inner("inner");
          cupti_.launch();
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  for (int window = 0; window < 20; ++window) {
    session.open();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto store = session.cut();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->kernel.size() + audit(*store, "missing"), audit(*store, "launches"));
    EXPECT_EQ(audit(*store, "unattributed"), 0U);
    EXPECT_EQ(audit(*store, "missing"), 0U);
    EXPECT_EQ(audit(*store, "pool_exhausted"), 0U);
    EXPECT_EQ(audit(*store, "unmatched_exits"), 0U);
    for (std::size_t row = 0; row < store->kernel.size(); ++row) {
      EXPECT_EQ(region_name(*store, store->kernel.region[row]), "inner");
    }
  }
  done = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(Sessions, StartAndStopWhileThreadsRecord) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&] {
      while (!done) {
        const Region region("busy");
        std::this_thread::yield();
      }
    });
  }
  for (int round = 0; round < 30; ++round) {
    Session& session = start({.cuda = false});
    session.open();
    const auto store = session.stop();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(audit(*store, "unmatched_exits"), 0U);
    session_.reset();
  }
  done = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// -- forks

// Runs `child` in a forked process; whether it said yes.
bool in_child(const std::function<bool()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);  // a child that hangs says no
    _exit(child() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(Sessions, GoOnInTheParentOfAFork) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  Session& session = start();
  session.open();
  cupti_.launch();
  EXPECT_TRUE(in_child([] { return true; }));
  cupti_.launch();
  EXPECT_EQ(session.cut()->kernel.size(), 2U);
  EXPECT_FALSE(Session::forked());
}

TEST_F(Sessions, AreOverInTheChildOfAFork) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  Session& session = start();
  session.open();
  EXPECT_TRUE(in_child([&] {
    session.open();
    return Session::forked() && !Session::active() && base::listening.load() == 0 && session.cut() == nullptr &&
           session.stop() == nullptr;
  }));
}

TEST_F(Sessions, GoWithoutHarmInTheChildOfAFork) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  start().open();
  EXPECT_TRUE(in_child([&] {
    session_.reset();
    return true;
  }));
}

TEST_F(Sessions, GoWithoutHarmInTheChildOfAForkWhileAnotherThreadStopsThem) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  Session& session = start();
  session.open();
  cupti_.launch();
  cupti_.on_flush = [](bool) { std::this_thread::sleep_for(std::chrono::milliseconds(400)); };
  std::thread stopping([&] { session.stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(in_child([&] {
    session_.reset();
    return true;
  }));
  stopping.join();
}

TEST_F(Sessions, CollectOnTheCpuInTheChildOfAFork) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  start().open();
  EXPECT_TRUE(in_child([&] {
    Session own(*vendor_, {});
    own.open();
    { const Region region("of the child"); }
    const auto store = own.stop();
    return own.tier() == "cpu" && own.tier_reason().find("forked") != std::string::npos && store != nullptr &&
           store->region.size() == 1 && region_name(*store, 0) == "of the child";
  }));
}

TEST_F(Sessions, LeaveCuptiAloneInTheChildOfAProcessThatSharesIt) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  start({.may_share_cupti = true}).open();
  EXPECT_TRUE(in_child([&] {
    const int flushes = cupti_.flushes + cupti_.forced_flushes;
    Session own(*vendor_, {});
    own.open();
    return own.stop() != nullptr && cupti_.flushes + cupti_.forced_flushes == flushes;
  }));
}

TEST_F(Sessions, LeaveCuptiAloneInTheChildOfAProcessThatOnceCollected) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  start();
  session_.reset();
  const int subscriptions = cupti_.subscriptions;
  EXPECT_TRUE(in_child([&] {
    const Session own(*vendor_, {});
    return own.tier() == "cpu" && cupti_.subscriptions == subscriptions;
  }));
}

TEST_F(Sessions, BeginNewLogsInTheChildOfAFork) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  start();
  base::EventLog* parents = base::EventLogs::current();
  EXPECT_TRUE(in_child([&] {
    std::size_t logs = 0;
    base::EventLogs::process().each([&](base::EventLog&) { ++logs; });
    return logs == 0 && base::EventLogs::current() != parents;
  }));
}

TEST_F(Sessions, SurviveAForkAtAnyMoment) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  Session& session = start();
  std::atomic<bool> done{false};
  std::thread busy([&] {
    while (!done) {
      const Region region("busy");
      cupti_.launch();
      base::Names::process().intern("busy");
    }
  });
  for (int round = 0; round < 20; ++round) {
    session.open();
    EXPECT_TRUE(in_child([&] {
      const Region region("in the child");
      return session.cut() == nullptr;
    }));
    EXPECT_NE(session.cut(), nullptr);
  }
  done = true;
  busy.join();
}

}  // namespace
}  // namespace gpuscope::session
