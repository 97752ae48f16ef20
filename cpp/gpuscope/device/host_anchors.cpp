// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/host_anchors.h"

#include <chrono>
#include <utility>

#include "gpuscope/device/relaxed_capture.h"

namespace gpuscope::device {
namespace {

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kTries = 3;             // the first may find the GPU's front end asleep

int64_t host_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

HostAnchors::HostAnchors(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)) {
  const PrimaryContext::Current current(pool_->context());
  const RelaxedCapture relaxed(pool_->context().cuda());
  GPUSCOPE_CUDA(pool_->context().cuda(), stream_create, &stream_, kNonBlocking);
}

HostAnchor HostAnchors::take(int64_t timeout_ns) const {
  HostAnchor best;
  const int64_t end = host_now() + timeout_ns;
  for (int count = 0; count < kTries; ++count) {
    auto event = std::make_unique<Event>(pool_, EventOptions{});
    const int64_t before = host_now();
    event->record(reinterpret_cast<uint64_t>(stream_));
    bool reached = false;
    int64_t after = 0;
    do {
      reached = event->query();
      after = host_now();
    } while (!reached && after < end);
    if (!reached) {
      break;
    }
    const int64_t error = (after - before + 1) / 2;
    if (best.event == nullptr || error < best.error_ns) {
      best = {std::move(event), before + error, error};
    }
  }
  return best;
}

}  // namespace gpuscope::device
