// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/context.h"

#include <string>

namespace gpuscope::device {

void require_device(const driver::Cuda& cuda, int ordinal) {
  if (!cuda.library) {
    throw base::NotAvailable("the GPU", std::string("no NVIDIA driver was found (") + cuda.library.why() + ")",
                             "install the driver, or pass the GPU into this container");
  }
  GPUSCOPE_CUDA(cuda, init, 0);
  int count = 0;
  GPUSCOPE_CUDA(cuda, device_get_count, &count);
  if (ordinal < 0 || ordinal >= count) {
    throw base::NotAvailable(std::string("device ") + std::to_string(ordinal),
                             std::string("this process sees ") + std::to_string(count) + " devices", "");
  }
}

PrimaryContext::PrimaryContext(const driver::Cuda& cuda, int ordinal) : cuda_(cuda) {
  require_device(cuda_, ordinal);
  GPUSCOPE_CUDA(cuda_, device_get, &device_, ordinal);
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
  driver::CuContext popped = nullptr;
  if (context_.cuda().context_push(context_.handle()) == 0) {
    context_.cuda().module_unload(module_);
    context_.cuda().context_pop(&popped);
  }
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
  GPUSCOPE_CUDA(context_.cuda(), launch_kernel, function, blocks, 1, 1, threads, 1, 1, 0, as_stream(stream), arguments,
                nullptr);
}

}  // namespace gpuscope::device
