// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/monitor_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "fakes/nvml.h"
#include "gpuscope/base/clock.h"

namespace gpuscope::nvml {
namespace {

using namespace std::chrono_literals;

/// Those whose reading began before `since_ns` are left out.
std::vector<GpuSample> take_at_least(MonitorSampler& sampler, std::size_t count, int64_t since_ns = 0) {
  std::vector<GpuSample> taken;
  for (const auto limit = std::chrono::steady_clock::now() + 60s;
       taken.size() < count && std::chrono::steady_clock::now() < limit; std::this_thread::sleep_for(1ms)) {
    for (GpuSample& sample : sampler.take()) {
      if (sample.time_ns - sample.took_ns >= since_ns) {
        taken.push_back(std::move(sample));
      }
    }
  }
  return taken;
}

class MonitorSamplers : public testing::Test {
 protected:
  fakes::Nvml& fake_ = fakes::Nvml::reset();
  driver::Nvml nvml_ = fake_.table();
};

TEST_F(MonitorSamplers, GiveWhatIsReadFastAndSlowFromTheFirstSampleOn) {
  MonitorSampler sampler(nvml_, 1ms);
  const GpuSample sample = take_at_least(sampler, 1).at(0);
  EXPECT_EQ(sample.gpu, 0U);
  EXPECT_EQ(sample.state.busy_ratio, 0.99);
  EXPECT_EQ(sample.state.energy_total_j, 1.5);
  EXPECT_EQ(sample.state.name, "NVIDIA H100");
  EXPECT_GT(sample.process_cpu_s, 0);
  EXPECT_GT(sample.resident_bytes, 0U);
  EXPECT_GT(sample.took_ns, 0);
}

TEST_F(MonitorSamplers, GiveEachSampleOnceAndInOrder) {
  MonitorSampler sampler(nvml_, 1ms);
  const std::vector<GpuSample> samples = take_at_least(sampler, 20);
  for (std::size_t at = 1; at < samples.size(); ++at) {
    EXPECT_GT(samples[at].time_ns, samples[at - 1].time_ns);
  }
}

TEST_F(MonitorSamplers, SampleEveryGpu) {
  fake_.gpus = 3;
  MonitorSampler sampler(nvml_, 1ms);
  const std::vector<GpuSample> samples = take_at_least(sampler, 6);
  for (std::size_t at = 0; at < 6; ++at) {
    EXPECT_EQ(samples.at(at).gpu, at % 3);
  }
}

TEST_F(MonitorSamplers, SampleTheProcessWhereThereIsNoGpu) {
  MonitorSampler sampler({}, 1ms);
  EXPECT_THAT(sampler.why(), testing::StartsWith("libnvidia-ml was not found"));
  const GpuSample sample = take_at_least(sampler, 1).at(0);
  EXPECT_EQ(sample.gpu, GpuSample::kNoGpu);
  EXPECT_GT(sample.resident_bytes, 0U);
}

TEST_F(MonitorSamplers, GoOnWithTheOthersWhereAGpuIsLostMeanwhile) {
  static std::atomic<bool> is_lost;
  is_lost = false;
  fake_.gpus = 2;
  nvml_.device_by_index = [](unsigned index, driver::NvmlDevice* device) {
    *device = reinterpret_cast<driver::NvmlDevice>(uintptr_t{index} + 1);
    return index == 1 && is_lost ? 15 : 0;
  };
  nvml_.utilization = [](driver::NvmlDevice device, driver::NvmlUtilization* utilization) {
    *utilization = {99, 25};
    return device == reinterpret_cast<driver::NvmlDevice>(uintptr_t{2}) && is_lost ? 15 : 0;
  };
  MonitorSampler sampler(nvml_, 1ms);
  take_at_least(sampler, 4);
  is_lost = true;
  const int64_t lost_ns = base::Clock::process().to_ns(base::ticks());
  const std::vector<GpuSample> samples = take_at_least(sampler, 4, lost_ns);
  ASSERT_GE(samples.size(), 4U);
  for (const GpuSample& sample : samples) {
    EXPECT_EQ(sample.state.busy_ratio.has_value(), sample.gpu == 0);
    EXPECT_EQ(sample.state.energy_total_j.has_value(), sample.gpu == 0);  // nothing of before it was lost
    EXPECT_EQ(sample.state.why.contains("all"), sample.gpu == 1);
  }
}

TEST_F(MonitorSamplers, SayWhenWhatIsReadSeldomWasRead) {
  MonitorSampler sampler(nvml_, 1ms);
  const std::vector<GpuSample> samples = take_at_least(sampler, 5);
  for (const GpuSample& sample : samples) {
    EXPECT_GT(sample.slow_time_ns, 0);
    EXPECT_LE(sample.slow_time_ns, sample.time_ns);
    EXPECT_LE(sample.host_time_ns, sample.time_ns);
    EXPECT_GT(sample.host.machine_cpus.value(), 0U);
  }
}

TEST_F(MonitorSamplers, GiveSamplesThatAreTakenLateWhatWasReadSeldomBeforeThem) {
  static std::atomic<unsigned> speed;
  speed = 0;
  nvml_.fan_speed = [](driver::NvmlDevice, unsigned* percent) {
    *percent = ++speed;
    return 0;
  };
  MonitorSampler sampler(nvml_, 10ms);
  while (speed < 2) {
    std::this_thread::sleep_for(10ms);
  }
  std::this_thread::sleep_for(300ms);
  const std::vector<GpuSample> samples = sampler.take();
  ASSERT_FALSE(samples.empty());
  EXPECT_EQ(samples.front().state.fan_ratio, 0.01);
  EXPECT_EQ(samples.back().state.fan_ratio, 0.02);
  EXPECT_LT(samples.front().slow_time_ns, samples.back().slow_time_ns);
  EXPECT_LE(samples.back().slow_time_ns, samples.back().time_ns);
}

TEST_F(MonitorSamplers, NeverGiveWhatWasReadSeldomAfterTheSample) {
  nvml_.utilization = [](driver::NvmlDevice, driver::NvmlUtilization* utilization) {
    std::this_thread::sleep_for(700ms);  // slow figures are read in the second half of one of them
    *utilization = {99, 25};
    return 0;
  };
  MonitorSampler sampler(nvml_, 100ms);
  for (const GpuSample& sample : take_at_least(sampler, 4)) {
    EXPECT_LE(sample.slow_time_ns, sample.time_ns);
    EXPECT_LE(sample.host_time_ns, sample.time_ns);
  }
}

/// Counts what the sampler asks for: use in each round, energy, and a slow throttle time.
struct Asked {
  static inline std::atomic<int> use;
  static inline std::atomic<int> energy;
  static inline std::atomic<int> heat;
  static inline std::atomic<unsigned long long> reasons;
  static inline std::array<std::atomic<int>, 64> use_at_energy;  // `use` at each reading of the energy
  static inline std::chrono::nanoseconds energy_takes;

