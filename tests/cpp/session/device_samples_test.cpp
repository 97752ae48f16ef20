// SPDX-License-Identifier: Apache-2.0
// What NVML tells beside a recording, as rows of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "fakes/cuda.h"
#include "fakes/cupti.h"
#include "fakes/nvml.h"
#include "gpuscope/attribution/decoder.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/nvml/recording_sampler.h"
#include "gpuscope/session/session.h"

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;
using store::kNotRead;
using store::Store;

class DeviceSamples : public testing::Test {
 protected:
  DeviceSamples() {
    fakes::Cuda::reset().active_contexts = 1;
    options_.nvml = fakes::Nvml::reset().table();
    options_.nvml.uuid = [](driver::NvmlDevice, char* text, unsigned length) {
      driver::uuid_text({}).copy(text, length - 1);
      return 0;
    };
    options_.device_interval = 2ms;
    vendor_ = std::make_unique<Vendor>(fakes::Cuda::instance().table(), fakes::Cupti::reset().table());
  }

  static uint64_t number(const Store& store, const char* key) {
    return std::strtoull(std::string(store.find_info(key)).c_str(), nullptr, 10);
  }

  std::unique_ptr<Vendor> vendor_;
  Options options_;
};

TEST_F(DeviceSamples, AreRowsOfTheirWindow) {
  Session session(*vendor_, options_);
  std::this_thread::sleep_for(20ms);
  const int64_t open_ns = base::Clock::process().now_ns();
  session.open();
  std::this_thread::sleep_for(50ms);
  const std::unique_ptr<Store> store = session.cut();
  ASSERT_GE(store->device_sample.size(), 2U);
  ASSERT_GE(store->device_counter.size(), 2U);
  for (std::size_t row = 0; row < store->device_sample.size(); ++row) {
    EXPECT_GE(store->device_sample.start_ns[row], open_ns);
    EXPECT_EQ(store->device_sample.device[row], 0U);
  }
  EXPECT_EQ(number(*store, "audit.device_samples"), store->device_sample.size() + store->device_counter.size());
  EXPECT_GT(number(*store, "audit.device_samples_cpu_ns"), 0U);
  EXPECT_EQ(store->find_info("device_samples.why"), "");
  session.open();
  const std::unique_ptr<Store> next = session.stop();
  EXPECT_GE(next->device_sample.size(), 1U);  // read at the end
  EXPECT_GE(next->device_sample.start_ns[0], store->device_sample.start_ns[store->device_sample.size() - 1]);
}

TEST_F(DeviceSamples, ThatAreNotAskedForAreNotRead) {
  options_.device_interval = {};
  options_.nvml.init = [] {
    ADD_FAILURE() << "NVML was initialised";
    return 0;
  };
  Session session(*vendor_, options_);
  session.open();
  const std::unique_ptr<Store> store = session.stop();
  EXPECT_EQ(store->device_sample.size(), 0U);
  EXPECT_EQ(store->find_info("audit.device_samples"), "");
}

TEST_F(DeviceSamples, SayWhyThereAreNone) {
  fakes::Cuda::instance().active_contexts = 0;
  Session session(*vendor_, options_);
  session.open();
  const std::unique_ptr<Store> store = session.stop();
  EXPECT_EQ(store->device_sample.size(), 0U);
  EXPECT_EQ(store->find_info("device_samples.why"), "the process has no context on a GPU");
}

TEST_F(DeviceSamples, SayWhatNvmlDoesNotTell) {
  options_.nvml.energy = nullptr;
  Session session(*vendor_, options_);
  session.open();
  const std::unique_ptr<Store> store = session.stop();
  EXPECT_EQ(store->find_info("device_samples.0.energy_mj"), "this driver's NVML cannot tell");
}

