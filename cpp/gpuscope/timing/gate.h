// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpuscope/timing/context.h"

namespace gpuscope::timing {

/// Holds a stream until the host has queued all it wants to: a kernel of one thread that watches a word of the host's.
/// It lets go by itself after a time, so that nothing can wait for it forever. As it reads the SM's cycle counter and
/// the GPU's clock at both ends, it also measures the SM's frequency. One thread at a time.
class Gate {
 public:
  /// The words that host and GPU share; the kernel knows their offsets.
  struct Words {
    uint32_t open;     // the host's: not 0 lets the stream go on
    uint32_t outcome;  // the GPU's from here on
    uint64_t start_ns;
    uint64_t start_cycles;
    uint64_t end_ns;
    uint64_t end_cycles;
  };
  static constexpr uint32_t kOpened = 1;
  static constexpr uint32_t kTimedOut = 2;

  /// The context outlives the gate.
  explicit Gate(const PrimaryContext& context);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// The stream stops here, for at most so long. What was closed before has been waited for.
  void close(uint64_t stream, uint64_t timeout_ns);
  /// Any thread, any number of times.
  void open() noexcept;
  /// Only measures the frequency, in some 20 us.
  void measure(uint64_t stream);

  // Of the last kernel, once it has been waited for.
  /// Whether the stream went on because it was let, not because time was up.
  bool held() const noexcept;
  /// The SM's frequency while the kernel ran; NaN when that was too short to tell.
  double clock_hz() const noexcept;

 private:
  void launch(driver::CuFunction function, uint64_t stream, uint32_t open, uint64_t timeout_ns);

  const PrimaryContext& context_;
  Module module_;
  driver::CuFunction gate_ = nullptr;
  driver::CuFunction meter_ = nullptr;
  Words* words_ = nullptr;
  driver::CuPointer address_ = 0;  // of the words, for the GPU
};

}  // namespace gpuscope::timing
