// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/context.h"

#include <gtest/gtest.h>

#include "fakes/cuda.h"

namespace gpuscope::timing {
namespace {

using fakes::Cuda;

TEST(PrimaryContexts, AreKeptOnEveryDeviceThatHasOne) {
  Cuda& gpu = Cuda::reset();
  gpu.devices = 3;
  gpu.active_contexts = 1;
  keep_primary_contexts(gpu.table());
  EXPECT_EQ(gpu.contexts_retained, 3);
}

TEST(PrimaryContexts, AreNotMadeToBeKept) {
  Cuda& gpu = Cuda::reset();
  keep_primary_contexts(gpu.table());
  EXPECT_EQ(gpu.contexts_retained, 0);
}

TEST(PrimaryContexts, AreNotAskedForWhereTheDriverIsNotInUse) {
  Cuda& gpu = Cuda::reset();
  gpu.active_contexts = 1;
  gpu.initialized = false;  // as in a forked child
  keep_primary_contexts(gpu.table());
  EXPECT_EQ(gpu.contexts_retained, 0);
}

TEST(PrimaryContexts, NeedNoDriver) { keep_primary_contexts(driver::Cuda{}); }

TEST(Captures, AreSeenOnAStreamOfADevice) {
  Cuda& gpu = Cuda::reset();
  gpu.active_contexts = 1;
  EXPECT_FALSE(is_capturing(gpu.table(), Cuda::stream(0), 0));
  gpu.capturing = 1;
  EXPECT_TRUE(is_capturing(gpu.table(), Cuda::stream(0), 0));
}

TEST(Captures, AreSeenOnTheDefaultStreamWhereItWaitsForTheOneThatIsCaptured) {
  Cuda& gpu = Cuda::reset();
  gpu.active_contexts = 1;
  driver::Cuda table = gpu.table();
  table.stream_is_capturing = [](driver::CuStream, int*) { return 906; };  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
  EXPECT_TRUE(is_capturing(table, 0, 0));
}

TEST(Captures, AreLookedForWithoutMakingAContext) {
  Cuda& gpu = Cuda::reset();
  gpu.capturing = 1;
  EXPECT_FALSE(is_capturing(gpu.table(), 0, 0));
  EXPECT_EQ(gpu.active_contexts, 0);
  EXPECT_FALSE(is_capturing(driver::Cuda{}, 0, 0));
  driver::Cuda broken = gpu.table();
  broken.init = [](unsigned) { return 999; };
  broken.device_get = [](driver::CuDevice*, int) { return 3; };  // CUDA_ERROR_NOT_INITIALIZED
  EXPECT_FALSE(is_capturing(broken, 0, 0));
}

TEST(Captures, OfOtherStreamsAreNotSpoilt) {
  Cuda& gpu = Cuda::reset();
  gpu.active_contexts = 1;
  constexpr int kRelaxed = 2;
  synchronize_stream(gpu.table(), Cuda::stream(0), 0);
  EXPECT_EQ(gpu.mode_when_waited, kRelaxed);
  gpu.mode_when_waited = -1;
  synchronize(gpu.table(), 0);
  EXPECT_EQ(gpu.mode_when_waited, kRelaxed);
  EXPECT_EQ(Cuda::capture_mode(), 0);
}

TEST(Captures, AThreadKeepsItsModeWhereTheDriverIsInitialisedMeanwhile) {
  Cuda& gpu = Cuda::reset();
  gpu.initialized = false;
  const driver::Cuda table = gpu.table();
  {
    const RelaxedCapture relaxed(table);
    gpu.initialized = true;
  }
  EXPECT_EQ(Cuda::capture_mode(), 0);
}

}  // namespace
}  // namespace gpuscope::timing
