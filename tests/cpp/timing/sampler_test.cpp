// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <stdexcept>

#include "fakes/gpu_work.h"

namespace gpuscope::timing {
namespace {

using fakes::CalledProgram;
using fakes::GpuWork;
using testing::ElementsAre;

constexpr SampleOptions kBare{.gate = false, .flush = false, .events = false};

class Samplers : public testing::Test {
 protected:
  Samplers() {
    gpu_.attributes = {{16, 2}, {38, 1 << 20}};
    sampler_.emplace(gpu_.table(), 0, 0);
  }
  Chunk sample(std::vector<uint32_t> order, const SampleOptions& options = {}) {
    return sampler_->sample(program_, order, options);
  }

  GpuWork& gpu_ = GpuWork::reset();
  std::optional<Sampler> sampler_;
  CalledProgram program_;
};

TEST_F(Samplers, QueueEachCallBetweenEventsAfterAFlush) {
  sample({0});
  gpu_.log.clear();
  sample({1, 0});
  EXPECT_THAT(gpu_.log,
              ElementsAre("reset lines", "gpuscope_gate",                                               //
                          "gpuscope_flush_write", "gpuscope_flush_read", "record", "call 1", "record",  //
                          "gpuscope_flush_write", "gpuscope_flush_read", "record", "call 0", "record", "wait"));
}

TEST_F(Samplers, MakeTheirMemoryBeforeTheGateCloses) {
  int at_the_gate = 0;
  program_.called = [&](uint32_t) { at_the_gate = gpu_.allocations; };
  sample({0, 0});
  EXPECT_EQ(at_the_gate, gpu_.allocations);
  EXPECT_LT(std::ranges::find(gpu_.log, "fill"), std::ranges::find(gpu_.log, "gpuscope_gate"));
}

TEST_F(Samplers, KeepTheGateClosedDuringTheCalls) {
  bool closed = false;
  program_.called = [&](uint32_t) { closed = gpu_.gate_closed(); };
  EXPECT_TRUE(sample({0}).held);
  EXPECT_TRUE(closed);
}

TEST_F(Samplers, SayThatTheGateDidNotHoldWhenACallWaits) {
  program_.called = [&](uint32_t) { gpu_.wait(); };
  EXPECT_FALSE(sample({0}).held);
}

TEST_F(Samplers, TellTheClockFromTheGate) {
  gpu_.gate_ns = 50'000;
  gpu_.gate_cycles = 99'000;
  EXPECT_DOUBLE_EQ(sample({0}).clock_hz, 1.98e9);
}

TEST_F(Samplers, TellTheClockFromAMeterWithoutTheGate) {
  const Chunk chunk = sample({0}, kBare);
  EXPECT_THAT(gpu_.log, ElementsAre("gpuscope_meter", "wait", "call 0", "wait"));
  EXPECT_DOUBLE_EQ(chunk.clock_hz, 1.5e9);
  EXPECT_FALSE(chunk.held);
}

TEST_F(Samplers, TellTheTimeBetweenTheEvents) {
  const Chunk chunk = sample({0, 0});  // the fake's events are 1 ms apart
  EXPECT_THAT(chunk.stream_s, ElementsAre(testing::DoubleNear(1e-3, 1e-9), testing::DoubleNear(1e-3, 1e-9)));
}

TEST_F(Samplers, TellNoTimeWithoutEvents) { EXPECT_TRUE(std::isnan(sample({0}, kBare).stream_s[0])); }

TEST_F(Samplers, TellWhenTheCallsBeganAndEnded) {
  const Chunk chunk = sample({0, 0});
  EXPECT_LE(chunk.called_ns[0], chunk.returned_ns[0]);
  EXPECT_LE(chunk.returned_ns[0], chunk.called_ns[1]);
  EXPECT_GT(chunk.called_ns[0], 0);
}

TEST_F(Samplers, LeaveTheThreadsContextAlone) {
  driver::CuContext during = nullptr;
  program_.called = [&](uint32_t) { during = fakes::Cuda::instance().current; };
  fakes::Cuda::instance().current = fakes::Cuda::context(3);
  sample({0});
  EXPECT_EQ(during, fakes::Cuda::context(3));
  EXPECT_EQ(fakes::Cuda::instance().current.load(), fakes::Cuda::context(3));
}

TEST_F(Samplers, ReuseTheirEvents) {
  sample({0, 0, 0});
  sample({0, 0});
  EXPECT_EQ(fakes::Cuda::instance().created, 6);
}

TEST_F(Samplers, OpenTheGateAndWaitWhenACallThrows) {
  program_.called = [](uint32_t) { throw std::runtime_error("theirs"); };
  EXPECT_THROW(sample({0}), std::runtime_error);
  EXPECT_FALSE(gpu_.gate_closed());
  EXPECT_EQ(gpu_.log.back(), "wait");
}

TEST_F(Samplers, SampleAgainAfterACallThrew) {
  program_.called = [](uint32_t) { throw std::runtime_error("theirs"); };
  EXPECT_THROW(sample({0}), std::runtime_error);
  program_.called = [](uint32_t) {};
  EXPECT_TRUE(sample({0}).held);
}

TEST_F(Samplers, PreferTheProgramsErrorToTheDrivers) {
  program_.called = [](uint32_t) { throw std::runtime_error("theirs"); };
  gpu_.wait_code = 700;
  EXPECT_THROW(sample({0}, {.gate = true, .flush = false, .events = false}), std::runtime_error);
}

TEST_F(Samplers, ReportWhatTheDriverSaysOfTheWork) {
  gpu_.wait_code = 700;
  EXPECT_THROW(sample({0}, {.gate = true, .flush = false, .events = false}), base::CudaError);
}

TEST_F(Samplers, StopBetweenCallsWhenInterrupted) {
  program_.called = [&](uint32_t) { program_.interrupted = true; };
  EXPECT_THROW(sample({0, 0}), std::runtime_error);
  EXPECT_EQ(gpu_.count("call 0"), 1U);
}

TEST_F(Samplers, RefuseToMeasureInsideAMeasurement) {
  program_.called = [&](uint32_t) { sample({0}); };
  EXPECT_THROW(sample({0}), base::Error);
}

TEST_F(Samplers, RefuseAStreamThatIsBeingCaptured) {
  fakes::Cuda::instance().capturing = 1;
  EXPECT_THROW(sample({0}), base::InvalidArgument);
  EXPECT_EQ(gpu_.count("gpuscope_gate"), 0U);
}

TEST_F(Samplers, WaitForEachCallOnAnIdleGpu) {
  const std::vector<uint32_t> order{1, 0};
  sampler_->sample_wall(program_, order, true);
  gpu_.log.clear();
  sampler_->sample_wall(program_, order, true);
  EXPECT_THAT(gpu_.log, ElementsAre("reset lines", "gpuscope_meter", "wait",                                  //
                                    "gpuscope_flush_write", "gpuscope_flush_read", "wait", "call 1", "wait",  //
                                    "gpuscope_flush_write", "gpuscope_flush_read", "wait", "call 0", "wait"));
}

TEST_F(Samplers, LetOthersRunWheneverTheyWait) {
  const std::vector<uint32_t> order{0};
  sampler_->sample_wall(program_, order, true);
  EXPECT_EQ(program_.waits, 3);
}

TEST_F(Samplers, TellWhenTheGpuWasDone) {
  const std::vector<uint32_t> order{0};
  const WallChunk chunk = sampler_->sample_wall(program_, order, false);
  EXPECT_LE(chunk.returned_ns[0], chunk.done_ns[0]);
  EXPECT_DOUBLE_EQ(chunk.clock_hz, 1.5e9);
}

TEST_F(Samplers, GiveEverythingBack) {
  sample({0, 0});
  sampler_.reset();
  EXPECT_EQ(gpu_.allocations, 0);
}

TEST(CallTimes, HoldARowForEachCall) {
  GpuWork::reset();
  CalledProgram program;
  const std::vector<uint32_t> order{2, 0};
  const CallTimes times = time_calls(program, order);
  EXPECT_THAT(GpuWork::instance().log, ElementsAre("call 2", "call 0"));
  EXPECT_LE(times.called_ns[0], times.returned_ns[0]);
  EXPECT_LE(times.returned_ns[0], times.called_ns[1]);
}

}  // namespace
}  // namespace gpuscope::timing