  static void reset(driver::Nvml& nvml, std::chrono::nanoseconds takes) {
    use = energy = heat = 0;
    reasons = 0x4;
    energy_takes = takes;
    nvml.utilization = [](driver::NvmlDevice, driver::NvmlUtilization* utilization) {
      ++use;
      *utilization = {99, 25};
      return 0;
    };
    nvml.energy = [](driver::NvmlDevice, unsigned long long* millijoules) {
      std::this_thread::sleep_for(energy_takes);
      use_at_energy.at(static_cast<std::size_t>(energy)) = use.load();
      *millijoules = static_cast<unsigned long long>(++energy);
      return 0;
    };
    nvml.field_values = [](driver::NvmlDevice, int, driver::NvmlFieldValue* value) {
      heat += value->field == 270 ? 1 : 0;
      value->code = 0;
      return 0;
    };
    nvml.clocks_event_reasons = [](driver::NvmlDevice, unsigned long long* bits) {
      *bits = reasons;
      return 0;
    };
  }
  static void await(const std::atomic<int>& what, int count) {
    for (const auto limit = std::chrono::steady_clock::now() + 60s;
         what < count && std::chrono::steady_clock::now() < limit; std::this_thread::sleep_for(1ms)) {
    }
  }
};

TEST_F(MonitorSamplers, ReadTheEnergyEachTwoSeconds) {
  Asked::reset(nvml_, 0ms);
  MonitorSampler sampler(nvml_, 50ms);
  const GpuSample first = take_at_least(sampler, 1).at(0);
  EXPECT_EQ(first.state.energy_total_j, 1e-3);
  std::this_thread::sleep_for(1500ms);
  EXPECT_EQ(sampler.take().back().rare_time_ns, first.rare_time_ns);
  Asked::await(Asked::energy, 2);
  const GpuSample next = take_at_least(sampler, 2, base::Clock::process().now_ns()).back();
  EXPECT_EQ(next.state.energy_total_j, 2e-3);
  EXPECT_GE(next.rare_time_ns - first.rare_time_ns, 1'900'000'000);
}

TEST_F(MonitorSamplers, ReadSlowTimesOfThrottlingRarelyUnlessAReasonOfTheirsHolds) {
  Asked::reset(nvml_, 0ms);
  MonitorSampler sampler(nvml_, 10ms);
  std::this_thread::sleep_for(2500ms);
  EXPECT_EQ(Asked::heat, 1);
  Asked::reasons = 0x44;  // the GPU is too hot
  const auto began = std::chrono::steady_clock::now();
  Asked::await(Asked::heat, 3);
  EXPECT_GE(std::chrono::steady_clock::now() - began, 900ms);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 6s);
}

TEST_F(MonitorSamplers, ReadOneSlowGroupARoundWhereThatTakesHalfOfTheInterval) {
  fake_.gpus = 3;
  Asked::reset(nvml_, 5ms);
  MonitorSampler sampler(nvml_, 4ms);
  Asked::await(Asked::energy, 6);  // the first three belong to the first samples
  EXPECT_GE(Asked::use_at_energy[4] - Asked::use_at_energy[3], 3);
  EXPECT_GE(Asked::use_at_energy[5] - Asked::use_at_energy[4], 3);
}

TEST_F(MonitorSamplers, ReadWhatDiffersSlowlyOnceASecond) {
  static std::atomic<int> reads;
  reads = 0;
  nvml_.margin_temperature = [](driver::NvmlDevice, driver::NvmlMarginTemperature*) {
    ++reads;
    return 0;
  };
  MonitorSampler sampler(nvml_, 50ms);
  std::this_thread::sleep_for(2500ms);
  EXPECT_GE(reads, 2);
  EXPECT_LE(reads, 3);
}

TEST_F(MonitorSamplers, ReadLimitsOnceASecond) {
  static std::atomic<int> reads;
  reads = 0;
  nvml_.power_limit = [](driver::NvmlDevice, unsigned* milliwatts) {
    *milliwatts = static_cast<unsigned>(40'000 + 1000 * reads++);
    return 0;
  };
  MonitorSampler sampler(nvml_, 50ms);
  std::this_thread::sleep_for(2500ms);
  const std::vector<GpuSample> samples = sampler.take();
  EXPECT_LE(reads, 3);
  EXPECT_GE(reads, 2);
  EXPECT_EQ(samples.back().state.power_limit_w, 40 + reads - 1);
}

TEST_F(MonitorSamplers, AskOnceForWhatDoesNotChange) {
  static std::atomic<int> reads;
  reads = 0;
  nvml_.max_clock_info = [](driver::NvmlDevice, int, unsigned* mhz) {
    ++reads;
    *mhz = 1980;
    return 0;
  };
  MonitorSampler sampler(nvml_, 50ms);
  std::this_thread::sleep_for(1500ms);
  EXPECT_EQ(reads, 2);  // of the processors and of the memory
  EXPECT_EQ(sampler.take().back().state.sm_max_hz, 1.98e9);
}

TEST_F(MonitorSamplers, AskAnewWhereTheGpuWasSplitOrMadeWhole) {
  static std::atomic<bool> is_split;
  is_split = true;
  nvml_.mig_mode = [](driver::NvmlDevice, unsigned* current, unsigned*) {
    *current = is_split ? 1 : 0;
    return 0;
  };
  nvml_.utilization = [](driver::NvmlDevice, driver::NvmlUtilization* utilization) {
    *utilization = {99, 25};
    return is_split ? fakes::Nvml::kNotSupported : 0;
  };
  MonitorSampler sampler(nvml_, 1ms);
  const GpuSample split = take_at_least(sampler, 5).back();
  EXPECT_EQ(split.state.mig, true);
  EXPECT_EQ(split.state.busy_ratio, std::nullopt);
  EXPECT_EQ(split.state.why.at("busy_ratio"), "Not Supported");
  is_split = false;
  GpuSample whole;
  for (const auto limit = std::chrono::steady_clock::now() + 60s;
       !whole.state.busy_ratio && std::chrono::steady_clock::now() < limit;) {
    whole = take_at_least(sampler, 1).back();
  }
  EXPECT_EQ(whole.state.mig, false);
  EXPECT_EQ(whole.state.busy_ratio, 0.99);
}

TEST_F(MonitorSamplers, CountTheRoundsThatSlowCallsMadeThemSkip) {
  nvml_.utilization = [](driver::NvmlDevice, driver::NvmlUtilization*) {
    std::this_thread::sleep_for(20ms);
    return 0;
  };
  MonitorSampler sampler(nvml_, 1ms);
  take_at_least(sampler, 3);
  EXPECT_GT(sampler.cost().skipped, 10U);
  EXPECT_GE(sampler.cost().longest_ns, 20'000'000);
}

TEST_F(MonitorSamplers, SayWhatTheyTook) {
  nvml_.utilization = [](driver::NvmlDevice, driver::NvmlUtilization*) {
    std::this_thread::sleep_for(3ms);
    return 0;
  };
  MonitorSampler sampler(nvml_, 20ms);
  take_at_least(sampler, 3);
  const SamplingCost cost = sampler.cost();
  EXPECT_GE(cost.mean_ns, 3'000'000);
  EXPECT_GE(cost.p99_ns, 2'900'000);
  EXPECT_GT(cost.cpu_ns, 0);
  EXPECT_GT(cost.elapsed_ns, cost.cpu_ns / 2);
}

TEST_F(MonitorSamplers, TellOfErrorsOfAGpuThatIsLostToo) {
  static std::atomic<int> told;
  static std::atomic<bool> is_lost;
  told = 0;
  is_lost = false;
  nvml_.event_set_create = [](driver::NvmlEventSet* set) {
    *set = reinterpret_cast<driver::NvmlEventSet>(uintptr_t{1});
    return 0;
  };
  nvml_.event_set_free = [](driver::NvmlEventSet) { return 0; };
  nvml_.register_events = [](driver::NvmlDevice, unsigned long long, driver::NvmlEventSet) { return 0; };
  nvml_.event_set_wait = [](driver::NvmlEventSet, driver::NvmlEvent* event, unsigned) {
    *event = {.device = reinterpret_cast<driver::NvmlDevice>(uintptr_t{1}), .type = 8, .data = 79};
    is_lost = true;
    return told++ == 0 ? 0 : 10;
  };
  nvml_.mig_mode = [](driver::NvmlDevice, unsigned*, unsigned*) { return is_lost ? 15 : 0; };
  nvml_.utilization = [](driver::NvmlDevice, driver::NvmlUtilization*) { return is_lost ? 15 : 0; };
  nvml_.device_by_index = [](unsigned, driver::NvmlDevice* device) {
    *device = reinterpret_cast<driver::NvmlDevice>(uintptr_t{1});
    return is_lost ? 15 : 0;
  };
  MonitorSampler sampler(nvml_, 20ms);
  GpuSample last;
  const auto is_lost_and_told = [&last] {
    return !last.state.xid_errors.value_or(std::vector<XidCount>{}).empty() && last.state.why.contains("all");
  };
  for (const auto limit = std::chrono::steady_clock::now() + 60s;
       !is_lost_and_told() && std::chrono::steady_clock::now() < limit;) {
    last = take_at_least(sampler, 1).back();
  }
  ASSERT_EQ(last.state.xid_errors.value().size(), 1U);
  EXPECT_EQ(last.state.xid_errors->at(0).xid, 79U);
  EXPECT_TRUE(last.state.why.contains("all"));
}

TEST_F(MonitorSamplers, StopAtOnceHoweverLongTheInterval) {
  MonitorSampler sampler(nvml_, std::chrono::hours(1));
  take_at_least(sampler, 1);
  const auto began = std::chrono::steady_clock::now();
  sampler.stop();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::minutes(10));
  sampler.stop();
  EXPECT_EQ(sampler.cost().rounds, 1U);
}

TEST_F(MonitorSamplers, LeaveACallBehindThatDoesNotReturn) {
  static std::atomic<bool> hangs;
  hangs = true;
  nvml_.utilization = [](driver::NvmlDevice, driver::NvmlUtilization*) {
    for (; hangs; std::this_thread::sleep_for(1ms)) {
    }
    return 0;
  };
  MonitorSampler sampler(nvml_, 1ms);
  EXPECT_FALSE(sampler.stop());
  EXPECT_EQ(sampler.cost().rounds, 0U);
  hangs = false;
  EXPECT_TRUE(sampler.stop());
}

TEST_F(MonitorSamplers, CountTheMemoryOfAGpuInstanceOnceHoweverManyComputeInstancesShareIt) {
  static const auto is_part = [](driver::NvmlDevice device) { return reinterpret_cast<uintptr_t>(device) >= 100; };
  nvml_.mig_count_max = [](driver::NvmlDevice, unsigned* count) {
    *count = 3;
    return 0;
  };
  nvml_.mig_device = [](driver::NvmlDevice, unsigned index, driver::NvmlDevice* handle) {
    *handle = reinterpret_cast<driver::NvmlDevice>(uintptr_t{100} + index);
    return 0;
  };
  nvml_.gpu_instance = [](driver::NvmlDevice handle, unsigned* number) {
    *number = reinterpret_cast<uintptr_t>(handle) == 100 ? 1 : 5;
    return 0;
  };
  nvml_.compute_instance = [](driver::NvmlDevice handle, unsigned* number) {
    *number = reinterpret_cast<uintptr_t>(handle) == 102 ? 1 : 0;
    return 0;
  };
  nvml_.memory_info = [](driver::NvmlDevice device, driver::NvmlMemory* memory) {
    memory->used = 1'000;
    return is_part(device) ? 0 : fakes::Nvml::kNotSupported;
  };
  MonitorSampler sampler(nvml_, 1ms);
  const GpuSample sample = take_at_least(sampler, 1).at(0);
  ASSERT_EQ(sample.state.instances.value().size(), 3U);
  EXPECT_EQ(sample.state.memory_used_bytes, 2'000U);
}

TEST_F(MonitorSamplers, KeepTheNewestWhereNobodyTakesThem) {
  fake_.gpus = 5'001;
  MonitorSampler sampler(nvml_, 1ms);
  while (sampler.cost().rounds < 3) {
    std::this_thread::sleep_for(1ms);
  }
  while (!sampler.stop()) {  // a round of so many takes longer than a stop waits, where the machine is busy
  }
  const uint64_t made = sampler.cost().rounds * 5'001;
  EXPECT_EQ(sampler.take().size(), 10'000U);
  EXPECT_EQ(sampler.cost().dropped, made - 10'000);
}

TEST_F(MonitorSamplers, EndInAForkedChildWithoutTheirThread) {
  MonitorSampler sampler(nvml_, 1ms);
  take_at_least(sampler, 1);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_empty = sampler.take().empty() && sampler.cost().rounds == 0;
    sampler.stop();
    _exit(is_empty ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(MonitorSamplers, AreDestroyedInAForkedChildWithoutWaitingForTheParentsThread) {
  auto sampler = std::make_unique<MonitorSampler>(nvml_, std::chrono::hours(1));
  take_at_least(*sampler, 1);
  std::this_thread::sleep_for(50ms);  // the thread waits
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    sampler.reset();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(MonitorSamplers, ThousandsOfThemComeAndGo) {
  for (int cycle = 0; cycle < 2'000; ++cycle) {
    MonitorSampler sampler(nvml_, 1ms);
    sampler.stop();
  }
}

}  // namespace
}  // namespace gpuscope::nvml
