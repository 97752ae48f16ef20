// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes/cuda.h"
#include "fakes/gpu_work.h"
#include "fakes/nvml.h"

namespace gpuscope::nvml {
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
  ClockState read() const { return Device(nvml_, cuda_, 0).clock_state(); }

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

TEST_F(ClockStates, NameWhatNvmlAnswersWithoutKnowingIt) {
  nvml_.power_limit = [](driver::NvmlDevice, unsigned* milliwatts) {
    *milliwatts = 0xFFFFFFFF;
    return 0;
  };
  const ClockState state = read();
  EXPECT_FALSE(state.power_limit_w.has_value());
  EXPECT_EQ(state.why, std::string("power_limit_w: ") + kNotKnown);
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

constexpr unsigned kPid = 42;

class MemoryInfos : public testing::Test {
 protected:
  MemoryInfos() {
    fake_.processes = {{7, 9'000}, {kPid, 1'500}};
    fake_cuda_.active_contexts = 1;
  }
  MemoryInfo read() const { return Device(nvml_, cuda_, 0).memory_info(kPid); }

  fakes::Nvml& fake_ = fakes::Nvml::reset();
  fakes::Cuda& fake_cuda_ = fakes::Cuda::reset();
  driver::Nvml nvml_ = fake_.table();
  driver::Cuda cuda_ = fake_cuda_.table();
};

TEST_F(MemoryInfos, HoldWhatNvmlSaysOfTheProcessAndTheGpu) {
  const MemoryInfo info = read();
  EXPECT_EQ(info.process, 1'500U);
  EXPECT_EQ(info.used, 30'000U);
  EXPECT_EQ(info.free, 49'500U);
  EXPECT_EQ(info.total, 80'000U);
  EXPECT_EQ(info.name, "fake GPU");
  EXPECT_TRUE(info.context);
  EXPECT_EQ(info.why, "");
}

TEST_F(MemoryInfos, CountAProcessThatIsListedTwiceInFull) {
  fake_.processes.push_back({kPid, 500});
  EXPECT_EQ(read().process, 2'000U);
}

TEST_F(MemoryInfos, FindTheProcessAmongMany) {
  fake_.processes.assign(1'000, {7, 1});
  fake_.processes.push_back({kPid, 3});
  EXPECT_EQ(read().process, 3U);
}

TEST_F(MemoryInfos, SayWhyAProcessIsNotListed) {
  fake_.processes = {{7, 9'000}};
  const MemoryInfo info = read();
  EXPECT_FALSE(info.process.has_value());
  EXPECT_EQ(info.why, "process: NVML does not list this process, as in containers with pids of their own");
}

TEST_F(MemoryInfos, CountNothingForAProcessWithoutAContext) {
  fake_.processes = {{7, 9'000}};
  fake_cuda_.active_contexts = 0;
  const MemoryInfo info = read();
  EXPECT_EQ(info.process, 0U);
  EXPECT_FALSE(info.context);
  EXPECT_EQ(info.why, "");
}

TEST_F(MemoryInfos, SayWhyTheBytesOfAProcessAreNotTold) {
  fake_.processes = {{kPid, driver::NvmlProcess::kUnknown}};
  const MemoryInfo info = read();
  EXPECT_FALSE(info.process.has_value());
  EXPECT_THAT(info.why, HasSubstr("does not tell the memory of processes"));
}

TEST_F(MemoryInfos, LeaveAPartOfAGpuToCuda) {
  fake_.uuid_code = 6;
  cuda_.device_get_pci_bus_id = [](char* text, int size, driver::CuDevice) {
    std::string("0000:1B:00.0").copy(text, static_cast<std::size_t>(size) - 1);
    return 0;
  };
  const MemoryInfo info = read();
  EXPECT_FALSE(info.process.has_value());
  EXPECT_FALSE(info.used.has_value());
  EXPECT_EQ(info.total, uint64_t{80} << 30);
  EXPECT_THAT(info.why, HasSubstr("MIG"));
}

TEST_F(MemoryInfos, NameWhatOldDriversLack) {
  nvml_.memory_info = nullptr;
  nvml_.compute_processes = nullptr;
  EXPECT_EQ(read().why, "used, free: this driver's NVML cannot tell; process: this driver's NVML cannot tell");
}

TEST_F(MemoryInfos, NameWhatFails) {
  fake_.memory_code = fakes::Nvml::kNotSupported;
  const MemoryInfo info = read();
  EXPECT_EQ(info.why, "used, free: Not Supported");
  EXPECT_EQ(info.process, 1'500U);
}

TEST_F(MemoryInfos, SayWhyThereIsNothingWithoutNvml) {
  nvml_ = {};
  EXPECT_THAT(read().why, HasSubstr("process, used, free: libnvidia-ml was not found"));
}

TEST_F(MemoryInfos, SayWhyThereIsNothingWithoutCuda) {
  cuda_ = {};
  const MemoryInfo info = read();
  EXPECT_FALSE(info.total.has_value());
  EXPECT_THAT(info.why, HasSubstr("no NVIDIA driver was found"));
}

TEST_F(MemoryInfos, MakeNoContext) {
  read();
  EXPECT_EQ(fake_cuda_.contexts_retained, 0);
}

}  // namespace
}  // namespace gpuscope::nvml
