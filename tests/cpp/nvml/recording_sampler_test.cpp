// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/recording_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fakes/cuda.h"
#include "fakes/nvml.h"
#include "gpuscope/base/clock.h"

namespace gpuscope::nvml {
namespace {

using namespace std::chrono_literals;
using store::kNotRead;

std::string uuid_of(unsigned number) {
  driver::CuUuid uuid{};
  uuid.bytes[0] = static_cast<unsigned char>(number);
  return driver::uuid_text(uuid);
}

std::atomic<int64_t> began_ns;  // the energy counter of the fake goes on each 20 ms since
std::atomic<int> energy_code;
std::atomic<bool> is_held;  // a call for the energy does not return
std::atomic<bool> is_inside;

class RecordingSamplers : public testing::Test {
 protected:
  RecordingSamplers() {
    fakes::Cuda::reset().active_contexts = 1;
    cuda_ = fakes::Cuda::instance().table();
    nvml_ = fake_.table();
    nvml_.uuid = [](driver::NvmlDevice, char* text, unsigned length) {
      uuid_of(0).copy(text, length - 1);
      return 0;
    };
    nvml_.energy = [](driver::NvmlDevice, unsigned long long* millijoules) {
      for (is_inside = true; is_held;) {
        std::this_thread::sleep_for(1ms);
      }
      is_inside = false;
      *millijoules = 1000 + static_cast<unsigned long long>((base::Clock::process().now_ns() - began_ns) / 20'000'000);
      return energy_code.load();
    };
    began_ns = base::Clock::process().now_ns();
    energy_code = 0;
    is_held = is_inside = false;
  }

  /// What came until this holds, or a minute has passed.
  static RecordingSampler::Rows take_until(RecordingSampler& sampling,
                                           const std::function<bool(const RecordingSampler::Rows&)>& is_enough) {
    RecordingSampler::Rows rows;
    for (const auto limit = std::chrono::steady_clock::now() + 60s;
         !is_enough(rows) && std::chrono::steady_clock::now() < limit; std::this_thread::sleep_for(1ms)) {
      RecordingSampler::Rows more = sampling.take();
      rows.samples.insert(rows.samples.end(), more.samples.begin(), more.samples.end());
      rows.counters.insert(rows.counters.end(), more.counters.begin(), more.counters.end());
    }
    return rows;
  }
  static auto samples(std::size_t count) {
    return [count](const RecordingSampler::Rows& rows) { return rows.samples.size() >= count; };
  }

