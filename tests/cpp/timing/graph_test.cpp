// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "fakes/gpu_work.h"
#include "gpuscope/timing/sampler.h"

namespace gpuscope::timing {
namespace {

using fakes::CalledProgram;
using fakes::GpuWork;
using testing::ElementsAre;

constexpr uint64_t kStream = 0x10;

class Graphs : public testing::Test {
 protected:
  Graph capture(uint64_t calls = 1, uint64_t stream = kStream) { return {gpu_.table(), 0, stream, program_, calls}; }

  GpuWork& gpu_ = GpuWork::reset();
  CalledProgram program_;
};

TEST_F(Graphs, HoldSoManyCalls) {
  const Graph graph = capture(2);
  EXPECT_THAT(gpu_.log, ElementsAre("begin 1", "call 0", "call 0", "end"));  // 1: this thread's capture only
  EXPECT_EQ(graph.nodes(), 3U);
}

TEST_F(Graphs, Launch) {
  Graph graph = capture();
  graph.launch();
  graph.launch();
  EXPECT_EQ(gpu_.count("launch"), 2U);
}

TEST_F(Graphs, CannotBeCapturedFromTheLegacyDefaultStream) {
  EXPECT_THROW(capture(1, 0), base::InvalidArgument);
  EXPECT_THROW(capture(1, 1), base::InvalidArgument);
  EXPECT_NO_THROW(capture(1, 2));  // the thread's own default stream
}

TEST_F(Graphs, EndTheCaptureWhenTheProgramThrows) {
  program_.called = [](uint32_t) { throw std::runtime_error("theirs"); };
  EXPECT_THROW(capture(), std::runtime_error);
  EXPECT_EQ(gpu_.log.back(), "end");
  EXPECT_EQ(gpu_.allocations, 0);
}

TEST_F(Graphs, ReportACaptureThatBecameInvalid) {
  gpu_.end_capture_code = 901;
  EXPECT_THROW(capture(), base::CudaError);
  EXPECT_EQ(gpu_.count("end"), 1U);
}

TEST_F(Graphs, DiscardWhatCannotBeLaunched) {
  gpu_.instantiate_code = 801;
  EXPECT_THROW(capture(), base::CudaError);
  EXPECT_EQ(gpu_.allocations, 0);
}

TEST_F(Graphs, GiveEverythingBack) {
  { const Graph graph = capture(); }
  EXPECT_EQ(gpu_.allocations, 0);
}

}  // namespace
}  // namespace gpuscope::timing
