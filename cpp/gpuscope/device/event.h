// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "gpuscope/device/event_pool.h"
#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

struct EventOptions {
  bool timing = true;
  bool blocking = false;      // a thread that waits sleeps instead of spinning
  bool interprocess = false;  // cannot time: CUDA's rule
  bool external = false;      // in a captured graph: a node of its own, so that replays record it
};

/// Owns a CUDA event of one device's primary context. Plain timing events come from the device's pool and go back to
/// it. Any thread; recording from two threads at once leaves open whose record it keeps.
class Event {
 public:
  Event(std::shared_ptr<EventPool> pool, EventOptions options);
  /// An event that another process exported.
  Event(std::shared_ptr<EventPool> pool, const std::string& ipc_handle);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Throws InvalidArgument for a stream of another device.
  void record(uint64_t stream);
  /// Whether a record on this stream would go into a CUDA graph that is being captured.
  bool would_be_captured(uint64_t stream) const;
  /// Holds a stream's later work back until the event is reached. `device` says whose default stream is meant.
  void wait(uint64_t stream, int device) const;
  /// Whether the work before the event is done; true before the first record.
  bool query() const;
  /// Waits; seconds spent.
  double synchronize() const;
  /// Milliseconds to the other event. Throws InvalidArgument when either did not time or is not reached.
  double elapsed_time(const Event& end) const;
  std::string ipc_handle() const;

  uint64_t handle() const noexcept { return reinterpret_cast<uint64_t>(event_); }
  int device() const noexcept { return pool_->device(); }
  bool recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }

 private:
  bool pooled() const noexcept;
  const driver::Cuda& cuda() const noexcept { return pool_->context().cuda(); }

  std::shared_ptr<EventPool> pool_;
  EventOptions options_;
  driver::CuEvent event_ = nullptr;
  std::atomic<bool> recorded_{false};
};

}  // namespace gpuscope::device