  fakes::Nvml& fake_ = fakes::Nvml::reset();
  driver::Nvml nvml_;
  driver::Cuda cuda_;
};

TEST_F(RecordingSamplers, TellPowerClocksAndCountersInTheirUnits) {
  RecordingSampler sampling(nvml_, cuda_, 5ms);
  sampling.begin();
  const auto rows = take_until(sampling, samples(4));
  const auto fast = *std::ranges::find_if(rows.samples, [](const auto& row) { return row.power_mw >= 0; });
  EXPECT_EQ(fast.device, 0U);
  EXPECT_EQ(fast.power_mw, 123'456);
  EXPECT_EQ(fast.power_limit_mw, 700'000);
  EXPECT_EQ(fast.sm_mhz, 1980);
  EXPECT_EQ(fast.memory_mhz, 3201);
  EXPECT_EQ(fast.temperature_c, 41);
  EXPECT_EQ(fast.busy_percent, 99);
  EXPECT_EQ(fast.memory_busy_percent, 25);
  EXPECT_EQ(fast.memory_used_bytes, 30'000);
  EXPECT_EQ(fast.throttle_reasons, 4);
  EXPECT_EQ(fast.sm_max_mhz, kNotRead);  // is read more seldom
  const auto power = *std::ranges::find_if(rows.counters, [](const auto& row) { return row.sw_power_cap_ns >= 0; });
  EXPECT_EQ(power.sw_power_cap_ns, 74'000'000'000'000);  // as it was read
  EXPECT_EQ(power.sw_thermal_slowdown_ns, 269'000'000'000'000);
  EXPECT_EQ(power.hw_thermal_slowdown_ns, kNotRead);  // takes longer
  EXPECT_EQ(power.energy_mj, kNotRead);
  const auto heat =
      *std::ranges::find_if(rows.counters, [](const auto& row) { return row.hw_thermal_slowdown_ns >= 0; });
  EXPECT_EQ(heat.hw_thermal_slowdown_ns, 270'000'000'000'000);
  EXPECT_EQ(heat.hw_power_brake_slowdown_ns, 271'000'000'000'000);
  EXPECT_EQ(heat.sync_boost_ns, 76'000'000'000'000);
  const auto energy = *std::ranges::find_if(rows.counters, [](const auto& row) { return row.energy_mj >= 0; });
  EXPECT_GE(energy.energy_mj, 1000);
  EXPECT_EQ(energy.sw_power_cap_ns, kNotRead);  // has a time of its own
  EXPECT_EQ(energy.tick_ns, kNotRead);
}

TEST_F(RecordingSamplers, BeginWhenTheProgramUsesAGpu) {
  fakes::Cuda::instance().initialized = false;
  RecordingSampler sampling(nvml_, cuda_, 1ms);
  sampling.begin();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(sampling.take().size(), 0U);
  EXPECT_EQ(sampling.why_none(), "the process has no context on a GPU");
  fakes::Cuda::instance().initialized = true;
  EXPECT_GE(take_until(sampling, samples(1)).samples.size(), 1U);
  EXPECT_EQ(sampling.why_none(), "");
}

TEST_F(RecordingSamplers, SayWhyNvmlTellsNothing) {
  RecordingSampler sampling({}, cuda_, 1ms);
  sampling.begin();
  sampling.finish(60s);
  EXPECT_THAT(sampling.why_none(), testing::StartsWith("libnvidia-ml was not found"));
  EXPECT_EQ(sampling.take().size(), 0U);
}

TEST_F(RecordingSamplers, SayWhichFigureIsAbsentAndWhy) {
  energy_code = fakes::Nvml::kNotSupported;
  fake_.fields[269] = fakes::Nvml::kNotSupported;
  RecordingSampler sampling(nvml_, cuda_, 1ms);
  sampling.begin();
  take_until(sampling, samples(3));
  sampling.finish(60s);
  const RecordingSampler::Why why = sampling.why();
  EXPECT_EQ(why.at({0, "energy_mj"}), "Not Supported");
  EXPECT_EQ(why.at({0, "sw_thermal_slowdown_ns"}), "Not Supported");
  EXPECT_EQ(why.count({0, "power_mw"}), 0U);
  for (const auto& row : sampling.take().counters) {
    EXPECT_EQ(row.energy_mj, kNotRead);
    EXPECT_EQ(row.sw_thermal_slowdown_ns, kNotRead);
  }
}

TEST_F(RecordingSamplers, ReadAllOnceMoreAtTheEndHoweverLongTheInterval) {
  RecordingSampler sampling(nvml_, cuda_, std::chrono::hours(1));
  sampling.begin();
  take_until(sampling, samples(1));
  const int64_t before_ns = base::Clock::process().now_ns();
  sampling.finish(60s);
  const RecordingSampler::Rows last = sampling.take();
  EXPECT_TRUE(std::ranges::any_of(last.samples, [&](const auto& row) { return row.start_ns >= before_ns; }));
  EXPECT_TRUE(std::ranges::any_of(last.counters,
                                  [&](const auto& row) { return row.start_ns >= before_ns && row.energy_mj >= 1000; }));
}

TEST_F(RecordingSamplers, RestBetweenWindows) {
  RecordingSampler sampling(nvml_, cuda_, 1ms);
  sampling.begin();
  take_until(sampling, samples(2));
  sampling.finish(60s);
  sampling.take();
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(sampling.take().size(), 0U);
  sampling.begin();
  EXPECT_GE(take_until(sampling, samples(2)).samples.size(), 2U);
}

TEST_F(RecordingSamplers, ReadWhatTakesLongRarelyUnlessWhatHoldsClocksBackHasChanged) {
  static std::atomic<unsigned long long> reasons;
  reasons = 0x4;
  nvml_.clocks_event_reasons = [](driver::NvmlDevice, unsigned long long* bits) {
    *bits = reasons;
    return 0;
  };
  const auto is_of_heat = [](const auto& row) { return row.hw_thermal_slowdown_ns >= 0; };
  const auto has_heat = [&](const RecordingSampler::Rows& rows) {
    return std::ranges::any_of(rows.counters, is_of_heat);
  };
  RecordingSampler sampling(nvml_, cuda_, 1ms);
  sampling.begin();
  take_until(sampling, has_heat);
  std::this_thread::sleep_for(1500ms);
  EXPECT_FALSE(has_heat(sampling.take()));
  for (const unsigned long long bits : {0x44, 0x4}) {  // it begins, and ends
    reasons = bits;
    const auto before = std::chrono::steady_clock::now();
    take_until(sampling, has_heat);
    EXPECT_LT(std::chrono::steady_clock::now() - before, 1500ms);
  }
  reasons = 0x44;
  take_until(sampling, has_heat);
  take_until(sampling, has_heat);  // and goes on
  EXPECT_EQ(sampling.why().count({0, "hw_thermal_slowdown_ns"}), 0U);
}

TEST_F(RecordingSamplers, ReadTheEnergyAtBothEndsOfAWindowAndEachSecond) {
  const auto energies = [](const RecordingSampler::Rows& rows) {
    return std::ranges::count_if(rows.counters, [](const auto& row) { return row.energy_mj >= 0; });
  };
  RecordingSampler sampling(nvml_, cuda_, 10ms);
  for (int window = 0; window < 3; ++window) {
    sampling.begin();
    EXPECT_EQ(energies(take_until(sampling, samples(20))), 1);
    sampling.finish(60s);
    EXPECT_EQ(energies(sampling.take()), 1);
  }
  sampling.begin();
  const auto began = std::chrono::steady_clock::now();
  RecordingSampler::Rows two =
      take_until(sampling, [&](const RecordingSampler::Rows& rows) { return energies(rows) == 2; });
  EXPECT_GE(std::chrono::steady_clock::now() - began, 900ms);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
}

TEST_F(RecordingSamplers, GoOnReadingTheEnergyWhereAllOtherCallsTakeLong) {
  nvml_.power_usage = [](driver::NvmlDevice, unsigned* milliwatts) {
    std::this_thread::sleep_for(6ms);
    *milliwatts = 100'000;
    return 0;
  };
  RecordingSampler sampling(nvml_, cuda_, 5ms);
  sampling.begin();
  const auto has_energy = [](const RecordingSampler::Rows& rows) {
    return std::ranges::any_of(rows.counters, [](const auto& row) { return row.energy_mj >= 0; });
  };
  EXPECT_TRUE(has_energy(take_until(sampling, has_energy)));
  EXPECT_TRUE(has_energy(take_until(sampling, has_energy)));
}

TEST_F(RecordingSamplers, ReadEachSecondWhatDiffersSlowly) {
  static std::atomic<int> reads;
  reads = 0;
  nvml_.power_limit = [](driver::NvmlDevice, unsigned* milliwatts) {
    ++reads;
    *milliwatts = 700'000;
    return 0;
  };
  RecordingSampler sampling(nvml_, cuda_, 5ms);
  sampling.begin();
  const auto rows = take_until(sampling, samples(50));
  EXPECT_GE(reads, 1);
  EXPECT_LE(reads, 20);  // of fifty; more than one where this took seconds
  EXPECT_TRUE(std::ranges::any_of(rows.samples, [](const auto& row) { return row.power_limit_mw == kNotRead; }));
  EXPECT_TRUE(std::ranges::any_of(rows.samples, [](const auto& row) { return row.memory_used_bytes == kNotRead; }));
}

TEST_F(RecordingSamplers, EndWithoutACallThatDoesNotReturn) {
  // The thread that is left behind may go on while the next test makes the fake anew: it asks for nothing of that.
  nvml_.power_usage = nullptr;
  nvml_.memory_info = nullptr;
  nvml_.field_values = nullptr;
  nvml_.shutdown = [] { return 0; };
  is_held = true;
  auto sampling = std::make_unique<RecordingSampler>(nvml_, cuda_, 1ms);
  sampling->begin();
  while (!is_inside) {
    std::this_thread::sleep_for(1ms);
  }
  sampling->finish(1ms);
  sampling.reset();
  EXPECT_TRUE(is_inside);
  is_held = false;
  while (is_inside) {
    std::this_thread::sleep_for(1ms);
  }
}

TEST_F(RecordingSamplers, TellAPartOfAGpuByTheWhole) {
  nvml_.uuid = [](driver::NvmlDevice, char* text, unsigned length) {
    std::string("GPU-whole").copy(text, length - 1);
    return 0;
  };
  nvml_.pci_info = [](driver::NvmlDevice, driver::NvmlPciInfo* pci) {
    std::string("00000000:1B:00.0").copy(pci->bus_id.data(), 31);
    return 0;
  };
  cuda_.device_get_pci_bus_id = [](char* text, int length, driver::CuDevice) {
    std::string("0000:1b:00.0").copy(text, static_cast<std::size_t>(length) - 1);
    return 0;
  };
  RecordingSampler sampling(nvml_, cuda_, 1ms);
  sampling.begin();
  EXPECT_GE(take_until(sampling, samples(1)).samples.size(), 1U);
  sampling.finish(60s);
  EXPECT_THAT(sampling.why().at({0, "whole"}), testing::HasSubstr("(MIG)"));
}

TEST_F(RecordingSamplers, GoOnWhereAGpuIsLostForAWhile) {
  static std::atomic<bool> is_lost;
  is_lost = false;
  nvml_.device_by_index = [](unsigned, driver::NvmlDevice* device) {
    *device = reinterpret_cast<driver::NvmlDevice>(uintptr_t{1});
    return is_lost ? 15 : 0;
  };
  nvml_.utilization = [](driver::NvmlDevice, driver::NvmlUtilization* utilization) {
    *utilization = {99, 25};
    return is_lost ? 15 : 0;
  };
  RecordingSampler sampling(nvml_, cuda_, 1ms);
  sampling.begin();
  take_until(sampling, samples(3));
  is_lost = true;
  for (const auto limit = std::chrono::steady_clock::now() + 60s;
       !sampling.why().contains({0, "all"}) && std::chrono::steady_clock::now() < limit;) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(sampling.why().contains({0, "all"}));
  is_lost = false;
  sampling.take();
  EXPECT_GE(take_until(sampling, samples(1)).samples.size(), 1U);
}

TEST_F(RecordingSamplers, ThousandsOfThemComeAndGo) {
  for (int cycle = 0; cycle < 1'000; ++cycle) {
    RecordingSampler sampling(nvml_, cuda_, 1ms);
    sampling.begin();
  }
}

}  // namespace
}  // namespace gpuscope::nvml
