// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "fakes/nvml.h"
#include "gpuscope/nvml/device.h"

namespace gpuscope::nvml {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Pair;
using testing::SizeIs;

class GpuStatesOf : public testing::Test {
 protected:
  GpuState first() const { return read_gpu_states(nvml_).gpus.at(0); }

  fakes::Nvml& fake_ = fakes::Nvml::reset();
  driver::Nvml nvml_ = fake_.table();
};

TEST_F(GpuStatesOf, HoldWhatNvmlSaysInBaseUnits) {
  const GpuState state = first();
  EXPECT_EQ(state.name, "NVIDIA H100");
  EXPECT_DOUBLE_EQ(state.busy_ratio.value(), 0.99);
  EXPECT_DOUBLE_EQ(state.memory_busy_ratio.value(), 0.25);
  EXPECT_EQ(state.memory_used_bytes, 30'000U);
  EXPECT_EQ(state.memory_reserved_bytes, 500U);
  EXPECT_DOUBLE_EQ(state.power_w.value(), 123.456);
  EXPECT_EQ(state.energy_total_j, 1.5);
  EXPECT_EQ(state.sm_hz, 1.98e9);
  EXPECT_EQ(state.temperature_margin_c, 46);
  EXPECT_EQ(state.memory_temperature_c, 82);
  EXPECT_EQ(state.ecc_corrected, 10U);
  EXPECT_EQ(state.ecc_uncorrected, 11U);
  EXPECT_EQ(state.remapped_rows, 3U);
  EXPECT_EQ(state.remapping_pending, true);
  EXPECT_EQ(state.remapping_failed, false);
  EXPECT_EQ(state.throttle_bits, 0x4U);
  EXPECT_EQ(state.mig, true);
}

TEST_F(GpuStatesOf, HaveTheUseOfEncoderDecoderJpegAndBar1) {
  const GpuState state = first();
  EXPECT_DOUBLE_EQ(state.encoder_busy_ratio.value(), 0.31);
  EXPECT_DOUBLE_EQ(state.decoder_busy_ratio.value(), 0.32);
  EXPECT_DOUBLE_EQ(state.jpeg_busy_ratio.value(), 0.33);
  EXPECT_EQ(state.bar1_used_bytes, 2'000U);
  EXPECT_EQ(state.bar1_total_bytes, 128'000U);
}

TEST_F(GpuStatesOf, SayWhyADriverWithoutTheFunctionHasNoOpticalFlow) {
  const GpuState state = first();
  EXPECT_EQ(state.optical_flow_busy_ratio, std::nullopt);
  EXPECT_THAT(state.why, Contains(Pair("optical_flow_busy_ratio", kNoFunction)));
}

TEST_F(GpuStatesOf, TheEncoderIsNotReadInFastRounds) {
  GpuReader reader(nvml_, 0);
  reader.read_fast();
  EXPECT_EQ(reader.state().encoder_busy_ratio, std::nullopt);
  reader.read_slow();
  EXPECT_TRUE(reader.state().encoder_busy_ratio.has_value());
}

TEST_F(GpuStatesOf, CountHowLongEachReasonThrottled) {
  const GpuState state = first();
  std::map<std::string, double> seconds;
  for (std::size_t reason = 0; reason < kThrottleReasons.size(); ++reason) {
    if (state.throttled_s[reason].has_value()) {
      seconds[kThrottleReasons[reason].name] = *state.throttled_s[reason];
    }
  }
  EXPECT_THAT(seconds, ElementsAre(Pair("hw_power_brake_slowdown", 271'000), Pair("hw_thermal_slowdown", 270'000),
                                   Pair("sw_power_cap", 74'000), Pair("sw_thermal_slowdown", 269'000),
                                   Pair("sync_boost", 76'000)));
}

TEST_F(GpuStatesOf, ARefusedFigureIsAskedForOnce) {
  static int asked;
  asked = 0;
  nvml_.fan_speed = [](driver::NvmlDevice, unsigned*) {
    ++asked;
    return fakes::Nvml::kNotSupported;
  };
  GpuReader reader(nvml_, 0);
  reader.read_slow();
  reader.read_slow();
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(reader.state().why, Contains(Pair("fan_ratio", "Not Supported")));
}

TEST_F(GpuStatesOf, AFigureThatFailsForAMomentComesBack) {
  GpuReader reader(nvml_, 0);
  fake_.power_code = 999;
  reader.read_fast();
  EXPECT_EQ(reader.state().power_w, std::nullopt);
  fake_.power_code = 0;
  reader.read_fast();
  EXPECT_DOUBLE_EQ(reader.state().power_w.value(), 123.456);
  EXPECT_FALSE(reader.state().why.contains("power_w"));
}

/// Answers that stand for none: all bits set, -1 of numbers with a sign.
void answer_without_knowing(driver::Nvml& nvml) {
  nvml.power_usage = nvml.power_limit = nvml.power_limit_default = nvml.fan_speed = nvml.performance_state =
      nvml.pcie_generation = nvml.pcie_width = [](driver::NvmlDevice, unsigned* number) {
        *number = UINT_MAX;
        return 0;
      };
  nvml.clock_info = nvml.max_clock_info = nvml.temperature = [](driver::NvmlDevice, int, unsigned* number) {
    *number = UINT_MAX;
    return 0;
  };
  nvml.energy = nvml.clocks_event_reasons = [](driver::NvmlDevice, unsigned long long* number) {
    *number = ULLONG_MAX;
    return 0;
  };
  nvml.utilization = [](driver::NvmlDevice, driver::NvmlUtilization* share) {
    *share = {UINT_MAX, UINT_MAX};
    return 0;
  };
  nvml.encoder_utilization = [](driver::NvmlDevice, unsigned* percent, unsigned*) {
    *percent = UINT_MAX;
    return 0;
  };
  nvml.bar1_memory = [](driver::NvmlDevice, driver::NvmlBar1Memory* bar1) {
    bar1->total = bar1->used = bar1->free = ULLONG_MAX;
    return 0;
  };
  nvml.memory_info = [](driver::NvmlDevice, driver::NvmlMemory* memory) {
    memory->total = memory->used = memory->free = ULLONG_MAX;
    return 0;
  };
  nvml.field_values = [](driver::NvmlDevice, int, driver::NvmlFieldValue* value) {
    constexpr int kUnsignedInt = 1;
    value->type = kUnsignedInt;
    value->value.fill(std::byte{0xFF});
    return 0;
  };
}

TEST_F(GpuStatesOf, AreNotKnownWhereNvmlAnswersWithoutANumber) {
  answer_without_knowing(nvml_);
  const GpuState state = first();
  for (const auto& figure :
       {state.power_w, state.power_limit_w, state.power_limit_default_w, state.power_instant_w, state.fan_ratio,
        state.sm_hz, state.sm_max_hz, state.temperature_c, state.memory_temperature_c, state.energy_total_j,
        state.busy_ratio, state.encoder_busy_ratio}) {
    EXPECT_EQ(figure, std::nullopt);
  }
  for (const auto& figure : {state.memory_used_bytes, state.memory_total_bytes, state.bar1_used_bytes,
                             state.pcie_generation, state.pcie_width, state.performance_state}) {
    EXPECT_EQ(figure, std::nullopt);
  }
  EXPECT_EQ(state.throttle_bits, std::nullopt);
  for (const char* figure : {"power_w", "power_instant_w", "memory_total_bytes", "sm_max_hz", "performance_state"}) {
    EXPECT_THAT(state.why, Contains(Pair(figure, kNotKnown)));
  }
}

TEST_F(GpuStatesOf, AFigureThatIsNotKnownForAMomentComesBack) {
  static bool is_known;
  is_known = false;
  nvml_.power_usage = [](driver::NvmlDevice, unsigned* milliwatts) {
    *milliwatts = is_known ? 5'000 : UINT_MAX;
    return 0;
  };
  GpuReader reader(nvml_, 0);
  reader.read_fast();
  EXPECT_EQ(reader.state().power_w, std::nullopt);
  is_known = true;
  reader.read_fast();
  EXPECT_DOUBLE_EQ(reader.state().power_w.value(), 5);
  EXPECT_FALSE(reader.state().why.contains("power_w"));
}

TEST_F(GpuStatesOf, APerformanceStateThatIsCalledUnknownIsNotKnown) {
  nvml_.performance_state = [](driver::NvmlDevice, unsigned* state) {
    *state = 32;  // NVML_PSTATE_UNKNOWN
    return 0;
  };
  EXPECT_EQ(first().performance_state, std::nullopt);
}

TEST(FieldValues, BelowZeroAreNone) {
  driver::NvmlFieldValue value;
  for (const int type : {0, 1, 2, 3, 4, 5, 6}) {
    value.type = type;
    value.value.fill(std::byte{0xFF});
    EXPECT_TRUE(std::isnan(value.number()));
  }
}

TEST_F(GpuStatesOf, AGpuThatComesBackIsReadAgain) {
  fake_.index_code = 15;
  GpuReader reader(nvml_, 1);
  reader.read_fast();
  EXPECT_THAT(reader.state().why, ElementsAre(Pair("all", "Unknown Error")));
  fake_.index_code = 0;
  reader.read_fast();
  EXPECT_EQ(reader.state().name, "NVIDIA H100");
  EXPECT_EQ(reader.state().busy_ratio, 0.99);
}

TEST_F(GpuStatesOf, AGpuThatIsLostKeepsItsNamesAndNoFigure) {
  GpuReader reader(nvml_, 0);
  reader.read_fast();
  reader.read_slow();
  fake_.power_code = 15;
  reader.read_fast();
  EXPECT_EQ(reader.state().busy_ratio, std::nullopt);
  EXPECT_EQ(reader.state().energy_total_j, std::nullopt);
  EXPECT_EQ(reader.state().name, "NVIDIA H100");
  EXPECT_THAT(reader.state().why, ElementsAre(Pair("all", "Unknown Error")));
  fake_.power_code = 0;
  reader.read_fast();
  EXPECT_DOUBLE_EQ(reader.state().power_w.value(), 123.456);
  EXPECT_FALSE(reader.state().why.contains("all"));
}

TEST_F(GpuStatesOf, ADriverThatWasLoadedAnewIsInitialisedAgain) {
  static int initialised;
  initialised = 0;
  nvml_.init = [] {
    ++initialised;
    return 0;
  };
  GpuReader reader(nvml_, 0);
  fake_.power_code = 1;  // not initialised
  reader.read_fast();
  fake_.power_code = 0;
  reader.read_fast();
  EXPECT_EQ(initialised, 1);
  EXPECT_TRUE(reader.state().power_w.has_value());
}

TEST_F(GpuStatesOf, AGpuThatStaysLostIsLookedForEverMoreSeldom) {
  static int asked;
  asked = 0;
  nvml_.device_by_index = [](unsigned, driver::NvmlDevice*) {
    ++asked;
    return 15;
  };
  GpuReader reader(nvml_, 0);
  for (int round = 0; round < 1'000; ++round) {
    reader.read_fast();
  }
  EXPECT_LE(asked, 4);
}

TEST_F(GpuStatesOf, WhatIsNotPermittedIsNamedAndNotAskedForAgainUntilThatIsForgotten) {
  static int asked;
  asked = 0;
  nvml_.fan_speed = [](driver::NvmlDevice, unsigned* percent) {
    *percent = 50;
    return asked++ == 0 ? 4 : 0;
  };
  GpuReader reader(nvml_, 0);
  reader.read_slow();
  reader.read_slow();
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(reader.state().fan_ratio, std::nullopt);
  reader.forget_refusals();
  reader.read_slow();
  EXPECT_EQ(reader.state().fan_ratio, 0.5);
}

TEST_F(GpuStatesOf, BytesOfTheLinkAreReadWhereTheyCannotWrapUnseen) {
  nvml_.pcie_generation_max = [](driver::NvmlDevice, unsigned* generation) {
    *generation = 5;
    return 0;
  };
  nvml_.pcie_width_max = [](driver::NvmlDevice, unsigned* lanes) {
    *lanes = 16;
    return 0;
  };
  GpuReader reader(nvml_, 0);
  reader.read_link_bytes(std::chrono::milliseconds(50));
  EXPECT_TRUE(reader.state().pcie_sent_bytes.has_value());
  reader.read_link_bytes(std::chrono::milliseconds(100));
  EXPECT_FALSE(reader.state().pcie_sent_bytes.has_value());
  EXPECT_THAT(reader.state().why.at("pcie_sent_bytes"), testing::HasSubstr("may wrap each 68 ms"));
}

TEST_F(GpuStatesOf, TheWidestLinkIsAskedForOnceHoweverOftenBytesAreRead) {
  static int asked;
  asked = 0;
  nvml_.pcie_generation_max = [](driver::NvmlDevice, unsigned* generation) {
    ++asked;
    *generation = 4;
    return 0;
  };
  GpuReader reader(nvml_, 0);
  for (int round = 0; round < 10; ++round) {
    reader.read_link_bytes(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(reader.state().pcie_sent_bytes.has_value());
}

TEST_F(GpuStatesOf, WhatTakesLongIsReadByItself) {
  GpuReader reader(nvml_, 0);
  reader.read_slow();
  const auto count = [&reader](const char* name) {
    const auto found = std::ranges::find(kThrottleReasons, std::string_view(name), &ThrottleReason::name);
    return reader.state().throttled_s[static_cast<std::size_t>(found - kThrottleReasons.begin())];
  };
  EXPECT_EQ(reader.state().energy_total_j, std::nullopt);
  EXPECT_EQ(count("hw_thermal_slowdown"), std::nullopt);
  EXPECT_EQ(count("sw_power_cap"), 74'000);
  reader.read_rare();
  EXPECT_EQ(reader.state().energy_total_j, std::nullopt);
  EXPECT_EQ(count("hw_thermal_slowdown"), 270'000);
  EXPECT_TRUE(reader.state().ecc_corrected.has_value());
  reader.read_energy();
  EXPECT_EQ(reader.state().energy_total_j, 1.5);
}

TEST(LinkRates, AreThoseOfTheGenerations) {
  EXPECT_DOUBLE_EQ(link_bytes_per_s(3, 16), 15.76e9);
  EXPECT_DOUBLE_EQ(link_bytes_per_s(0, 16), 0);
  EXPECT_DOUBLE_EQ(link_bytes_per_s(99, 16), 0);
}

TEST_F(GpuStatesOf, SayWhyAFigureIsAbsent) {
  nvml_.energy = nullptr;
  nvml_.fan_speed = [](driver::NvmlDevice, unsigned*) { return fakes::Nvml::kNotSupported; };
  fake_.fields[271] = fakes::Nvml::kNotSupported;
  const GpuState state = first();
  EXPECT_EQ(state.energy_total_j, std::nullopt);
  EXPECT_EQ(state.fan_ratio, std::nullopt);
  EXPECT_THAT(state.why, Contains(Pair("energy_total_j", "this driver's NVML cannot tell")));
  EXPECT_THAT(state.why, Contains(Pair("fan_ratio", "Not Supported")));
  EXPECT_THAT(state.why, Contains(Pair("throttled_s.hw_power_brake_slowdown", "Not Supported")));
  EXPECT_EQ(state.busy_ratio, 0.99);
}

TEST_F(GpuStatesOf, HoldEveryProcessHoweverMany) {
  fake_.processes.assign(100, {7, 1000});
  EXPECT_THAT(first().processes.value(), SizeIs(100));
}

TEST_F(GpuStatesOf, AGpuThatIsLostHidesNoOther) {
  fake_.gpus = 3;
  fake_.index_code = 15;
  const GpuStates states = read_gpu_states(nvml_);
  ASSERT_THAT(states.gpus, SizeIs(3));
  EXPECT_THAT(states.gpus[1].why, ElementsAre(Pair("all", "Unknown Error")));
  EXPECT_EQ(states.gpus[2].busy_ratio, 0.99);
  EXPECT_EQ(states.why, "");
}

TEST_F(GpuStatesOf, SayWhyThereAreNone) {
  fake_.gpus = 0;
  EXPECT_EQ(read_gpu_states(nvml_).why, "NVML shows no GPU");
  fake_.count_code = 3;
  EXPECT_EQ(read_gpu_states(nvml_).why, "nvmlDeviceGetCount_v2 failed: Not Supported");
  fake_.init_code = 18;
  EXPECT_EQ(read_gpu_states(nvml_).why, "nvmlInit_v2 failed: Unknown Error");
  EXPECT_THAT(read_gpu_states({}).why, testing::StartsWith("libnvidia-ml was not found"));
}

}  // namespace
}  // namespace gpuscope::nvml
