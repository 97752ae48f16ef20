// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/host_usage.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "gpuscope/base/clock.h"

namespace gpuscope::base {
namespace {

constexpr int64_t kMs = 1'000'000;

/// A /proc and a /sys/fs/cgroup in a folder of their own.
class HostUsages : public testing::Test {
 protected:
  HostUsages() : root_(std::filesystem::temp_directory_path() / ("gpuscope-host-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(root_);
    set_process(own_, 1, 5 * kMs);
  }
  ~HostUsages() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ / path;
    std::filesystem::create_directories(whole.parent_path());
    std::FILE* file = std::fopen(whole.c_str(), "w");
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }
  void set_process(uint32_t id, uint32_t parent, int64_t wait_ns, int64_t read_bytes = 0) {
    const std::string folder = "proc/" + std::to_string(id);
    write(folder + "/stat", std::to_string(id) + " (a) b (c) S " + std::to_string(parent) + " 1 1\n");
    write(folder + "/schedstat", "777 " + std::to_string(wait_ns) + " 3\n");
    write(folder + "/io", "rchar: 9\nwchar: 9\nread_bytes: " + std::to_string(read_bytes) + "\n");
  }
  HostReader reader() const { return HostReader((root_ / "proc").string(), (root_ / "cgroup").string()); }
  static std::vector<HostUsage> read(HostReader& reader, uint64_t ticks) {
    std::vector<HostUsage> found;
    reader.read(ticks, found);
    return found;
  }
  static HostUsage of(const std::vector<HostUsage>& usages, HostUsage::Of what, uint32_t id = 0) {
    const auto found =
        std::ranges::find_if(usages, [&](const HostUsage& each) { return each.of == what && each.system_id == id; });
    EXPECT_NE(found, usages.end());
    return found == usages.end() ? HostUsage{} : *found;
  }

