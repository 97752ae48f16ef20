// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "fakes/cuda.h"
#include "fakes/cupti.h"
#include "fakes/profilers.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/session/session.h"

namespace gpuscope::session {
namespace {

using fakes::Profilers;
using store::Store;
using testing::HasSubstr;

class SampledCounters : public testing::Test {
 protected:
  SampledCounters() : fake_(Profilers::reset()) {
    fakes::Cuda::reset();
    vendor_ = std::make_unique<Vendor>(fakes::Cuda::instance().table(), fake_.in(fakes::Cupti::reset().table()));
    options_.counters.metrics = {"sm__cycles.sum", "dram__bytes.sum"};
  }

  /// A sample that ends now and begins where the last one has ended, or an empty one.
  void write(bool empty = false) {
    const int64_t now_ns = base::Clock::process().now_ns();
    const int64_t start_ns = end_ns_ != 0 ? end_ns_ : now_ns - 1000;
    end_ns_ = empty ? start_ns : now_ns;
    fake_.write(static_cast<uint64_t>(start_ns), static_cast<uint64_t>(end_ns_));
  }
  static std::string info(const Store& store, const char* key) { return std::string(store.find_info(key)); }

  Profilers& fake_;
  int64_t end_ns_ = 0;  // of the last sample
  std::unique_ptr<Vendor> vendor_;
  Options options_;
};

TEST_F(SampledCounters, AreRowsOfTheWindowThatTheyBeganIn) {
  Session session(*vendor_, options_);
  write();
  write();
  session.open();
  const int64_t open_ns = base::Clock::process().now_ns();
  write();  // began before
  write(true);
  const int64_t start_ns = end_ns_;
  for (int sample = 0; sample < 3; ++sample) {
    while (base::Clock::process().now_ns() < open_ns + 2000 * (sample + 1)) {
    }
    write();
  }
  const std::unique_ptr<Store> store = session.cut();
  write();
  ASSERT_EQ(store->counter_sample.size(), 3U);
  ASSERT_EQ(store->counter_value.size(), 6U);
  ASSERT_EQ(store->counter.size(), 2U);
  EXPECT_EQ(store->strings[store->counter.name[0]], "sm__cycles.sum");
  EXPECT_EQ(store->strings[store->counter.name[1]], "dram__bytes.sum");
  EXPECT_EQ(store->strings[store->counter.description[1]], "what it counts");
  for (uint32_t row = 0; row < 6; ++row) {
    EXPECT_EQ(store->counter_value.sample[row], row / 2);
    EXPECT_EQ(store->counter_value.counter[row], row % 2);
    // The fake's values: a base, and the number of the sample, of which four came before.
    EXPECT_EQ(store->counter_value.value[row], static_cast<float>((row % 2 + 1) * 1000 + 4 + row / 2));
  }
  EXPECT_EQ(store->counter_sample.start_ns[0], start_ns);
  EXPECT_EQ(store->counter_sample.start_ns[1], start_ns + store->counter_sample.duration_ns[0]);
  EXPECT_EQ(info(*store, "audit.counter_samples"), "3");
  EXPECT_EQ(info(*store, "audit.counter_overflows"), "0");
  EXPECT_EQ(info(*store, "counters.why"), "");
  session.open();
  const std::unique_ptr<Store> next = session.stop();
  EXPECT_EQ(next->counter_sample.size(), 0U);
  EXPECT_EQ(fake_.enabled, 0);
}

TEST_F(SampledCounters, ThatAreRefusedLeaveTheRecordingAsItIs) {
  fake_.codes = {{"pm_availability", CUPTI_ERROR_INSUFFICIENT_PRIVILEGES}};
  Session session(*vendor_, options_);
  session.open();
  fakes::Cupti::instance().launch("kernel");
  const std::unique_ptr<Store> store = session.stop();
  EXPECT_EQ(store->kernel.size(), 1U);
  EXPECT_EQ(store->counter_sample.size(), 0U);
  EXPECT_THAT(info(*store, "counters.why"), HasSubstr("NVreg_RestrictProfilingToAdminUsers=0"));
  EXPECT_EQ(store->find_info("audit.counter_samples"), "");
}

TEST_F(SampledCounters, ThatAreNotAskedForAreNotTouched) {
  options_.counters.metrics.clear();
  Session session(*vendor_, options_);
  session.open();
  const std::unique_ptr<Store> store = session.stop();
  EXPECT_EQ(fake_.calls_of("profiler_initialize"), 0);
  EXPECT_EQ(store->find_info("counters.why"), "");
}

TEST_F(SampledCounters, ThatDoNotExistEndTheSession) {
  options_.counters.metrics.emplace_back("nonsense");
  options_.counters.in_full = true;
  EXPECT_THROW(Session(*vendor_, options_), base::InvalidArgument);
  EXPECT_FALSE(Session::active());
  options_.counters.in_full = false;
  Session session(*vendor_, options_);
  session.open();
  while (fake_.calls_of("pm_decode") < 2) {
  }
  const std::unique_ptr<Store> store = session.stop();
  EXPECT_EQ(info(*store, "counters.left_out"), "nonsense");
}

TEST_F(SampledCounters, CountTheFullBuffersInTheAudit) {
  Session session(*vendor_, options_);
  session.open();
  {
    const std::lock_guard lock(fake_.mutex);
    fake_.overflows = 2;
  }
  const std::unique_ptr<Store> first = session.cut();
  session.open();
  const std::unique_ptr<Store> second = session.stop();
  EXPECT_EQ(std::stoi(info(*first, "audit.counter_overflows")) + std::stoi(info(*second, "audit.counter_overflows")),
            2);
}

TEST_F(SampledCounters, AreKeptWithWhatWasLostWhenAnotherProfilerComes) {
  Session session(*vendor_, options_);
  session.open();
  for (int sample = 0; sample < 3; ++sample) {
    write();
  }
  {
    const std::lock_guard lock(fake_.mutex);
    fake_.overflows = 1;
  }
  session.release_cupti();
  EXPECT_EQ(fake_.enabled, 0);
  const std::unique_ptr<Store> store = session.cut();
  EXPECT_EQ(info(*store, "audit.counter_overflows"), "1");
  EXPECT_THAT(info(*store, "counters.why"), HasSubstr("another profiler"));
  session.open();
  const std::unique_ptr<Store> next = session.stop();
  EXPECT_EQ(next->find_info("audit.counter_overflows"), "");
  EXPECT_THAT(info(*next, "counters.why"), HasSubstr("another profiler"));
}

TEST_F(SampledCounters, OfARingGoWithTheirValues) {
  options_.settings.mode = attribution::Mode::Ring;
  options_.settings.ring_ns = 20'000'000;
  Session session(*vendor_, options_);
  session.open();
  const int64_t begin_ns = base::Clock::process().now_ns();
  constexpr int kSamples = 4000;  // of three images: those of the last come at the end, and all stay
  for (int sample = 0; sample < kSamples; ++sample) {
    write();
    fakes::Cupti::instance().launch("kernel");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (sample % 250 == 0) {
      fake_.wait_decoded();
    }
  }
  const std::unique_ptr<Store> store = session.stop();
  const std::size_t samples = store->counter_sample.size();
  ASSERT_GT(samples, 0U);
  EXPECT_GT(store->counter_sample.start_ns[0], begin_ns + 100'000'000);
  ASSERT_EQ(store->counter_value.size(), 2 * samples);
  for (uint32_t row = 0; row < 2 * samples; ++row) {
    EXPECT_EQ(store->counter_value.sample[row], row / 2);
  }
}

}  // namespace
}  // namespace gpuscope::session
