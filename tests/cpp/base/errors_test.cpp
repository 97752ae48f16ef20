// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/errors.h"

#include <gtest/gtest.h>

#include <string>

namespace gpuscope::base {
namespace {

TEST(Errors, CudaErrorNamesCallErrorAndCode) {
  const CudaError error("cuInit", 100, "CUDA_ERROR_NO_DEVICE");
  EXPECT_EQ(std::string(error.what()), "cuInit failed with CUDA_ERROR_NO_DEVICE (100)");
  EXPECT_EQ(error.call(), "cuInit");
  EXPECT_EQ(error.code(), 100);
}

TEST(Errors, NotAvailableSaysWhatWhyAndHowToChangeIt) {
  const NotAvailable error("CUPTI tracing", "libcupti was not found", "pip install nvidia-cuda-cupti");
  EXPECT_EQ(std::string(error.what()),
            "CUPTI tracing is not available: libcupti was not found; pip install nvidia-cuda-cupti");
}

TEST(Errors, NotAvailableWithoutAFixEndsAtTheReason) {
  EXPECT_EQ(std::string(NotAvailable("A GPU", "there is none", "").what()), "A GPU is not available: there is none");
}

TEST(Errors, CorruptTraceNamesFileAndByte) {
  const CorruptTrace error("run.gscope", 4096, "the checksum does not match");
  EXPECT_EQ(std::string(error.what()), "run.gscope: the checksum does not match at byte 4096");
  EXPECT_EQ(error.path(), "run.gscope");
  EXPECT_EQ(error.offset(), 4096U);
}

TEST(Errors, EveryErrorIsCaughtAsError) {
  EXPECT_THROW(throw CudaError("cuInit", 100, "CUDA_ERROR_NO_DEVICE"), Error);
  EXPECT_THROW(throw InvalidArgument("mode is wrong"), Error);
  EXPECT_THROW(throw CorruptTrace("a", 0, "it is empty"), Error);
}

}  // namespace
}  // namespace gpuscope::base
