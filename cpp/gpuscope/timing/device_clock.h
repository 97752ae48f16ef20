// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "gpuscope/timing/context.h"

namespace gpuscope::timing {

/// Reads the GPU's own clock and the process's at one moment, by a kernel of one thread that answers to a word of the
/// host's for some 30 us. It ends by itself, so that nothing can wait for it forever. One thread at a time.
class DeviceClock {
 public:
  /// The words that host and GPU share; the kernel knows their offsets.
  struct Words {
    uint32_t asked;      // the host's: the number of the question
    uint32_t ended;      // the GPU's from here on
    uint64_t device_ns;  // the answer
  };
  static constexpr uint32_t kQuestions = 16;
  static constexpr uint32_t kNoMore = UINT32_MAX;
  static constexpr const char* kKernel = "gpuscope_clock";

  /// Throws NotAvailable without a driver or such a device, CudaError when the driver refuses.
  DeviceClock(const driver::Cuda& cuda, int ordinal);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  struct Reading {
    uint64_t device_ns;  // of the clock that %globaltimer and CUPTI's raw timestamps are of
    int64_t host_ns;     // of the process's clock, in the middle of what asking took
    int64_t width_ns;    // what asking took
  };
  /// The narrowest of the readings of one kernel; none where the GPU does not begin it within `limit`, in which each
  /// answer has to come, too. Throws CudaError.
  std::optional<Reading> read(std::chrono::nanoseconds limit);
  /// There is nothing to be read any more; another clock can be made.
  bool was_reset() const noexcept { return context_.was_reset(); }

 private:
  struct Free {
    void operator()(Words* words) const noexcept;
  };

  PrimaryContext context_;
  std::unique_ptr<Module> module_;
  driver::CuFunction function_ = nullptr;
  driver::CuStream stream_ = nullptr;
  std::unique_ptr<Words, Free> words_;  // a page of the process's own, which a reset of the device leaves readable
  driver::CuPointer address_ = 0;       // of the words, for the GPU
};

}  // namespace gpuscope::timing
