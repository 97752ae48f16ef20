// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

/// The device of this number, with the driver initialised and no context made. Throws NotAvailable without a driver or
/// such a device.
driver::CuDevice find_device(const driver::Cuda& cuda, int ordinal);

/// Keeps a device's primary context alive and current to whoever pushes it. Any thread.
class PrimaryContext {
 public:
  /// Throws NotAvailable without a driver or such a device, CudaError when the driver refuses.
  PrimaryContext(const driver::Cuda& cuda, int ordinal);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const driver::Cuda& cuda() const noexcept { return cuda_; }
  driver::CuContext handle() const noexcept { return context_; }

  /// Makes the context current for a scope. The calling thread's.
  class Current {
   public:
    explicit Current(const PrimaryContext& context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const driver::Cuda& cuda_;
  };

 private:
  driver::Cuda cuda_;
  driver::CuDevice device_ = 0;
  driver::CuContext context_ = nullptr;
};

}  // namespace gpuscope::device
