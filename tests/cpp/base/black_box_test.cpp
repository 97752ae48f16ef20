// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/black_box.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/file.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::base {
namespace {

class BlackBoxTest : public testing::Test {
 protected:
  BlackBoxTest() { std::filesystem::remove(path_); }
  ~BlackBoxTest() override { std::filesystem::remove(path_); }

  /// What another process reads now.
  const BlackBoxFile& read() {
    bytes_ = read_file(path_.c_str());
    bytes_.resize(sizeof(BlackBoxFile));
    std::memcpy(copy_.get(), bytes_.data(), bytes_.size());
    return *reinterpret_cast<const BlackBoxFile*>(copy_.get());
  }
  std::string_view name(const BlackBoxFile& file, uint64_t id) {
    const char* at = file.names.data() + (id - 1) * 8;
    uint32_t size = 0;
    std::memcpy(&size, at, sizeof(size));
    return {at + 8, size};
  }

  const std::string path_ = testing::TempDir() + "/black_box_test." + std::to_string(getpid());
  std::string bytes_;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> copy_{std::aligned_alloc(64, sizeof(BlackBoxFile))};
};

TEST_F(BlackBoxTest, EntriesOfManyThreadsAreWhole) {
  BlackBox box(path_, 0);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&box, thread] {
      for (uint64_t step = 0; step < 200; ++step) {
        box.step(thread * 1000 + step, true);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const BlackBoxFile& file = read();
  EXPECT_EQ(file.steps.added, 800U);
  std::set<uint64_t> numbers;
  for (std::size_t at = 0; at < 800; ++at) {
    const BlackBoxFile::Entry& entry = file.steps.entries[at];
    EXPECT_EQ(entry.sequence, at + 1);
    EXPECT_EQ(entry.crc, crc32c(&entry, offsetof(BlackBoxFile::Entry, crc)));
    numbers.insert(entry.number);
  }
  EXPECT_EQ(numbers.size(), 800U);
}

TEST_F(BlackBoxTest, ShowsTheInnermostRegionsAfterEachChange) {
  BlackBox box(path_, 0);
  const uint32_t outer = Names::process().intern("outer");
  const uint32_t inner = Names::process().intern("inner");
  OpenRegions::enter(outer, nullptr);
  for (int level = 0; level < 40; ++level) {
    OpenRegions::enter(inner, nullptr);
  }
  EXPECT_EQ(read().threads[0].depth, 41U);
  EXPECT_EQ(read().threads[0].count, 8U);
  for (int level = 0; level < 40; ++level) {
    OpenRegions::exit(inner, nullptr);
  }
  const BlackBoxFile& file = read();
  EXPECT_EQ(file.threads[0].begun, 81U);
  EXPECT_EQ(file.threads[0].ended, 81U);
  EXPECT_EQ(file.threads[0].id, thread_id());
  ASSERT_EQ(file.threads[0].count, 1U);
  EXPECT_EQ(name(file, file.threads[0].levels[0].name), "outer");
  OpenRegions::exit(outer, nullptr);
  EXPECT_EQ(read().threads[0].count, 0U);
}

TEST_F(BlackBoxTest, ALaterFileKnowsRegionsThatAnotherUserHasTracked) {
  OpenRegions::begin(OpenRegions::kLedger);
  OpenRegions::enter(Names::process().intern("of the ledger"), nullptr);
  {
    BlackBox first(path_, 0);
    OpenRegions::enter(Names::process().intern("first"), nullptr);
  }
  std::filesystem::remove(path_);
  BlackBox second(path_, 0);
  OpenRegions::exit(Names::process().intern("first"), nullptr);
  const BlackBoxFile& file = read();
  ASSERT_EQ(file.threads[0].count, 1U);
  EXPECT_EQ(name(file, file.threads[0].levels[0].name), "of the ledger");
  OpenRegions::end(OpenRegions::kLedger);
}

TEST_F(BlackBoxTest, AClosedFileGetsNothingMore) {
  BlackBox box(path_, 0);
  box.close();
  box.step(1, true);
  box.beat();
  EXPECT_EQ(read().header.closed, 1U);
  EXPECT_EQ(read().steps.added, 0U);
  EXPECT_FALSE(OpenRegions::wanted());
}

TEST_F(BlackBoxTest, AFullDiskIsAnErrorAtCreation) {
  const auto old = signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(BlackBox(path_, 0), NotAvailable);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_NO_THROW(BlackBox(path_, 0));
}

}  // namespace
}  // namespace gpuscope::base
