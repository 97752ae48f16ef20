// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <thread>

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

class Rows : public testing::Test {
 protected:
  RowTimes time_calls(std::vector<uint32_t> order, uint32_t repeat, int64_t longest_ns = kLong) {
    return timing::time_calls(program_, order, repeat, longest_ns);
  }

  static constexpr int64_t kLong = 60'000'000'000;
  static constexpr int64_t kShort = 1'000'000;
  GpuWork& gpu_ = GpuWork::reset();
  CalledProgram program_;
};

TEST_F(Rows, HoldOneCallUnlessTold) {
  const RowTimes times = time_calls({2, 0}, 1);
  EXPECT_THAT(gpu_.log, ElementsAre("call 2", "call 0"));
  EXPECT_THAT(times.calls, ElementsAre(1, 1));
  EXPECT_LE(times.called_ns[0], times.returned_ns[0]);
  EXPECT_LE(times.returned_ns[0], times.called_ns[1]);
}

TEST_F(Rows, RepeatOneFunctionBeforeTheNext) {
  const RowTimes times = time_calls({2, 0}, 3);
  EXPECT_THAT(gpu_.log, ElementsAre("call 2", "call 2", "call 2", "call 0", "call 0", "call 0"));
  EXPECT_THAT(times.calls, ElementsAre(3, 3));
  EXPECT_LE(times.returned_ns[0], times.called_ns[1]);
}

TEST_F(Rows, HoldAsManyCallsAsTheyWereTold) {
  for (const uint32_t repeat : {1U, 2U, 7U, kUnwatched, 5 * kUnwatched + 3}) {
    gpu_.log.clear();
    EXPECT_THAT(time_calls({0}, repeat).calls, ElementsAre(repeat));
    EXPECT_EQ(gpu_.log.size(), repeat);
  }
}

TEST_F(Rows, OfLongCallsHoldOneOnly) {
  program_.called = [](uint32_t) { std::this_thread::sleep_for(std::chrono::nanoseconds(2 * kShort)); };
  EXPECT_THAT(time_calls({0, 0}, 1000, kShort).calls, ElementsAre(1, 1));
  EXPECT_EQ(gpu_.log.size(), 2U);
}

TEST_F(Rows, EndSoonAfterCallsBecameLong) {
  constexpr uint32_t kQuick = 200;
  uint32_t called = 0;
  program_.called = [&](uint32_t) {
    if (++called > kQuick) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kShort / 8));
    }
  };
  const RowTimes times = time_calls({0}, 100'000, kShort);
  EXPECT_EQ(times.calls[0], called);
  EXPECT_LE(called, kQuick + 8 + kUnwatched);
}

TEST_F(Rows, EndWithWhatACallThrows) {
  program_.called = [&](uint32_t) {
    if (gpu_.log.size() == 5) {
      throw std::runtime_error("theirs");
    }
  };
  EXPECT_THROW(time_calls({0}, 100), std::runtime_error);
  EXPECT_EQ(gpu_.log.size(), 5U);
}

TEST_F(Rows, AreFollowedByNoneWhenInterrupted) {
  program_.called = [&](uint32_t) { program_.interrupted = true; };
  EXPECT_THROW(time_calls({0, 0}, 3), std::runtime_error);
  EXPECT_EQ(gpu_.log.size(), 3U);
}

}  // namespace
}  // namespace gpuscope::timing
