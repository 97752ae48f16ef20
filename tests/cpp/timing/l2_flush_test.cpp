// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes/gpu_work.h"
#include "gpuscope/timing/sampler.h"

namespace gpuscope::timing {
namespace {

using fakes::GpuWork;
using testing::ElementsAre;

struct Asked {
  uint64_t address;
  uint64_t vectors;
};
std::vector<Asked> asked;
std::vector<size_t> allocated;

class L2Flushes : public testing::Test {
 protected:
  L2Flushes() {
    asked.clear();
    allocated.clear();
    gpu_.attributes = {{16, 2}, {38, 1 << 20}};
    table_ = gpu_.table();
    table_.launch_kernel = [](driver::CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              driver::CuStream, void** arguments, void**) {
      asked.push_back({*static_cast<uint64_t*>(arguments[0]), *static_cast<uint64_t*>(arguments[1])});
      return 0;
    };
    table_.mem_alloc = [](driver::CuPointer* address, size_t bytes) {
      allocated.push_back(bytes);
      *address = 0x1000;
      ++GpuWork::instance().allocations;
      return 0;
    };
  }

  GpuWork& gpu_ = GpuWork::reset();
  driver::Cuda table_;
};

TEST_F(L2Flushes, KnowTheCachesSize) {
  const PrimaryContext context(table_, 0);
  EXPECT_EQ(L2Flush(context, 0, 0).l2_bytes(), 1U << 20);
}

TEST_F(L2Flushes, WriteTwiceTheCacheThenReadOneAndAHalfElsewhere) {
  const PrimaryContext context(table_, 0);
  L2Flush flush(context, 0, L2Flush::kTwiceTheL2);
  flush.prepare();
  flush.run(0);
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0].vectors * 16, 2U << 20);
  EXPECT_EQ(asked[1].vectors * 16, 3U << 19);
  EXPECT_EQ(asked[1].address + asked[1].vectors * 16, asked[0].address);
  EXPECT_THAT(allocated, ElementsAre((2U << 20) + (3U << 19)));
}

TEST_F(L2Flushes, MakeTheirBuffersOnce) {
  const PrimaryContext context(table_, 0);
  L2Flush flush(context, 0, L2Flush::kTwiceTheL2);
  flush.prepare();
  flush.prepare();
  EXPECT_EQ(allocated.size(), 1U);
}

TEST_F(L2Flushes, DoNothingForNoBytes) {
  const PrimaryContext context(table_, 0);
  L2Flush flush(context, 0, 0);
  flush.prepare();
  flush.run(0);
  EXPECT_TRUE(asked.empty());
  EXPECT_TRUE(allocated.empty());
}

TEST_F(L2Flushes, TakePersistingLinesBack) {
  const PrimaryContext context(table_, 0);
  L2Flush(context, 0, 0).prepare();
  EXPECT_EQ(gpu_.count("reset lines"), 1U);
}

TEST_F(L2Flushes, DoWithoutPersistingLines) {
  table_.reset_persisting_l2 = nullptr;
  const PrimaryContext context(table_, 0);
  EXPECT_NO_THROW(L2Flush(context, 0, 0).prepare());
}

TEST_F(L2Flushes, GiveTheirMemoryBack) {
  const PrimaryContext context(table_, 0);
  {
    L2Flush flush(context, 0, L2Flush::kTwiceTheL2);
    flush.prepare();
  }
  EXPECT_EQ(gpu_.allocations, 0);
}

}  // namespace
}  // namespace gpuscope::timing
