// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpuscope/driver/libraries.h"
#include "gpuscope/timing/context.h"

namespace gpuscope::timing {

/// Plain timing events of one device, made once and used again. Any thread.
///
/// It keeps the device's primary context alive, and never destroys an event: at the end of the process the context may
/// be gone before the pool is. It holds as many events as were ever in use at once. In a forked child it gives and
/// takes nothing: CUDA does not survive a fork, and the lock may be held there for ever.
class EventPool {
 public:
  EventPool(const driver::Cuda& cuda, int ordinal) : context_(cuda, ordinal), ordinal_(ordinal) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  /// An event that nobody else has; what was recorded in it before is still in it.
  driver::CuEvent take();
  void give_back(driver::CuEvent event) noexcept;

  struct Counts {
    std::size_t created;
    std::size_t in_use;
    std::size_t free;
  };
  Counts counts() const;

  const PrimaryContext& context() const noexcept { return context_; }
  int device() const noexcept { return ordinal_; }

 private:
  PrimaryContext context_;
  int ordinal_;
  const pid_t process_ = getpid();
  mutable std::mutex mutex_;  // held while CUDA makes an event
  std::vector<driver::CuEvent> free_;
  std::size_t created_ = 0;
};

/// The pools of a process, one a device, made when first asked for. Any thread.
class EventPools {
 public:
  explicit EventPools(const driver::Cuda& cuda) : cuda_(cuda) {}

  /// Throws NotAvailable without such a device.
  std::shared_ptr<EventPool> of(int ordinal);
  /// Of a device whose pool was never asked for: zeros.
  EventPool::Counts counts(int ordinal) const;

 private:
  driver::Cuda cuda_;
  mutable std::mutex mutex_;
  std::map<int, std::shared_ptr<EventPool>> pools_;
};

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

  /// Throws InvalidArgument for a stream of another device. False where the stream is being captured into a CUDA graph
  /// and `into_graphs` is false: then nothing is recorded.
  bool record(uint64_t stream, bool into_graphs = true);
  /// Holds a stream's later work back until the event is reached. `device` says whose default stream is meant.
  void wait(uint64_t stream, int device) const;
  /// Whether the work before the event is done; true before the first record. Throws InvalidArgument where the last
  /// record went into a CUDA graph, as the next two do: to ask the driver would spoil a capture that goes on.
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
  void check_not_captured(const char* name) const;
  const driver::Cuda& cuda() const noexcept { return pool_->context().cuda(); }

  std::shared_ptr<EventPool> pool_;
  EventOptions options_;
  driver::CuEvent event_ = nullptr;
  std::atomic<bool> recorded_{false};
  std::atomic<bool> captured_{false};  // the last record went into a CUDA graph, and not as a node of its own
};

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
  /// Its stream went with the context: others are to be made, and anchors that it gave are of no use.
  bool was_reset() const noexcept { return pool_->context().was_reset(); }

 private:
  std::shared_ptr<EventPool> pool_;
  driver::CuStream stream_ = nullptr;  // never destroyed: its context may be gone by then
};

}  // namespace gpuscope::timing
