// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/costs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "fakes/cuda.h"
#include "fakes/cupti.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/session/session.h"

namespace gpuscope::session {
namespace {

using fakes::Cuda;
using fakes::Cupti;

constexpr std::chrono::nanoseconds kLaunch(2'000);
constexpr std::chrono::nanoseconds kRecording(3'000);
constexpr std::chrono::seconds kPatience(60);  // a machine that is busy with other tests is not a busy driver

/// A driver that launches and copies what LaunchProbe does; each launch takes kLaunch, and kRecording more while it is
/// recorded; each copy twice that.
struct Launches {
  static inline std::atomic<int> launched{0};
  static inline std::atomic<int> loaded{0};
  static inline std::atomic<int> unloaded{0};
  static inline std::atomic<bool> ends{true};  // whether the GPU comes to its end
  static inline std::chrono::nanoseconds launch_time = kLaunch;

  static void spin(std::chrono::nanoseconds time) {
    const auto began = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - began < time) {
    }
  }
  static driver::Cuda table() {
    launched = loaded = unloaded = 0;
    ends = true;
    launch_time = kLaunch;
    driver::Cuda table = Cuda::reset().table();
    Cuda::instance().active_contexts = 1;
    table.module_load_data = [](driver::CuModule* module, const void*) {
      ++loaded;
      *module = reinterpret_cast<driver::CuModule>(uintptr_t{1});
      return 0;
    };
    table.module_unload = [](driver::CuModule) {
      ++unloaded;
      return 0;
    };
    table.module_get_function = [](driver::CuFunction* function, driver::CuModule, const char*) {
      *function = reinterpret_cast<driver::CuFunction>(uintptr_t{1});
      return 0;
    };
    table.stream_destroy = [](driver::CuStream) { return 0; };
    table.launch_kernel = [](driver::CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             driver::CuStream, void**, void**) {
      ++launched;
      spin(launch_time);
      if (Cupti::instance().subscribed != 0) {
        Cupti::instance().launch("gpuscope_empty");
        spin(kRecording);
      }
      return 0;
    };
    table.module_get_global = [](driver::CuPointer* address, size_t*, driver::CuModule, const char*) {
      *address = 8;
      return 0;
    };
    table.copy_to_device = [](driver::CuPointer, const void*, size_t, driver::CuStream) {
      spin(2 * kLaunch);
      if (Cupti::instance().subscribed != 0) {
        spin(2 * kRecording);
      }
      return 0;
    };
    static driver::CuResult (*query)(driver::CuEvent) = nullptr;
    query = table.event_query;
    table.event_query = [](driver::CuEvent event) { return ends ? query(event) : 600; };
    return table;
  }
};

std::string reason(const driver::Cuda& cuda) {
  try {
    LaunchProbe(cuda, std::chrono::milliseconds(1)).measure();
  } catch (const base::NotAvailable& error) {
    return error.what();
  }
  return "";
}

TEST(Costs, AddUpByWhatWasCounted) {
  attribution::Counters counters;
  counters.launches = 10;
  counters.copies = 2;
  counters.callbacks = 17;
  counters.region_events = 4;
  counters.function_events = 3;
  counters.work_ns = 7;
  counters.function_work_ns = 500;
  Costs costs;
  costs.event_ns = 20;
  costs.launch_ns = 500;
  costs.copy_ns = 700;
  costs.call_ns = 100;
  const Overhead overhead = overhead_of(counters, costs);
  EXPECT_EQ(overhead.own_ns, 20 * (2 * 17 + 4 + 3) + 7 + 500);
  EXPECT_EQ(overhead.cupti_ns, 10 * 500 + 2 * 700 + 5 * 100);
  const EventCosts each = event_costs_of(counters, costs);
  EXPECT_EQ(each.launch_ns, 500 + 2 * 20);
  EXPECT_EQ(each.copy_ns, 700 + 2 * 20);
  EXPECT_EQ(each.call_ns, 100 + 2 * 20);
  EXPECT_EQ(each.region_ns, (20 * 4 + 7) / 2);
  EXPECT_EQ(event_costs_of({}, costs).region_ns, 0);
}

TEST(Costs, OfAnEventAreMeasuredInALogOfTheirOwn) {
  base::EventLog* log = base::EventLogs::current();
  log->skip_all();
  EXPECT_GT(measure_event(), 0);
  EXPECT_FALSE(log->has_more(log->end()));
}

TEST(LaunchProbe, MeasuresLaunchesAndCleansUp) {
  Cupti::reset();
  const driver::Cuda cuda = Launches::table();
  {
    LaunchProbe probe(cuda, kPatience);
    const LaunchProbe::Times times = probe.measure();
    EXPECT_GE(times.launch_ns, static_cast<double>(kLaunch.count()));
    EXPECT_GE(times.call_ns, 0);
  }
  EXPECT_EQ(Launches::unloaded, 1);
  EXPECT_EQ(Cuda::instance().events.size(), 0U);
  EXPECT_EQ(Cuda::instance().contexts_retained, 0);
  EXPECT_EQ(Cuda::instance().capture_mode_exchanges % 2, 0);
}

TEST(LaunchProbe, LeavesAGpuThatIsBusyAlone) {
  Cupti::reset();
  const driver::Cuda cuda = Launches::table();
  Launches::ends = false;
  EXPECT_NE(reason(cuda).find("the GPU was busy"), std::string::npos);
  EXPECT_EQ(Launches::unloaded, 0);  // which would wait
  EXPECT_TRUE(Cuda::instance().pushed.empty());
}

TEST(LaunchProbe, LeavesADriverThatIsBusyAlone) {
  Cupti::reset();
  const driver::Cuda cuda = Launches::table();
  Launches::launch_time = std::chrono::milliseconds(1);
  EXPECT_NE(reason(cuda).find("the driver was busy"), std::string::npos);
  EXPECT_LT(Launches::launched, 100);
  EXPECT_EQ(Launches::unloaded, 1);
  EXPECT_TRUE(Cuda::instance().pushed.empty());
}

TEST(LaunchProbe, LaunchesNothingWhereTheProgramHasNoContextOrCaptures) {
  Cupti::reset();
  const driver::Cuda cuda = Launches::table();
  Cuda::instance().capturing = 1;
  EXPECT_NE(reason(cuda).find("captured"), std::string::npos);
  Cuda::instance().capturing = 0;
  Cuda::instance().active_contexts = 0;
  EXPECT_NE(reason(cuda).find("no primary context"), std::string::npos);
  Cuda::instance().initialized = false;
  EXPECT_NE(reason(cuda).find("not in use"), std::string::npos);
  EXPECT_EQ(Launches::loaded + Launches::launched, 0);
  EXPECT_EQ(Cuda::instance().contexts_retained, 0);
}

class MeasuredSessions : public testing::Test {
 protected:
  MeasuredSessions() : cupti_(Cupti::reset()), vendor_(Launches::table(), cupti_.table()) {
    vendor_.costs.limit = kPatience;
  }

  std::unique_ptr<store::Store> record(int launches) {
    Session session(vendor_, {});
    session.open();
    for (int count = 0; count < launches; ++count) {
      cupti_.launch("theirs");
    }
    return session.stop();
  }
  static std::string info(const store::Store& store, const std::string& key) {
    return std::string(store.find_info("audit." + key));
  }

  Cupti& cupti_;
  Vendor vendor_;
};

TEST_F(MeasuredSessions, SayWhatCuptiCostsWithoutRecordingTheirOwnLaunches) {
  const auto store = record(2'000);
  EXPECT_EQ(info(*store, "overhead_source"), "measured");
  EXPECT_EQ(info(*store, "launches"), "2000");
  EXPECT_EQ(store->kernel.size(), 2'000U);
  EXPECT_EQ(store->variant.size(), 1U);
  EXPECT_GT(Launches::launched, 0);
  const int64_t own = std::stoll(info(*store, "overhead_own_ns"));
  const int64_t cupti = std::stoll(info(*store, "overhead_cupti_ns"));
  EXPECT_GT(own, 0);
  EXPECT_GT(cupti, 0);
  EXPECT_EQ(std::stoll(info(*store, "overhead_ns")), own + cupti);
  EXPECT_GT(std::stoll(info(*store, "calibration_ns")), 0);
}

TEST_F(MeasuredSessions, SayWhatACopyCostsBesideALaunch) {
  const auto store = record(2'000);
  EXPECT_GT(std::stod(info(*store, "copy_cost_ns")), 0.8 * 2 * kRecording.count());
  EXPECT_GT(std::stod(info(*store, "launch_cost_ns")), 0.8 * kRecording.count());
}

TEST_F(MeasuredSessions, MeasureOnceInAProcess) {
  record(2'000);
  const int launched = Launches::launched;
  const auto store = record(2'000);
  EXPECT_EQ(Launches::launched, launched);
  EXPECT_EQ(info(*store, "overhead_source"), "measured");
  EXPECT_EQ(store->kernel.size(), 2'000U);  // none of the calibration's
  EXPECT_EQ(store->api.size(), 2'000U);
}

TEST_F(MeasuredSessions, OfFewLaunchesSayThatTheyAreEstimated) {
  const auto store = record(10);
  EXPECT_EQ(Launches::launched, 0);
  EXPECT_EQ(info(*store, "overhead_source").find("estimated: "), 0U);
  EXPECT_EQ(info(*store, "overhead_cupti_ns"), "8000");
}

TEST_F(MeasuredSessions, SayWhyTheyCouldNot) {
  Launches::ends = false;
  vendor_.costs.limit = std::chrono::milliseconds(1);
  const auto store = record(2'000);
  EXPECT_NE(info(*store, "overhead_source").find("the GPU was busy"), std::string::npos);
  EXPECT_EQ(store->kernel.size(), 2'000U);
}

TEST_F(MeasuredSessions, DoNotMeasureWhileOtherThreadsLaunch) {
  Session session(vendor_, {});
  session.open();
  for (int count = 0; count < 2'000; ++count) {
    cupti_.launch("theirs");
  }
  const auto on_flush = [this](bool) {  // on another thread, while the window's end is waited for
    for (int count = 0; count < 20; ++count) {
      cupti_.launch("others");
    }
    cupti_.deliver();
  };
  cupti_.change([&] { cupti_.on_flush = on_flush; });
  const auto store = session.stop();
  cupti_.change([&] { cupti_.on_flush = nullptr; });
  EXPECT_EQ(info(*store, "overhead_source"), "estimated: other threads went on calling the driver");
  EXPECT_EQ(Launches::launched, 0);
  EXPECT_EQ(store->kernel.size(), 2'000U);
}

TEST_F(MeasuredSessions, GiveUpWhereTheGpuIsAlwaysBusy) {
  Launches::ends = false;
  vendor_.costs.limit = std::chrono::milliseconds(1);
  for (int turn = 0; turn < 3; ++turn) {
    record(2'000);
  }
  const int launched = Launches::launched;
  const auto store = record(2'000);
  EXPECT_EQ(Launches::launched, launched);
  EXPECT_NE(info(*store, "overhead_source").find("the GPU was busy"), std::string::npos);
}

uint32_t slow_stack(const void*) noexcept {
  for (const auto began = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - began < std::chrono::microseconds(10);) {
  }
  return 0;
}

TEST_F(MeasuredSessions, CountWhatIsGatheredForTheirEvents) {
  base::stack_source = &slow_stack;
  Session session(vendor_, {.stacks = true});
  session.open();
  for (int count = 0; count < 2'000; ++count) {
    cupti_.launch("theirs");
  }
  const auto store = session.stop();
  base::stack_source = nullptr;
  EXPECT_GT(std::stoll(info(*store, "overhead_own_ns")), 2'000 * 8'000);
}

TEST_F(MeasuredSessions, CountNothingThatWasBeforeThem) {
  for (int count = 0; count < 100; ++count) {
    base::WorkTimer(*base::EventLogs::current()).stop(1'000);
  }
  EXPECT_EQ(info(*record(0), "overhead_own_ns"), "0");
}

TEST_F(MeasuredSessions, WithoutLaunchesAreMeasured) {
  const auto store = record(0);
  EXPECT_EQ(info(*store, "overhead_source"), "measured");
  EXPECT_EQ(info(*store, "overhead_cupti_ns"), "0");
}

}  // namespace
}  // namespace gpuscope::session
