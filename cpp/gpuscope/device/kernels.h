// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

/// Keeps a device's primary context alive and current to whoever pushes it.
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

/// Small kernels of our own, as PTX that the driver compiles: work to demonstrate and to calibrate with, on any machine
/// with a GPU and no toolkit. Launches may come from several threads; growing a buffer may not.
class Kernels {
 public:
  explicit Kernels(const driver::Cuda& cuda, int ordinal = 0);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  /// One thread that watches the GPU's clock for this long.
  void spin(uint64_t nanoseconds, uint64_t stream, unsigned count = 1);
  /// y = a x + y over so many floats.
  void saxpy(uint32_t elements, uint64_t stream);
  /// Adds up so many floats.
  void reduce(uint32_t elements, uint64_t stream);
  void copy_in(uint64_t bytes, uint64_t stream);
  void copy_out(uint64_t bytes, uint64_t stream);
  void fill(uint64_t bytes, uint64_t stream);
  void synchronize();

 private:
  driver::CuPointer buffer(uint64_t bytes);
  void launch(driver::CuFunction function, unsigned blocks, unsigned threads, uint64_t stream, void** arguments);

  PrimaryContext context_;
  driver::CuModule module_ = nullptr;
  driver::CuFunction spin_ = nullptr;
  driver::CuFunction saxpy_ = nullptr;
  driver::CuFunction reduce_ = nullptr;
  driver::CuPointer memory_ = 0;
  uint64_t memory_bytes_ = 0;
  std::vector<unsigned char> host_;
};

}  // namespace gpuscope::device
