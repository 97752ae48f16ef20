// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "gpuscope/device/event.h"

namespace gpuscope::device {

/// An event whose moment is known on the host's clock, so that other events of the device can be placed on it.
struct HostAnchor {
  std::unique_ptr<Event> event;
  int64_t host_ns = 0;   // CLOCK_MONOTONIC
  int64_t error_ns = 0;  // the true moment lies within host_ns +- error_ns
};

/// Takes anchors on an otherwise empty stream of its own, which waits for no other stream. Any thread.
class HostAnchors {
 public:
  explicit HostAnchors(std::shared_ptr<EventPool> pool);
  HostAnchors(const HostAnchors&) = delete;
  HostAnchors& operator=(const HostAnchors&) = delete;

  /// The best of a few tries; without an event when the GPU answered none of them in time, as when the hardware queues
  /// of all streams are one (CUDA_DEVICE_MAX_CONNECTIONS=1) and it is full.
  HostAnchor take(int64_t timeout_ns) const;

 private:
  std::shared_ptr<EventPool> pool_;
  driver::CuStream stream_ = nullptr;  // never destroyed: its context may be gone by then
};

}  // namespace gpuscope::device
