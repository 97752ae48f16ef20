// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/primary_context.h"

#include <string>

namespace gpuscope::device {

driver::CuDevice find_device(const driver::Cuda& cuda, int ordinal) {
  if (!cuda.library) {
    throw base::NotAvailable("the GPU", "no NVIDIA driver was found (" + cuda.library.why() + ")",
                             "install the driver, or pass the GPU into this container");
  }
  if (const int code = cuda.init(0); code != 0) {
    throw base::NotAvailable("the GPU", "cuInit failed with " + cuda.error_name(code), "");
  }
  int count = 0;
  GPUSCOPE_CUDA(cuda, device_get_count, &count);
  if (ordinal < 0 || ordinal >= count) {
    throw base::NotAvailable("device " + std::to_string(ordinal),
                             "this process sees " + std::to_string(count) + " devices", "");
  }
  driver::CuDevice device = 0;
  GPUSCOPE_CUDA(cuda, device_get, &device, ordinal);
  return device;
}

PrimaryContext::PrimaryContext(const driver::Cuda& cuda, int ordinal)
    : cuda_(cuda), device_(find_device(cuda, ordinal)) {
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

}  // namespace gpuscope::device
