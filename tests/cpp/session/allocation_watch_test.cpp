// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/allocation_watch.h"

#include <cupti.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "fakes/cubins.h"
#include "fakes/cuda.h"
#include "fakes/cupti.h"
#include "gpuscope/activity/collector.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/session/session.h"

namespace gpuscope::session {
namespace {

using fakes::Cuda;
using fakes::Cupti;

class AllocationWatches : public testing::Test {
 protected:
  AllocationWatches()
      : cuda_(Cuda::reset()),
        cupti_(Cupti::reset()),
        vendor_(std::make_unique<Vendor>(cuda_.table(), cupti_.table())),
        watch_(std::make_unique<AllocationWatch>(*vendor_)) {}
  ~AllocationWatches() override { base::allocation_sink = nullptr; }

  void allocate(CUdeviceptr address, size_t bytes, int result = 0) {
    cuMemAlloc_v2_params params{&address, bytes};
    cupti_.allocation(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, &params, result, Cuda::primary(0));
  }
  void load_module(size_t bytes) {
    const std::string image = fakes::Cubin().add({".text.kernel", bytes}).call("__assertfail").image();
    const activity::ModuleCallbackData module{1, image.size(), image.data()};
    cupti_.resource(activity::kModuleLoaded, nullptr, &module);
  }

