// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/gpm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "fakes/nvml.h"

namespace gpuscope::nvml {
namespace {

using testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;

/// Performance counters of a GPU: the share of its time that each metric was active, since the moment 0.
struct Counters {
  static Counters& instance() {
    static Counters state;
    return state;
  }

  int support_code = 0;
  unsigned is_supported = 1;
  int sample_code = 0;
  int metrics_code = 0;
  int dram_code = 0;
  double percent = 50;
  int alive = 0;  // samples that were made and not freed
  int readings = 0;
  std::vector<std::pair<int, int>> pairs;  // numbers of the samples that were compared
};

class GpmReaders : public testing::Test {
 protected:
  GpmReaders() {
    Counters::instance() = {};
    nvml_.gpm_support = [](driver::NvmlDevice, driver::NvmlGpmSupport* support) {
      support->is_supported = Counters::instance().is_supported;
      return Counters::instance().support_code;
    };
    nvml_.gpm_sample_alloc = [](driver::NvmlGpmSample* sample) {
      ++Counters::instance().alive;
      *sample = reinterpret_cast<driver::NvmlGpmSample>(new int(0));
      return 0;
    };
    nvml_.gpm_sample_free = [](driver::NvmlGpmSample sample) {
      --Counters::instance().alive;
      delete reinterpret_cast<int*>(sample);
      return 0;
    };
    nvml_.gpm_sample_get = [](driver::NvmlDevice, driver::NvmlGpmSample sample) {
      *reinterpret_cast<int*>(sample) = ++Counters::instance().readings;
      return Counters::instance().sample_code;
    };
    nvml_.gpm_metrics = [](driver::NvmlGpmMetrics* asked) {
      Counters& counters = Counters::instance();
      counters.pairs.emplace_back(*reinterpret_cast<int*>(asked->before), *reinterpret_cast<int*>(asked->after));
      for (unsigned index = 0; index < asked->count; ++index) {
        asked->metrics[index].value = counters.percent;
        asked->metrics[index].code = asked->metrics[index].id == 10 ? counters.dram_code : 0;
      }
      return counters.metrics_code;
    };
  }

  fakes::Nvml& fake_ = fakes::Nvml::reset();
  Counters& counters_ = Counters::instance();
  driver::Nvml nvml_ = fake_.table();
};

TEST_F(GpmReaders, GiveMeansBetweenTwoSamplesInBaseUnits) {
  GpmReader reader(nvml_, nullptr);
  EXPECT_THAT(reader.read(1000 * kMs, true).why.at("sm_active_ratio"), HasSubstr("have not passed yet"));
  const GpmState& state = reader.read(1200 * kMs, true);
  EXPECT_EQ(state.sm_active_ratio, 0.5);
  EXPECT_EQ(state.dram_bandwidth_ratio, 0.5);
  EXPECT_EQ(state.pcie_sent_bytes_per_s, 50.0 * 1024 * 1024);
  EXPECT_TRUE(state.why.empty());
}

TEST_F(GpmReaders, CompareSamplesThatLieATenthOfASecondApartHoweverOftenTheyAreAsked) {
  GpmReader reader(nvml_, nullptr);
  for (int64_t ms = 1000; ms <= 2000; ms += 10) {
    reader.read(ms * kMs, true);
  }
  EXPECT_EQ(counters_.readings, 21);  // each 50 ms
  ASSERT_GE(counters_.pairs.size(), 10U);
  for (const auto& [before, after] : counters_.pairs) {
    EXPECT_EQ(after - before, 2);  // 100 ms
  }
}

TEST_F(GpmReaders, GiveMeansOfAnHour) {
  GpmReader reader(nvml_, nullptr);
  reader.read(1000 * kMs, true);
  EXPECT_EQ(reader.read(3'601'000 * kMs, true).sm_active_ratio, 0.5);
}

TEST_F(GpmReaders, NameAMetricThatIsNotCounted) {
  counters_.dram_code = fakes::Nvml::kNotSupported;
  GpmReader reader(nvml_, nullptr);
  reader.read(1000 * kMs, true);
  const GpmState& state = reader.read(2000 * kMs, true);
  EXPECT_FALSE(state.dram_bandwidth_ratio.has_value());
  EXPECT_EQ(state.why.at("dram_bandwidth_ratio"), "Not Supported");
  EXPECT_EQ(state.sm_active_ratio, 0.5);
}

TEST_F(GpmReaders, AreNotAskedAgainWhereTheGpuHasNone) {
  counters_.is_supported = 0;
  GpmReader reader(nvml_, nullptr);
  EXPECT_THAT(reader.read(1000 * kMs, true).why.at("sm_active_ratio"), HasSubstr("Hopper and later"));
  counters_.is_supported = 1;
  reader.read(2000 * kMs, true);
  EXPECT_EQ(counters_.readings, 0);
}

TEST_F(GpmReaders, SayWhyThereIsNothingInOldDrivers) {
  nvml_.gpm_metrics = nullptr;
  EXPECT_THAT(GpmReader(nvml_, nullptr).read(1, true).why.at("tensor_active_ratio"), HasSubstr("cannot tell"));
}

TEST_F(GpmReaders, DistrustZerosWhileKernelsRun) {
  counters_.percent = 0;
  GpmReader reader(nvml_, nullptr);
  reader.read(1000 * kMs, true);
  EXPECT_EQ(reader.read(2000 * kMs, true).sm_active_ratio, 0);  // utilization lags behind
  reader.read(3000 * kMs, true);
  const GpmState& state = reader.read(4500 * kMs, true);
  EXPECT_FALSE(state.sm_active_ratio.has_value());
  EXPECT_THAT(state.why.at("sm_active_ratio"), HasSubstr("read 0 while kernels run"));
  counters_.percent = 40;
  EXPECT_EQ(reader.read(6000 * kMs, true).sm_active_ratio, 0.4);
}

TEST_F(GpmReaders, BelieveZerosOfAnIdleGpu) {
  counters_.percent = 0;
  GpmReader reader(nvml_, nullptr);
  for (int64_t ms = 1000; ms < 20'000; ms += 500) {
    reader.read(ms * kMs, false);
  }
  EXPECT_EQ(reader.read(30'000 * kMs, false).sm_active_ratio, 0);
}

TEST_F(GpmReaders, ComeBackAfterAFailureThatPasses) {
  GpmReader reader(nvml_, nullptr);
  reader.read(1000 * kMs, true);
  counters_.sample_code = 999;
  EXPECT_EQ(reader.read(2000 * kMs, true).why.at("sm_active_ratio"), "Unknown Error");
  counters_.sample_code = 0;
  EXPECT_EQ(reader.read(3000 * kMs, true).sm_active_ratio, 0.5);
}

TEST_F(GpmReaders, ForgetASampleOfLongAgo) {
  GpmReader reader(nvml_, nullptr);
  reader.read(1000 * kMs, true);
  reader.read(8'000'000 * kMs, true);
  EXPECT_TRUE(counters_.pairs.empty());
}

TEST_F(GpmReaders, FreeTheirSamples) {
  { const GpmReader reader(nvml_, nullptr); }
  EXPECT_EQ(counters_.alive, 0);
}

}  // namespace
}  // namespace gpuscope::nvml
