// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/driver/libraries.h"
#include "gpuscope/timing/context.h"

namespace gpuscope::timing {

/// Small kernels as PTX, compiled by the driver, for demonstrations and calibration on any machine with a GPU and
/// without a toolkit. Launches may come from several threads. Growing a buffer may not.
class Kernels {
 public:
  explicit Kernels(const driver::Cuda& cuda, int ordinal = 0);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  /// One thread that spins for this long by the GPU's clock.
  void spin(uint64_t nanoseconds, uint64_t stream, unsigned count = 1);
  struct Spun {
    uint64_t count;
    uint64_t total_ns;
  };
  /// The number of spin kernels that have ended since the last call. Also their total time by their own clock readings,
  /// without the start and end of a kernel. Waits for the device.
  Spun spun();
  /// y = a x + y over `elements` floats.
  void saxpy(uint32_t elements, uint64_t stream);
  /// Sums `elements` floats.
  void reduce(uint32_t elements, uint64_t stream);
  void copy_in(uint64_t bytes, uint64_t stream);
  void copy_out(uint64_t bytes, uint64_t stream);
  void fill(uint64_t bytes, uint64_t stream);
  /// Copies `bytes` within device memory, 16 per thread.
  void copy(uint64_t bytes, uint64_t stream);
  /// Rounds of FP32 FMAs on every multiprocessor: fma_flops operations in total, two per FMA.
  void fma(uint32_t rounds, uint64_t stream);
  uint64_t fma_flops(uint32_t rounds) const noexcept;
  void synchronize();

 private:
  driver::CuPointer buffer(uint64_t bytes);

  PrimaryContext context_;
  Module module_;
  driver::CuFunction spin_ = nullptr;
  driver::CuFunction saxpy_ = nullptr;
  driver::CuFunction reduce_ = nullptr;
  driver::CuFunction copy_ = nullptr;
  driver::CuFunction fma_ = nullptr;
  driver::CuPointer spun_ = 0;
  unsigned fma_blocks_ = 0;
  driver::CuPointer memory_ = 0;
  uint64_t memory_bytes_ = 0;
  std::vector<unsigned char> host_;
};

}  // namespace gpuscope::timing
