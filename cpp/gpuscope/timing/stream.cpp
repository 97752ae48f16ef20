// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/stream.h"

#include <chrono>

#include "gpuscope/timing/context.h"

namespace gpuscope::timing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool has_context(const driver::Cuda& cuda, int device) {
  return driver::has_primary_context(cuda, driver::find_device(cuda, device));
}

}  // namespace

int stream_device(const driver::Cuda& cuda, uint64_t stream) {
  driver::CuContext context = nullptr;
  if (!cuda.library) {
    return 0;
  }
  if (is_default_stream(stream)) {
    if (cuda.context_get_current(&context) != 0 || context == nullptr) {
      return 0;
    }
  } else {
    GPUSCOPE_CUDA(cuda, stream_get_context, driver::as_stream(stream), &context);
  }
  driver::CuDevice device = 0;  // the driver numbers devices as this process sees them
  driver::CuContext popped = nullptr;
  GPUSCOPE_CUDA(cuda, context_push, context);
  const int code = cuda.context_get_device(&device);
  cuda.context_pop(&popped);
  if (code != 0) {
    throw base::CudaError("cuCtxGetDevice", code, cuda.error_name(code));
  }
  return device;
}

bool is_capturing(const driver::Cuda& cuda, driver::CuStream stream) {
  constexpr int kImplicitCapture = 906;  // of the legacy stream, while another one captures
  int status = 0;
  const int code = cuda.stream_is_capturing(stream, &status);
  return code == kImplicitCapture || (code == 0 && status != 0);
}

double synchronize(const driver::Cuda& cuda, int device) {
  const auto start = Clock::now();
  if (!has_context(cuda, device)) {
    return 0;
  }
  const PrimaryContext context(cuda, device);
  const PrimaryContext::Current current(context);
  GPUSCOPE_CUDA(cuda, context_synchronize);
  return seconds_since(start);
}

double synchronize_stream(const driver::Cuda& cuda, uint64_t stream, int device) {
  const auto start = Clock::now();
  if (is_default_stream(stream) && !has_context(cuda, device)) {
    return 0;
  }
  const PrimaryContext context(cuda, device);
  const PrimaryContext::Current current(context);
  GPUSCOPE_CUDA(cuda, stream_synchronize, driver::as_stream(stream));
  return seconds_since(start);
}

}  // namespace gpuscope::timing
