// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/context.h"

namespace gpuscope::timing {

PrimaryContext::PrimaryContext(const driver::Cuda& cuda, int ordinal)
    : cuda_(cuda), device_(driver::find_device(cuda, ordinal)) {
  GPUSCOPE_CUDA(cuda_, primary_context_retain, &context_, device_);
}

PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) {
    cuda_.primary_context_release(device_);
  }
}

PrimaryContext::Current::Current(const PrimaryContext& context) : cuda_(context.cuda_) {
  GPUSCOPE_CUDA(cuda_, context_push, context.context_);
}

PrimaryContext::Current::~Current() {
  driver::CuContext popped = nullptr;
  cuda_.context_pop(&popped);
}

Module::Module(const PrimaryContext& context, const char* ptx) : context_(context) {
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), module_load_data, &module_, ptx);
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

}  // namespace gpuscope::timing
