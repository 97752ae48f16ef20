// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "gpuscope/timing/context.h"

namespace gpuscope::timing {

/// Fills the L2 cache with clean lines that nobody wants: writes a large buffer, then reads another. Reading comes last
/// because lines that were only written are written back while the next kernel runs, at its expense. One thread.
class L2Flush {
 public:
  static constexpr uint64_t kTwiceTheL2 = UINT64_MAX;

  /// Writes so many bytes, and reads three quarters as many. The context outlives the flush.
  L2Flush(const PrimaryContext& context, int device, uint64_t bytes);
  ~L2Flush();
  L2Flush(const L2Flush&) = delete;
  L2Flush& operator=(const L2Flush&) = delete;

  uint64_t l2_bytes() const noexcept { return l2_bytes_; }

  /// Before a row of flushes: makes the buffers the first time, and takes back lines that were set to persist. May wait
  /// for the GPU.
  void prepare();
  /// Queues one flush.
  void run(uint64_t stream);

 private:
  const PrimaryContext& context_;
  Module module_;
  driver::CuFunction write_ = nullptr;
  driver::CuFunction read_ = nullptr;
  uint64_t l2_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  uint64_t read_bytes_ = 0;
  unsigned blocks_ = 1;
  uint32_t salt_ = 0;
  driver::CuPointer memory_ = 0;  // the part to read, then the part to write
};

}  // namespace gpuscope::timing