TEST_F(DeviceSamples, LeaveTheChildOfAForkAlone) {
  Session session(*vendor_, options_);
  session.open();
  std::this_thread::sleep_for(20ms);
  const pid_t child = fork();
  if (child == 0) {
    _exit(session.stop() == nullptr ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_GE(session.stop()->device_sample.size(), 1U);
}

/// So many rounds of a device, a second from each other.
nvml::RecordingSampler::Rows rounds(int64_t first, int64_t count, int64_t open_ns) {
  nvml::RecordingSampler::Rows rows;
  for (int64_t round = first; round < first + count; ++round) {
    const int64_t time_ns = open_ns + round * 1'000'000'000;
    store::DeviceSamples::Row sample{};
    sample.start_ns = time_ns;
    sample.power_mw = 1;
    sample.power_limit_default_mw = kNotRead;
    rows.samples.push_back(sample);
    store::DeviceCounters::Row counter{};
    counter.start_ns = time_ns;
    counter.energy_mj = round;
    rows.counters.push_back(counter);
  }
  return rows;
}

TEST_F(DeviceSamples, OfLongRunsThatKeepTotalsAreThinnedOutAndKeepTheirEnds) {
  attribution::Settings settings;
  settings.mode = attribution::Mode::Aggregate;
  attribution::Decoder decoder(settings, vendor_->collector.cupti(), 0);
  const int64_t open_ns = base::Clock::process().now_ns();
  decoder.window().open_ns = open_ns;
  constexpr int64_t kRounds = 50'000;
  for (int64_t first = 0; first < kRounds; first += 1000) {
    const nvml::RecordingSampler::Rows rows = rounds(first, 1000, open_ns);
    decoder.take_device_samples(rows.samples, rows.counters);
  }
  const uint64_t thinned = decoder.state().counters.device_samples_thinned;
  const std::unique_ptr<Store> store = decoder.finish(open_ns + kRounds * 1'000'000'000);
  EXPECT_LE(store->device_sample.size(), 8192U);
  EXPECT_LE(store->device_counter.size(), 8192U);
  EXPECT_EQ(store->device_counter.energy_mj[0], 0);
  EXPECT_EQ(store->device_counter.energy_mj[store->device_counter.size() - 1], kRounds - 1);
  EXPECT_EQ(thinned, 2 * kRounds - store->device_sample.size() - store->device_counter.size());
}

TEST_F(DeviceSamples, StayWithinARing) {
  attribution::Settings settings;
  settings.mode = attribution::Mode::Ring;
  settings.ring_ns = 10'000'000'000;
  attribution::Decoder decoder(settings, vendor_->collector.cupti(), 0);
  const int64_t open_ns = base::Clock::process().now_ns();
  decoder.window().open_ns = open_ns;
  for (int64_t first = 0; first < 1000; first += 10) {
    const nvml::RecordingSampler::Rows rows = rounds(first, 10, open_ns);
    decoder.take_device_samples(rows.samples, rows.counters);
  }
  const std::unique_ptr<Store> store = decoder.finish(open_ns + 1'000'000'000'000);
  EXPECT_LE(store->device_sample.size(), 30U);
  EXPECT_GE(store->device_sample.size(), 10U);
}

TEST_F(DeviceSamples, AreRefusedWhereMemoryIsFull) {
  attribution::Settings settings;
  settings.max_bytes = 100'000;
  attribution::Decoder decoder(settings, vendor_->collector.cupti(), 0);
  const int64_t open_ns = base::Clock::process().now_ns();
  decoder.window().open_ns = open_ns;
  for (int64_t first = 0; first < 10'000; first += 100) {
    const nvml::RecordingSampler::Rows rows = rounds(first, 100, open_ns);
    decoder.take_device_samples(rows.samples, rows.counters);
  }
  EXPECT_GT(decoder.state().counters.refused, 10'000U);
  EXPECT_LE(decoder.finish(open_ns + 1)->device_sample.size(), 2000U);
}

}  // namespace
}  // namespace gpuscope::session
