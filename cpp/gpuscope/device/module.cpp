// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/module.h"

namespace gpuscope::device {

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
