// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/context.h"

#include <chrono>

#include "gpuscope/driver/devices.h"

namespace gpuscope::timing {
namespace {

unsigned long long id_of(const driver::Cuda& cuda, driver::CuContext context) noexcept {
  unsigned long long id = 0;
  return cuda.context_get_id != nullptr && cuda.context_get_id(context, &id) == 0 ? id : 0;
}

}  // namespace

PrimaryContext::PrimaryContext(const driver::Cuda& cuda, int ordinal)
    : cuda_(cuda), device_(driver::find_device(cuda, ordinal)) {
  GPUSCOPE_CUDA(cuda_, primary_context_retain, &context_, device_);
  id_ = id_of(cuda_, context_);
}

PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) {
    cuda_.primary_context_release(device_);
  }
}

bool PrimaryContext::was_reset() const noexcept {
  return id_ != 0 ? id_of(cuda_, context_) != id_ : !driver::has_primary_context(cuda_, device_);
}

PrimaryContext::Current::Current(const PrimaryContext& context) : cuda_(context.cuda_) {
  GPUSCOPE_CUDA(cuda_, context_push, context.context_);
}

PrimaryContext::Current::~Current() {
  driver::CuContext popped = nullptr;
  cuda_.context_pop(&popped);
}

Module::Module(const PrimaryContext& context, const std::string& kernels) : context_(context) {
  const std::string ptx = ".version 6.0\n.target sm_50\n.address_size 64\n" + kernels;
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), module_load_data, &module_, ptx.c_str());
}

Module::~Module() {
  context_.release_in([&](const driver::Cuda& cuda) { cuda.module_unload(module_); });
}

driver::CuFunction Module::function(const char* name) const {
  const PrimaryContext::Current current(context_);
  driver::CuFunction function = nullptr;
  GPUSCOPE_CUDA(context_.cuda(), module_get_function, &function, module_, name);
  return function;
}

driver::CuPointer Module::variable(const char* name) const {
  const PrimaryContext::Current current(context_);
  driver::CuPointer address = 0;
  GPUSCOPE_CUDA(context_.cuda(), module_get_global, &address, nullptr, module_, name);
  return address;
}

void Module::launch(driver::CuFunction function, unsigned blocks, unsigned threads, uint64_t stream,
                    void** arguments) const {
  GPUSCOPE_CUDA(context_.cuda(), launch_kernel, function, blocks, 1, 1, threads, 1, 1, 0, driver::as_stream(stream),
                arguments, nullptr);
}

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

bool is_capturing(const driver::Cuda& cuda, uint64_t stream, int device) {
  driver::CuDevice found = 0;  // find_device would throw if the driver cannot be initialised
  if (!cuda.library || cuda.device_get(&found, device) != 0 || !driver::has_primary_context(cuda, found)) {
    return false;
  }
  const PrimaryContext context(cuda, device);
  const PrimaryContext::Current current(context);
  return is_capturing(cuda, driver::as_stream(stream));
}

void keep_primary_contexts(const driver::Cuda& cuda) noexcept {
  int count = 0;
  if (cuda.device_get_count == nullptr || cuda.device_get_count(&count) != 0) {
    return;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    driver::CuDevice device = 0;
    driver::CuContext context = nullptr;
    if (cuda.device_get(&device, ordinal) == 0 && driver::has_primary_context(cuda, device)) {
      cuda.primary_context_retain(&context, device);
    }
  }
}

double synchronize(const driver::Cuda& cuda, int device) {
  const auto start = Clock::now();
  if (!has_context(cuda, device)) {
    return 0;
  }
  const PrimaryContext context(cuda, device);
  const PrimaryContext::Current current(context);
  const RelaxedCapture relaxed(cuda);
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
  const RelaxedCapture relaxed(cuda);
  GPUSCOPE_CUDA(cuda, stream_synchronize, driver::as_stream(stream));
  return seconds_since(start);
}

}  // namespace gpuscope::timing
