// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/host_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace gpuscope::base {
namespace {

class HostStates : public testing::Test {
 protected:
  HostStates() {
    write("proc/stat", "cpu  100 20 30 5000 600 7 8 9 10 11\ncpu0 1 2 3\n");
    write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable:    400 kB\n");
    write("proc/self/io", "rchar: 1\nwchar: 2\nsyscr: 3\nread_bytes: 4096\nwrite_bytes: 8192\n");
    write("proc/self/cgroup", "0::/job/step\n");
    write("proc/self/task/10/schedstat", "5000 2000000000 7\n");
    write("proc/self/task/11/schedstat", "5000 1000000000 7\n");
    write("proc/pressure/memory", "some avg10=0.00 total=3000000\nfull avg10=0.00 total=1000000\n");
    write("proc/pressure/io", "some avg10=0.00 total=500000\nfull avg10=0.00 total=250000\n");
    write("groups/job/step/cpu.max", "max 100000\n");
    write("groups/job/cpu.max", "150000 100000\n");
    write("groups/job/cpu.stat", "usage_usec 1\nnr_throttled 3\nthrottled_usec 2500000\n");
    write("groups/job/step/memory.max", "8192\n");
    write("groups/job/step/memory.current", "4096\n");
    write("groups/job/memory.max", "max\n");
    write("groups/job/step/cpu.pressure", "some avg10=0.00 total=7000000\nfull avg10=0.00 total=0\n");
  }
  ~HostStates() override { std::filesystem::remove_all(root_); }

  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  HostStateReader reader() const { return HostStateReader(root_ / "proc", root_ / "groups"); }
  HostState read() const { return reader().read(); }

  std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("gpuscope-host-state-" + std::to_string(getpid()));
};

TEST_F(HostStates, HoldWhatTheMachineDid) {
  const HostState state = read();
  EXPECT_GT(state.machine_cpus.value(), 0U);
  EXPECT_DOUBLE_EQ(state.machine_cpu_s.value(),
                   (100 + 20 + 30 + 7 + 8 + 9) / static_cast<double>(sysconf(_SC_CLK_TCK)));
  EXPECT_EQ(state.machine_memory_total_bytes, 1000U * 1024);
  EXPECT_EQ(state.machine_memory_used_bytes, 600U * 1024);
}

TEST_F(HostStates, HoldWhatTheProcessDid) {
  const HostState state = read();
  EXPECT_EQ(state.process_read_bytes, 4096U);
  EXPECT_EQ(state.process_written_bytes, 8192U);
  EXPECT_DOUBLE_EQ(state.process_wait_s.value(), 3);
}

TEST_F(HostStates, WaitsOfThreadsThatEndedStayCounted) {
  HostStateReader host = reader();
  host.read();
  std::filesystem::remove_all(root_ / "proc/self/task/11");
  write("proc/self/task/10/schedstat", "5000 2500000000 8\n");
  EXPECT_DOUBLE_EQ(host.read().process_wait_s.value(), 3.5);
}

TEST_F(HostStates, ANumberThatWentToAnotherThreadCountsAnew) {
  HostStateReader host = reader();
  host.read();
  write("proc/self/task/11/schedstat", "5000 250000000 8\n");
  EXPECT_DOUBLE_EQ(host.read().process_wait_s.value(), 3.25);
}

TEST_F(HostStates, LimitsAreTheLeastOfAllGroupsAround) {
  const HostState state = read();
  EXPECT_EQ(state.cpu_limit_cpus, 1.5);
  EXPECT_EQ(state.cpu_throttled_s, 2.5);
  EXPECT_EQ(state.cpu_throttled_periods, 3U);
  EXPECT_EQ(state.memory_limit_bytes, 8192U);
  EXPECT_EQ(state.memory_charged_bytes, 4096U);
}

TEST_F(HostStates, MemoryThatIsChargedIsOfTheGroupThatLimits) {
  write("groups/job/step/memory.max", "max\n");
  write("groups/job/memory.max", "8192\n");
  write("groups/job/memory.current", "6000\n");
  EXPECT_EQ(read().memory_charged_bytes, 6000U);
}

TEST_F(HostStates, MemoryThatIsChargedIsOfTheInnermostGroupWhereNoneLimits) {
  write("groups/job/step/memory.max", "max\n");
  write("groups/job/memory.current", "6000\n");
  EXPECT_EQ(read().memory_charged_bytes, 4096U);
}

TEST_F(HostStates, LimitsOfTheFirstVersionOfControlGroups) {
  write("proc/self/cgroup", "3:memory:/a\n2:cpu,cpuacct:/a\n");
  write("groups/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n");
  write("groups/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  write("groups/cpu,cpuacct/a/cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 1500000000\n");
  write("groups/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  const HostState state = read();
  EXPECT_EQ(state.cpu_limit_cpus, 2);
  EXPECT_EQ(state.cpu_throttled_s, 1.5);
  EXPECT_FALSE(state.memory_limit_bytes.has_value());
}

TEST_F(HostStates, PressureIsThatOfTheGroupOrElseOfTheMachine) {
  const HostState state = read();
  EXPECT_EQ(state.cpu_pressure_s, 7);
  EXPECT_EQ(state.memory_pressure_s, 3);
  EXPECT_EQ(state.memory_stalled_s, 1);
  EXPECT_EQ(state.io_pressure_s, 0.5);
  EXPECT_EQ(state.io_stalled_s, 0.25);
}

TEST_F(HostStates, WhatLinuxDoesNotTellHasItsReason) {
  std::filesystem::remove_all(root_);
  const HostState state = read();
  EXPECT_FALSE(state.machine_cpu_s.has_value());
  EXPECT_FALSE(state.cpu_pressure_s.has_value());
  EXPECT_EQ(state.why.at("machine_cpu_s"), (root_ / "proc").string() + "/stat cannot be read");
  EXPECT_EQ(state.why.at("io_stalled_s"), "this kernel does not count pressure (PSI)");
  EXPECT_EQ(state.why.at("cpu_limit_cpus"), "no control group limits CPU time");
}

TEST_F(HostStates, OfThisMachineAreThere) {
  EXPECT_GT(HostStateReader().read().machine_memory_total_bytes.value_or(0), 0U);
}

}  // namespace
}  // namespace gpuscope::base
