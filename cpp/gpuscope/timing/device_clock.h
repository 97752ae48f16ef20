// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "gpuscope/timing/context.h"

namespace gpuscope::timing {

/// Reads the GPU's and the process's clock at the same moment. A kernel of one thread answers requests in a shared word
/// for about 30 us. It ends by itself, so no wait for it is endless. One thread at a time.
class DeviceClock {
 public:
  /// Words shared by host and GPU. The kernel knows their offsets.
  struct Words {
    uint32_t asked;      // written by the host: the number of the question
    uint32_t ended;      // written by the GPU, like the following
    uint64_t device_ns;  // the answer
  };
  static constexpr uint32_t kQuestions = 16;
  static constexpr uint32_t kNoMore = UINT32_MAX;
  static constexpr const char* kKernel = "gpuscope_clock";

  /// Throws NotAvailable without a driver or such a device, CudaError if the driver refuses.
  DeviceClock(const driver::Cuda& cuda, int ordinal);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  struct Reading {
    uint64_t device_ns;  // of the clock of %globaltimer and CUPTI's raw timestamps
    int64_t host_ns;     // of the process's clock, in the middle of the request
    int64_t width_ns;    // duration of the request
  };
  /// The reading with the shortest request of one kernel. None if the GPU does not begin it within `limit`, or an
  /// answer does not come within `limit`. Throws CudaError.
  std::optional<Reading> read(std::chrono::nanoseconds limit);
  /// Whether the device was reset: readings are impossible, and another clock can be made.
  bool was_reset() const noexcept { return context_.was_reset(); }

 private:
  struct Free {
    void operator()(Words* words) const noexcept;
  };

  PrimaryContext context_;
  std::unique_ptr<Module> module_;
  driver::CuFunction function_ = nullptr;
  driver::CuStream stream_ = nullptr;
  std::unique_ptr<Words, Free> words_;  // a page of the process, readable even after a device reset
  driver::CuPointer address_ = 0;       // of the words, for the GPU
};

}  // namespace gpuscope::timing
