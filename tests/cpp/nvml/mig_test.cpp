// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/mig.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "fakes/nvml.h"
#include "gpuscope/nvml/state.h"

namespace gpuscope::nvml {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int kNotFound = 6;

struct Instance {
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
  std::string uuid;
};

/// A GPU that is split: its handles are 100 and the instance's place.
struct Split {
  static Split& instance() {
    static Split state;
    return state;
  }
  static const Instance& of(driver::NvmlDevice handle) {
    return instance().instances.at(reinterpret_cast<uintptr_t>(handle) - 100);
  }
  std::map<uintptr_t, Instance> instances;
  std::map<unsigned, double> percent;  // by GPU instance
  int sample_code = 0;
  int parent_processes_code = 0;
};

struct Sample {
  unsigned instance = 0;
};

class MigReaders : public testing::Test {
 protected:
  MigReaders() {
    Split::instance() = {};
    split_.instances = {{0, {1, 0, "MIG-1-0"}}, {2, {5, 0, "MIG-5-0"}}};
    split_.percent = {{1, 80}, {5, 20}};
    nvml_.mig_count_max = [](driver::NvmlDevice, unsigned* count) {
      *count = 7;
      return 0;
    };
    nvml_.mig_device = [](driver::NvmlDevice, unsigned index, driver::NvmlDevice* handle) {
      *handle = reinterpret_cast<driver::NvmlDevice>(uintptr_t{100} + index);
      return Split::instance().instances.contains(index) ? 0 : kNotFound;
    };
    nvml_.gpu_instance = [](driver::NvmlDevice handle, unsigned* number) {
      *number = Split::of(handle).gpu_instance;
      return 0;
    };
    nvml_.compute_instance = [](driver::NvmlDevice handle, unsigned* number) {
      *number = Split::of(handle).compute_instance;
      return 0;
    };
    nvml_.uuid = [](driver::NvmlDevice handle, char* text, unsigned length) {
      const bool is_part = reinterpret_cast<uintptr_t>(handle) >= 100;
      const std::string uuid = is_part ? Split::of(handle).uuid : "GPU-0";
      text[uuid.copy(text, length - 1)] = 0;
      return 0;
    };
    nvml_.gpm_support = [](driver::NvmlDevice, driver::NvmlGpmSupport* support) {
      support->is_supported = 1;
      return 0;
    };
    nvml_.gpm_sample_alloc = [](driver::NvmlGpmSample* sample) {
      *sample = reinterpret_cast<driver::NvmlGpmSample>(new Sample);
      return 0;
    };
    nvml_.gpm_sample_free = [](driver::NvmlGpmSample sample) {
      delete reinterpret_cast<Sample*>(sample);
      return 0;
    };
    nvml_.gpm_sample_get = [](driver::NvmlDevice, driver::NvmlGpmSample) { return fakes::Nvml::kNotSupported; };
    nvml_.gpm_mig_sample_get = [](driver::NvmlDevice, unsigned instance, driver::NvmlGpmSample sample) {
      reinterpret_cast<Sample*>(sample)->instance = instance;
      return Split::instance().sample_code;
    };
    nvml_.gpm_metrics = [](driver::NvmlGpmMetrics* asked) {
      for (unsigned index = 0; index < asked->count; ++index) {
        asked->metrics[index].value = Split::instance().percent[reinterpret_cast<Sample*>(asked->after)->instance];
      }
      return 0;
    };
  }

  std::vector<MigInstance> read(MigReader& reader, int64_t now_ns) {
    std::string why;
    return reader.read(now_ns, why).value();
  }

  Split& split_ = Split::instance();
  driver::Nvml nvml_ = fakes::Nvml::reset().table();
};

TEST_F(MigReaders, GiveEachInstanceWithItsMemoryAndCounters) {
  MigReader reader(nvml_, nullptr);
  read(reader, 1 * kMillisecondNs);
  const std::vector<MigInstance> found = read(reader, 1001 * kMillisecondNs);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].gpu_instance, 1U);
  EXPECT_EQ(found[1].uuid, "MIG-5-0");
  EXPECT_EQ(found[0].memory_used_bytes, 30'000U);
  EXPECT_DOUBLE_EQ(found[0].gpm.sm_active_ratio.value(), 0.8);
  EXPECT_DOUBLE_EQ(found[1].gpm.sm_active_ratio.value(), 0.2);
}

