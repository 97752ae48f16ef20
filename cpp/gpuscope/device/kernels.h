// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gpuscope/device/primary_context.h"
#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

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
