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

}  // namespace
}  // namespace gpuscope::timing