  const std::filesystem::path root_;
  const uint32_t own_ = static_cast<uint32_t>(getpid());
  // A process that lives, so that its clock can be read, and is our child in this /proc alone.
  const uint32_t other_ = static_cast<uint32_t>(getppid());
};

using Of = HostUsage::Of;

TEST_F(HostUsages, OfProcessesAreWhatTheyGrewBy) {
  set_process(other_, own_, 10 * kMs, 4096);
  HostReader host = reader();
  EXPECT_TRUE(read(host, 100).empty()) << "nothing grew before the first look";
  set_process(other_, own_, 12 * kMs, 8192);
  const auto usages = read(host, 200);
  const HostUsage child = of(usages, Of::Process, other_);
  EXPECT_EQ(child.begin_ticks, 100U);
  EXPECT_EQ(child.end_ticks, 200U);
  EXPECT_EQ(child.wait_ns, 2 * kMs);
  EXPECT_EQ(child.read_bytes, 4096);
  EXPECT_GE(child.cpu_ns, 0);
  EXPECT_EQ(of(usages, Of::Process, own_).wait_ns, 0);
}

TEST_F(HostUsages, OfProcessesThatAreNotOursAreNotRead) {
  set_process(other_, own_ + 100'000, 10 * kMs);
  HostReader host = reader();
  read(host, 100);
  const auto usages = read(host, 200);
  EXPECT_EQ(usages.size(), 1U);
  EXPECT_EQ(of(usages, Of::Process, own_).system_id, own_);
}

TEST_F(HostUsages, OurProcessesAreFoundAmongVeryMany) {
  for (uint32_t number = 1; number <= 600; ++number) {
    set_process(own_ + 100'000 + number, 1, 0);
  }
  set_process(other_, own_, 10 * kMs);
  HostReader host = reader();
  read(host, 100);
  read(host, 200);
  read(host, 300);
  EXPECT_EQ(of(read(host, 400), Of::Process, other_).system_id, other_);
}

TEST_F(HostUsages, ProcessesOfHigherNumbersThanOursAreLookedAtFirst) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const auto number = static_cast<uint32_t>(child);
  if (number > own_ && own_ > 700) {
    for (uint32_t lower = 1; lower <= 600; ++lower) {
      set_process(lower, 1, 0);
    }
    set_process(number, own_, 10 * kMs);
    HostReader host = reader();
    read(host, 100);
    EXPECT_EQ(of(read(host, 200), Of::Process, number).system_id, number);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(HostUsages, OfAProcessThatBeganSinceTheFirstLookAllCounts) {
  HostReader host("/proc", (root_ / "cgroup").string());
  const uint64_t first = ticks();
  read(host, first);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the system's units are of 10 ms
  const uint64_t before = ticks();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const uint64_t after = ticks();  // a fork takes long on a busy machine
  std::vector<HostUsage> usages;
  for (int round = 0; round < 8; ++round) {
    host.read(ticks(), usages);
  }
  const HostUsage found = of(usages, Of::Process, static_cast<uint32_t>(child));
  EXPECT_GT(found.begin_ticks, first);
  const Clock& clock = Clock::process();
  constexpr int64_t kNearNs = 25'000'000;
  EXPECT_GT(clock.to_ns(found.begin_ticks), clock.to_ns(before) - kNearNs);
  EXPECT_LT(clock.to_ns(found.begin_ticks), clock.to_ns(after) + kNearNs);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(HostUsages, WhatCannotBeReadIsUnknownAndNotZero) {
  std::filesystem::remove(root_ / "proc" / std::to_string(own_) / "io");
  write("proc/" + std::to_string(own_) + "/schedstat", "0 0 0\n");  // a kernel that does not count
  HostReader host = reader();
  read(host, 100);
  const auto usages = read(host, 200);
  ASSERT_EQ(usages.size(), 1U) << "no group, no pressure: no row of them";
  EXPECT_EQ(usages[0].wait_ns, kUnknown);
  EXPECT_EQ(usages[0].read_bytes, kUnknown);
  EXPECT_NE(host.why_no_throttling(), "");
  EXPECT_NE(host.why_no_io_wait(), "");
}

TEST_F(HostUsages, ALimitOfAnyGroupAroundCounts) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("cgroup/pod/container/cpu.stat", "usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n");
  write("cgroup/pod/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 2\nthrottled_usec 3000\n");
  write("cgroup/pod/io.pressure", "some avg10=0.00 total=700\nfull avg10=0.00 total=1\n");
  HostReader host = reader();
  EXPECT_EQ(host.why_no_throttling(), "");
  EXPECT_EQ(host.why_no_io_wait(), "");
  read(host, 100);
  write("cgroup/pod/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 5\nthrottled_usec 43000\n");
  write("cgroup/pod/io.pressure", "some avg10=0.00 total=1700\nfull avg10=0.00 total=1\n");
  const HostUsage group = of(read(host, 200), Of::ControlGroup);
  EXPECT_EQ(group.throttled_ns, 40 * kMs);
  EXPECT_EQ(group.throttled_periods, 3);
  EXPECT_EQ(group.io_wait_ns, 1 * kMs);
}

TEST_F(HostUsages, TheFirstVersionOfControlGroupsIsReadToo) {
  write("proc/self/cgroup", "7:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/\n");
  // In a container the path is the host's, and the files lie at the root.
  write("cgroup/cpu,cpuacct/cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 3000000\n");
  write("proc/pressure/io", "some avg10=0.00 total=50\nfull total=1\n");
  HostReader host = reader();
  EXPECT_EQ(host.why_no_throttling(), "");
  read(host, 100);
  write("cgroup/cpu,cpuacct/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 8000000\n");
  const HostUsage group = of(read(host, 200), Of::ControlGroup);
  EXPECT_EQ(group.throttled_ns, 5 * kMs);
  EXPECT_EQ(group.io_wait_ns, 0) << "read, and nothing was waited for";
}

TEST_F(HostUsages, WhyThreadsAreNotReadIsSaid) {
  EXPECT_NE(why_no_thread_waits((root_ / "proc").string()).find("cannot be opened"), std::string::npos);
}

}  // namespace
}  // namespace gpuscope::base