TEST_F(MigReaders, ShareTheCountersOfAGpuInstanceAmongItsComputeInstances) {
  split_.instances[3] = {5, 1, "MIG-5-1"};
  MigReader reader(nvml_, nullptr);
  read(reader, 1 * kMillisecondNs);
  const std::vector<MigInstance> found = read(reader, 1001 * kMillisecondNs);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[1].gpm.sm_active_ratio, found[2].gpm.sm_active_ratio);
}

TEST_F(MigReaders, FollowInstancesThatComeAndGo) {
  MigReader reader(nvml_, nullptr);
  read(reader, 1 * kMillisecondNs);
  split_.instances.erase(0);
  EXPECT_EQ(read(reader, 1001 * kMillisecondNs).size(), 1U);
  split_.instances[0] = {1, 0, "MIG-other"};
  const std::vector<MigInstance> found = read(reader, 2001 * kMillisecondNs);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].gpm.sm_active_ratio, std::nullopt);  // none of the one that had its number
  EXPECT_THAT(found[0].gpm.why.at("sm_active_ratio"), testing::HasSubstr("not passed yet"));
  EXPECT_TRUE(read(reader, 3001 * kMillisecondNs)[0].gpm.sm_active_ratio.has_value());
}

TEST_F(MigReaders, CompareNoSamplesOfAnInstanceThatWasMadeAgainWithItsNumberMeanwhile) {
  MigReader reader(nvml_, nullptr);
  read(reader, 1 * kMillisecondNs);
  split_.instances[0].uuid = "MIG-other";
  EXPECT_EQ(read(reader, 1001 * kMillisecondNs)[0].gpm.sm_active_ratio, std::nullopt);
}

TEST_F(MigReaders, AskAgainWhereTheCountersOfAnInstanceWereRefused) {
  MigReader reader(nvml_, nullptr);
  read(reader, 1 * kMillisecondNs);
  split_.sample_code = 2;
  EXPECT_EQ(read(reader, 1001 * kMillisecondNs)[0].gpm.sm_active_ratio, std::nullopt);
  split_.sample_code = 0;
  read(reader, 2001 * kMillisecondNs);
  EXPECT_TRUE(read(reader, 3001 * kMillisecondNs)[0].gpm.sm_active_ratio.has_value());
}

TEST_F(MigReaders, SayWhyOldDriversHaveNone) {
  nvml_.mig_device = nullptr;
  std::string why;
  EXPECT_EQ(MigReader(nvml_, nullptr).read(1, why), std::nullopt);
  EXPECT_THAT(why, testing::HasSubstr("cannot tell"));
}

TEST_F(MigReaders, GiveTheProcessesThatTheGpuItselfDoesNotTell) {
  nvml_.compute_processes = [](driver::NvmlDevice handle, unsigned* count, driver::NvmlProcess* processes) {
    if (reinterpret_cast<uintptr_t>(handle) < 100) {
      return 4;
    }
    *count = 1;
    processes[0] = {.pid = Split::of(handle).gpu_instance, .bytes = 7};
    return 0;
  };
  GpuReader reader(nvml_, 0);
  reader.read_slow();
  ASSERT_TRUE(reader.state().processes.has_value());
  EXPECT_EQ(reader.state().processes->size(), 2U);
  EXPECT_FALSE(reader.state().why.contains("processes"));
  EXPECT_EQ(reader.state().instances->size(), 2U);
}

TEST_F(MigReaders, AWholeGpuHasNoInstances) {
  nvml_.mig_mode = [](driver::NvmlDevice, unsigned* current, unsigned*) {
    *current = 0;
    return 0;
  };
  GpuReader reader(nvml_, 0);
  reader.read_slow();
  EXPECT_EQ(reader.state().instances, std::nullopt);
  EXPECT_FALSE(reader.state().why.contains("instances"));
}

}  // namespace
}  // namespace gpuscope::nvml
