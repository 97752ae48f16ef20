// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

/// While a stream captures in the global mode, a call that asks for an event's state, on any thread, is refused and
/// spoils the capture; not so within this scope. The calling thread's.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const driver::Cuda& cuda) noexcept : cuda_(cuda) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() noexcept {
    if (cuda_.exchange_capture_mode != nullptr) {
      cuda_.exchange_capture_mode(&mode_);
    }
  }

  const driver::Cuda& cuda_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then what the thread had
};

}  // namespace gpuscope::device
