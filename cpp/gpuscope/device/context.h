// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

/// Throws NotAvailable without a driver or such a device, CudaError when the driver refuses. Makes no context.
void require_device(const driver::Cuda& cuda, int ordinal);

/// Keeps a device's primary context alive and current to whoever pushes it.
class PrimaryContext {
 public:
  /// Throws as require_device does.
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

inline driver::CuStream as_stream(uint64_t handle) noexcept { return reinterpret_cast<driver::CuStream>(handle); }

/// PTX that the driver has compiled for one context. Launches may come from any thread that has the context current.
class Module {
 public:
  /// The context outlives the module.
  Module(const PrimaryContext& context, const char* ptx);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  driver::CuFunction function(const char* name) const;
  /// A variable of the module's, which is zero at first.
  driver::CuPointer variable(const char* name) const;
  void launch(driver::CuFunction function, unsigned blocks, unsigned threads, uint64_t stream, void** arguments) const;

 private:
  const PrimaryContext& context_;
  driver::CuModule module_ = nullptr;
};

}  // namespace gpuscope::device
