// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/spool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fakes/cuda.h"
#include "fakes/cupti.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/session/session.h"

// A test names only the options that it is about.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;

using store::kNone;
using store::Store;
namespace fs = std::filesystem;

void enter(const char* name) {
  base::EventLogs::current()->append(base::ticks(), base::Names::process().intern(name), base::Op::Enter);
}
void leave(const char* name) {
  base::EventLogs::current()->append(base::ticks(), base::Names::process().intern(name), base::Op::Exit);
}

class Spools : public testing::Test {
 protected:
  Spools()
      : cuda_(fakes::Cuda::reset()),
        cupti_(fakes::Cupti::reset()),
        vendor_(std::make_unique<Vendor>(cuda_.table(), cupti_.table())),
        folder_(fs::temp_directory_path() / ("gpuscope-spool-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~Spools() override {
    session_.reset();
    fs::remove_all(folder_);
  }

  Session& start(SpoolOptions spool) {
    session_ =
        std::unique_ptr<Session, base::DeleteOwn>(new Session(*vendor_, {.spools = true, .spool = std::move(spool)}));
    session_->open(folder_.string());
    return *session_;
  }
  /// Each reading of the logs ends a segment.
  Session& start_with_short_segments() { return start({.segment_time = 1ns}); }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  bool wait_until(const std::function<bool()>& holds) const {
    for (int round = 0; round < 1000 && !holds(); ++round) {
      std::this_thread::sleep_for(10ms);
    }
    return holds();
  }
  /// Waits until so many further segments have begun.
  void pass_segments(std::size_t count) const {
    const std::size_t before = files().size();
    ASSERT_TRUE(wait_until([&] { return files().size() >= before + count; }));
  }
  static std::string region_name(const Store& store, uint32_t region) {
    return region == kNone ? "" : std::string(store.strings[store.path.name[store.region.path[region]]]);
  }
  static std::map<std::string, int> regions(const Store& store) {
    std::map<std::string, int> counts;
    for (uint32_t row = 0; row < store.region.size(); ++row) {
      ++counts[region_name(store, row)];
    }
    return counts;
  }

  fakes::Cuda& cuda_;
  fakes::Cupti& cupti_;
  std::unique_ptr<Vendor> vendor_;
  fs::path folder_;
  std::unique_ptr<Session, base::DeleteOwn> session_;
};

TEST_F(Spools, JoinRegionsThatLastLongerThanASegment) {
  Session& session = start_with_short_segments();
  const int64_t before_ns = base::Clock::process().now_ns();
  enter("outer");
  enter("inner");
  pass_segments(2);
  leave("inner");
  for (int step = 0; step < 3; ++step) {
    enter("step");
    leave("step");
    pass_segments(1);
  }
  leave("outer");
  const int64_t took_ns = base::Clock::process().now_ns() - before_ns;
  session.stop();
  session_.reset();
  const auto all = store::read_segments(folder_.string());
  EXPECT_EQ(regions(*all), (std::map<std::string, int>{{"outer", 1}, {"inner", 1}, {"step", 3}}));
  for (uint32_t row = 0; row < all->region.size(); ++row) {
    const std::string name = region_name(*all, row);
    EXPECT_EQ(all->region.flags[row], 0) << name;
    EXPECT_EQ(region_name(*all, all->region.parent[row]), name == "outer" ? "" : "outer");
    if (name == "outer") {
      EXPECT_LE(all->region.duration_ns[row], took_ns);
      EXPECT_GT(all->region.duration_ns[row], took_ns - 100'000'000);
    }
  }
}

TEST_F(Spools, GiveEachKernelItsLaunchAndRegion) {
  Session& session = start_with_short_segments();
  for (int step = 0; step < 4; ++step) {
    enter("step");
    for (int count = 0; count < 50; ++count) {
      cupti_.launch("gemm");
    }
    leave("step");
    pass_segments(1);
  }
  session.stop();
  session_.reset();
  const auto all = store::read_segments(folder_.string());
  ASSERT_EQ(all->kernel.size(), 200U);
  ASSERT_EQ(all->api.size(), 200U);
  std::set<uint32_t> steps;
  for (uint32_t row = 0; row < 200; ++row) {
    EXPECT_EQ(region_name(*all, all->kernel.region[row]), "step");
    steps.insert(all->kernel.region[row]);
  }
  EXPECT_EQ(steps.size(), 4U);
  EXPECT_EQ(all->find_info("audit.launches"), "200");
  EXPECT_EQ(all->find_info("audit.missing"), "0");
}

TEST_F(Spools, GiveAKernelThatComesInALaterSegmentTheRegionOfItsLaunch) {
  Session& session = start_with_short_segments();
  enter("step");
  const uint32_t correlation = cupti_.call(fakes::kLaunchKernel);
  leave("step");
  pass_segments(2);
  const auto now = static_cast<uint64_t>(base::Clock::process().now_ns());
  cupti_.finish(fakes::kernel_record({.correlation = correlation, .start = now, .end = now + 1}));
  session.stop();
  session_.reset();
  const auto all = store::read_segments(folder_.string());
  ASSERT_EQ(all->kernel.size(), 1U);
  EXPECT_EQ(region_name(*all, all->kernel.region[0]), "step");
  EXPECT_EQ(all->find_info("audit.missing"), "0");
}

TEST_F(Spools, OpenWithoutTheirEnd) {
  Session& session = start({});
  enter("outer");
  for (int count = 0; count < 10; ++count) {
    enter("inner");
    leave("inner");
  }
  ASSERT_TRUE(wait_until([&] { return !files().empty() && fs::file_size(folder_ / *files().begin()) > 1000; }));
  const auto all = store::read_segments(folder_.string());  // as after a SIGKILL
  EXPECT_EQ(regions(*all), (std::map<std::string, int>{{"outer", 1}, {"inner", 10}}));
  EXPECT_EQ(all->find_info("file.unfinished"), "1");
  leave("outer");
  session.stop();
}

TEST_F(Spools, DeleteTheOldestSegments) {
  Session& session = start({.segment_bytes = 1000, .segment_time = 1ns, .max_bytes = 20'000});
  for (int step = 0; step < 20; ++step) {
    enter("step");
    leave("step");
    std::this_thread::sleep_for(60ms);
  }
  session.stop();
  session_.reset();
  EXPECT_FALSE(files().contains(store::segment_name(1)));
  const auto all = store::read_segments(folder_.string());
  EXPECT_GT(std::stoi(std::string(all->find_info("file.first_segment"))), 1);
  EXPECT_LT(all->region.size(), 20U);
  EXPECT_GT(all->region.size(), 0U);
}

TEST_F(Spools, GoOnInANewFileWhenTheirFileIsDeleted) {
  Session& session = start({});
  enter("first");
  leave("first");
  ASSERT_TRUE(wait_until([&] { return !files().empty(); }));
  fs::remove(folder_ / store::segment_name(1));
  ASSERT_TRUE(wait_until([&] {
    enter("more");
    leave("more");
    return files().contains(store::segment_name(2));
  }));
  session.stop();
  session_.reset();
  const auto all = store::read_segments(folder_.string());
  EXPECT_EQ(regions(*all)["first"], 1) << "its rows were still in memory";
}

TEST_F(Spools, CountWhatADeletedFolderLoses) {
  Session& session = start({.segment_bytes = 1000});
  fs::remove_all(folder_);
  for (int count = 0; count < 1000; ++count) {
    enter("step");
    leave("step");
  }
  std::this_thread::sleep_for(300ms);
  const auto last = session.stop();
  EXPECT_GE(std::stoull(std::string(last->find_info("session.lost_rows"))), 1000U);
  EXPECT_FALSE(last->find_info("session.spool_error").empty());
}

TEST_F(Spools, RefuseAFolderThatIsNotThere) {
  fs::remove_all(folder_);
  EXPECT_THROW(start({}), base::Error);
}

}  // namespace
}  // namespace gpuscope::session