  Cuda& cuda_;
  Cupti& cupti_;
  std::unique_ptr<Vendor> vendor_;
  std::unique_ptr<AllocationWatch> watch_;
};

TEST_F(AllocationWatches, SeeWhatLives) {
  EXPECT_EQ(watch_->watch(false), "");
  allocate(4096, 100);
  EXPECT_EQ(watch_->live().size(), 1U);
  EXPECT_TRUE(watch_->state().watching);
  EXPECT_EQ(watch_->state().why, "");
}

TEST_F(AllocationWatches, SeeNothingBeforeAndAfter) {
  EXPECT_TRUE(watch_->live().empty());
  EXPECT_FALSE(watch_->state().watching);
  watch_->watch(false);
  allocate(4096, 100);
  watch_->unwatch();
  EXPECT_TRUE(watch_->live().empty());
  EXPECT_FALSE(watch_->state().watching);
  EXPECT_EQ(cupti_.subscribed, 0);
  EXPECT_EQ(base::allocation_sink.load(), nullptr);
}

TEST_F(AllocationWatches, LastUntilTheLastUser) {
  watch_->watch(false);
  watch_->watch(false);
  watch_->unwatch();
  allocate(4096, 100);
  EXPECT_EQ(watch_->live().size(), 1U);
  watch_->unwatch();
  watch_->unwatch();
  EXPECT_FALSE(watch_->state().watching);
  EXPECT_EQ(watch_->watch(false), "");
  EXPECT_TRUE(watch_->state().watching);
}

TEST_F(AllocationWatches, SayWhyNot) {
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  EXPECT_EQ(watch_->watch(false), "another tool holds CUPTI in this process");
  EXPECT_EQ(watch_->state().why, "another tool holds CUPTI in this process");
  EXPECT_FALSE(watch_->state().watching);
  EXPECT_EQ(base::allocation_sink.load(), nullptr);
  cupti_.subscribe_code = 0;
  EXPECT_EQ(watch_->watch(false), "");
  EXPECT_EQ(watch_->state().why, "");
}

TEST_F(AllocationWatches, NeedADriver) {
  driver::Cuda none = cuda_.table();
  none.library = {};
  vendor_ = std::make_unique<Vendor>(none, cupti_.table());
  AllocationWatch watch(*vendor_);
  EXPECT_NE(watch.watch(false).find("no NVIDIA driver was found"), std::string::npos);
  EXPECT_NE(watch.state().why, "");
  EXPECT_EQ(cupti_.subscriptions, 0);
}

TEST_F(AllocationWatches, KnowWhetherAContextWasThereBefore) {
  cuda_.active_contexts = 1;
  watch_->watch(false);
  EXPECT_FALSE(watch_->state().from_start);
  watch_->unwatch();
  cuda_.active_contexts = 0;
  watch_->watch(false);
  EXPECT_TRUE(watch_->state().from_start);
  watch_->unwatch();
  cuda_.current = Cuda::primary(0);
  watch_->watch(false);
  EXPECT_FALSE(watch_->state().from_start);
  watch_->unwatch();
  cuda_.initialized = false;
  watch_->watch(false);
  EXPECT_TRUE(watch_->state().from_start);
}

TEST_F(AllocationWatches, CountWhatWasLoadedSinceTheyBegan) {
  watch_->watch(false);
  load_module(100);
  watch_->unwatch();
  watch_->watch(false);
  load_module(30);
  EXPECT_EQ(watch_->state().loaded.modules, 1U);
  EXPECT_EQ(watch_->state().loaded.code_bytes, 30U);
}

TEST_F(AllocationWatches, KnowWhatKernelsCallFromEarlierOnesToo) {
  watch_->watch(false);
  load_module(100);
  watch_->unwatch();
  watch_->watch(false);
  EXPECT_EQ(watch_->state().loaded.services, activity::kAssert);
}

TEST_F(AllocationWatches, SayWhetherModulesAreLoadedWhole) {
  EXPECT_TRUE(watch_->state().loads_whole_modules);  // a driver that cannot tell is one from before lazy loading
  vendor_->cuda.module_loading_mode = [](int* mode) { return *mode = 2, 0; };
  EXPECT_FALSE(watch_->state().loads_whole_modules);
  vendor_->cuda.module_loading_mode = [](int* mode) { return *mode = 1, 0; };
  EXPECT_TRUE(watch_->state().loads_whole_modules);
}

TEST_F(AllocationWatches, KeepRefusalsUntilTheNextBegins) {
  watch_->watch(false);
  allocate(0, 100, 2);
  watch_->unwatch();
  EXPECT_EQ(watch_->state().failures.size(), 1U);
  watch_->watch(false);
  EXPECT_TRUE(watch_->state().failures.empty());
}

TEST_F(AllocationWatches, GiveCuptiUpAndTakeItUpAgain) {
  watch_->watch(false);
  allocate(4096, 100);
  watch_->pause("torch.profiler needs it");
  EXPECT_EQ(cupti_.subscribed, 0);
  EXPECT_FALSE(watch_->state().watching);
  EXPECT_EQ(watch_->state().why, "torch.profiler needs it");
  EXPECT_EQ(watch_->live().size(), 1U);
  EXPECT_EQ(watch_->resume(), "");
  allocate(8192, 100);
  EXPECT_EQ(watch_->live().size(), 2U);
  EXPECT_EQ(watch_->state().gaps, 1U);
  EXPECT_TRUE(watch_->state().watching);
}

TEST_F(AllocationWatches, PauseOnceHoweverOftenAsked) {
  watch_->watch(false);
  watch_->pause("torch.profiler needs it");
  watch_->pause("again");
  EXPECT_EQ(watch_->state().why, "torch.profiler needs it");
  EXPECT_EQ(watch_->state().gaps, 1U);
  EXPECT_EQ(watch_->resume(), "");
  EXPECT_EQ(watch_->resume(), "");
  EXPECT_EQ(cupti_.subscriptions, 2);
}

TEST_F(AllocationWatches, DoNotBeginInAPause) {
  watch_->watch(false);
  watch_->pause("torch.profiler needs it");
  EXPECT_EQ(watch_->watch(false), "torch.profiler needs it");
  EXPECT_EQ(cupti_.subscribed, 0);
}

TEST_F(AllocationWatches, StayOffAfterAPauseThatNobodyWaitedFor) {
  watch_->watch(false);
  watch_->pause("torch.profiler needs it");
  watch_->unwatch();
  EXPECT_EQ(watch_->resume(), "");
  EXPECT_EQ(cupti_.subscribed, 0);
  EXPECT_EQ(watch_->watch(false), "");
}

TEST_F(AllocationWatches, AreRefusedUntilAPauseEndsThatOutlastsTheUsers) {
  watch_->watch(false);
  watch_->pause("torch.profiler needs it");
  watch_->unwatch();
  EXPECT_EQ(watch_->watch(false), "torch.profiler needs it");
  EXPECT_EQ(watch_->resume(), "");
  EXPECT_EQ(watch_->watch(false), "");
  EXPECT_TRUE(watch_->state().watching);
  EXPECT_EQ(watch_->state().why, "");
}

TEST_F(AllocationWatches, SayWhoKeptTheSlotAfterAPause) {
  watch_->watch(false);
  watch_->pause("torch.profiler needs it");
  cupti_.subscribe_code = driver::kCuptiMultipleSubscribers;
  EXPECT_EQ(watch_->resume(), "another tool holds CUPTI in this process");
  EXPECT_FALSE(watch_->state().watching);
  EXPECT_EQ(watch_->state().why, "another tool holds CUPTI in this process");
  cupti_.subscribe_code = 0;
  EXPECT_EQ(watch_->watch(false), "");  // one more user, who finds it free
  EXPECT_TRUE(watch_->state().watching);
}

TEST_F(AllocationWatches, NoticeThatCuptiGaveUp) {
  watch_->watch(false);
  cupti_.callback.load()(cupti_.user_data, activity::kStateDomain, activity::kFatalError, nullptr);
  EXPECT_FALSE(watch_->state().watching);
  EXPECT_NE(watch_->state().why, "");
}

TEST_F(AllocationWatches, GoOnBesideASession) {
  watch_->watch(false);
  Session session(*vendor_, {});
  EXPECT_EQ(session.tier(), "cupti");
  session.open();
  allocate(4096, 100);
  const auto store = session.stop();
  EXPECT_EQ(store->api.size(), 1U);
  allocate(8192, 100);
  EXPECT_EQ(watch_->live().size(), 2U);
}

TEST_F(AllocationWatches, AreOverInTheChildOfAFork) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP();
#endif
  watch_->watch(false);
  allocate(4096, 100);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);  // a child that hangs says no
    allocate(8192, 100);
    const AllocationWatch::State state = watch_->state();
    watch_->unwatch();
    const bool right = !state.watching && state.why.find("forked") != std::string::npos && watch_->live().empty() &&
                       watch_->watch(false).find("forked") != std::string::npos;
    const Session session(*vendor_, {});
    _exit(right && session.tier() == "cpu" && cupti_.subscriptions == 1 ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(watch_->live().size(), 1U);
}

}  // namespace
}  // namespace gpuscope::session
