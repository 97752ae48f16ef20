// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes/gpu_work.h"

namespace gpuscope::timing {
namespace {

using fakes::GpuWork;
using testing::ElementsAre;

class BuiltIn : public testing::Test {
 protected:
  BuiltIn() {
    gpu_.attributes = {{16, 10}};
    table_ = gpu_.table();
    table_.module_get_global = [](driver::CuPointer* address, size_t*, driver::CuModule, const char*) {
      *address = 0x2000;
      return 0;
    };
    table_.copy_to_host = [](void* to, driver::CuPointer, size_t bytes, driver::CuStream) {
      const Kernels::Spun spun{3, 1'500};
      EXPECT_EQ(bytes, sizeof(spun));
      *static_cast<Kernels::Spun*>(to) = spun;
      return GpuWork::instance().note("copy to host");
    };
  }

  GpuWork& gpu_ = GpuWork::reset();
  driver::Cuda table_;
};

TEST_F(BuiltIn, SpinsAreCountedUntilAsked) {
  const Kernels::Spun spun = Kernels(table_).spun();
  EXPECT_EQ(spun.count, 3U);
  EXPECT_EQ(spun.total_ns, 1'500U);
  EXPECT_THAT(gpu_.log, ElementsAre("wait", "copy to host", "fill", "wait"));
}

TEST_F(BuiltIn, CopiesTakeWholeVectors) {
  Kernels kernels(table_);
  EXPECT_THROW(kernels.copy(24, 0), base::InvalidArgument);
  EXPECT_THROW(kernels.copy(0, 0), base::InvalidArgument);
  kernels.copy(32, 0);
  EXPECT_THAT(gpu_.log, ElementsAre("gpuscope_copy"));
}

TEST_F(BuiltIn, OperationsGrowWithRoundsAndMultiprocessors) {
  const uint64_t flops = Kernels(table_).fma_flops(5);
  EXPECT_EQ(Kernels(table_).fma_flops(10), 2 * flops);
  gpu_.attributes = {{16, 20}};
  EXPECT_EQ(Kernels(table_).fma_flops(5), 2 * flops);
}

TEST_F(BuiltIn, KernelsGiveTheirMemoryBack) {
  { Kernels(table_).copy(32, 0); }
  EXPECT_EQ(gpu_.allocations, 0);
}

}  // namespace
}  // namespace gpuscope::timing
