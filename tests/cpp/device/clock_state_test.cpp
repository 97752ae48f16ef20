// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/clock_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes/gpu_work.h"
#include "fakes/nvml.h"

namespace gpuscope::device {
namespace {

using fakes::GpuWork;
using testing::HasSubstr;

class ClockStates : public testing::Test {
 protected:
  ClockStates() {
    cuda_.device_get_uuid = [](driver::CuUuid* uuid, driver::CuDevice) {
      for (int index = 0; index < 16; ++index) {
        uuid->bytes[index] = static_cast<unsigned char>(0xA0 + index);
      }
      return 0;
    };
    cuda_.device_get_pci_bus_id = [](char* text, int size, driver::CuDevice) {
      std::string("0000:1B:00.0").copy(text, static_cast<std::size_t>(size) - 1);
      return 0;
    };
  }
  ClockState read() const { return ClockReader(nvml_, cuda_, 0).read(); }

  fakes::Nvml& fake_ = fakes::Nvml::reset();
  driver::Nvml nvml_ = fake_.table();
  driver::Cuda cuda_ = GpuWork::reset().table();
};

TEST_F(ClockStates, HoldWhatNvmlSays) {
  const ClockState state = read();
  EXPECT_EQ(state.sm_hz, 1.98e9);
  EXPECT_EQ(state.memory_hz, 3.201e9);
  EXPECT_DOUBLE_EQ(state.power_w.value(), 123.456);
  EXPECT_DOUBLE_EQ(state.power_limit_w.value(), 700);
  EXPECT_EQ(state.temperature_c, 41);
  EXPECT_EQ(state.reasons, 0x4U);
  EXPECT_EQ(state.why, "");
}

TEST_F(ClockStates, AreOfTheGpuThatCudaMeans) {
  read();
  EXPECT_EQ(fake_.asked_uuid, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
}

TEST_F(ClockStates, AreOfTheWholeGpuWhenCudaMeansAPart) {
  fake_.uuid_code = 6;
  EXPECT_EQ(read().sm_hz, 1.98e9);
  EXPECT_EQ(fake_.asked_address, "0000:1B:00.0");
}

TEST_F(ClockStates, AskOldDriversForReasonsByTheOldName) {
  nvml_.clocks_event_reasons = nullptr;
  EXPECT_EQ(read().reasons, 0x8U);
}

TEST_F(ClockStates, NameWhatIsMissing) {
  fake_.power_code = fakes::Nvml::kNotSupported;
  nvml_.temperature = nullptr;
  const ClockState state = read();
  EXPECT_FALSE(state.power_w.has_value());
  EXPECT_FALSE(state.temperature_c.has_value());
  EXPECT_EQ(state.sm_hz, 1.98e9);
  EXPECT_EQ(state.why, "power_w: Not Supported; temperature_c: this driver's NVML cannot tell");
}

TEST_F(ClockStates, SayWhyThereIsNothingWithoutNvml) {
  nvml_ = {};
  const ClockState state = read();
  EXPECT_FALSE(state.sm_hz.has_value());
  EXPECT_FALSE(state.reasons.has_value());
  EXPECT_THAT(state.why, HasSubstr("libnvidia-ml was not found"));
}

TEST_F(ClockStates, SayWhyThereIsNothingWithoutCuda) {
  cuda_ = {};
  EXPECT_THAT(read().why, HasSubstr("no NVIDIA driver was found"));
}

TEST_F(ClockStates, SayWhyThereIsNothingWhenNvmlDoesNotStart) {
  fake_.init_code = 9;
  EXPECT_THAT(read().why, HasSubstr("nvmlInit_v2 failed: Unknown Error"));
}

TEST_F(ClockStates, SayWhyThereIsNothingForAGpuThatNvmlDoesNotKnow) {
  fake_.uuid_code = 6;
  fake_.address_code = 6;
  EXPECT_THAT(read().why, HasSubstr("NVML does not know device 0"));
}

TEST_F(ClockStates, LeaveNvmlRunningForOthers) {
  read();
  EXPECT_EQ(fake_.shutdowns, 0);
}

}  // namespace
}  // namespace gpuscope::device
