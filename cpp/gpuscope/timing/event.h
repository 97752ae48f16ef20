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

/// Plain timing events of one device, created once and reused. Any thread.
///
/// Keeps the device's primary context alive, and never destroys an event: at process exit the context may be gone
/// before the pool. It has as many events as were ever in use at once. In a forked child it gives and takes nothing:
/// CUDA does not survive a fork, and the lock may be held there for ever.
class EventPool {
 public:
  EventPool(const driver::Cuda& cuda, int ordinal) : context_(cuda, ordinal), ordinal_(ordinal) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  /// An unused event. It still contains its previous record.
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

/// The pools of a process, one per device, made on first use. Any thread.
class EventPools {
 public:
  explicit EventPools(const driver::Cuda& cuda) : cuda_(cuda) {}

  /// Throws NotAvailable without such a device.
  std::shared_ptr<EventPool> of(int ordinal);
  /// Zeros for a device without a pool.
  EventPool::Counts counts(int ordinal) const;

 private:
  driver::Cuda cuda_;
  mutable std::mutex mutex_;
  std::map<int, std::shared_ptr<EventPool>> pools_;
};

struct EventOptions {
  bool timing = true;
  bool blocking = false;      // a waiting thread sleeps instead of spinning
  bool interprocess = false;  // cannot time: CUDA's rule
  bool external = false;      // in a captured graph: a separate node, so that replays record it
};

/// Owns a CUDA event of one device's primary context. Plain timing events come from the device's pool and return to it.
/// Any thread. After concurrent records, either one stays.
class Event {
 public:
  Event(std::shared_ptr<EventPool> pool, EventOptions options);
  /// An event that another process exported.
  Event(std::shared_ptr<EventPool> pool, const std::string& ipc_handle);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Throws InvalidArgument for a stream of another device. False if the stream is being captured into a CUDA graph and
  /// `into_graphs` is false: then nothing is recorded.
  bool record(uint64_t stream, bool into_graphs = true);
  /// Makes a stream's later work wait for the event. `device`: the device of a default stream.
  void wait(uint64_t stream, int device) const;
  /// Whether the work before the event is done. True before the first record. Throws InvalidArgument if the last record
  /// went into a CUDA graph, like the next two: a query would invalidate an active capture.
  bool query() const;
  /// Waits; seconds spent.
  double synchronize() const;
  /// Milliseconds to the other event. Throws InvalidArgument if either did not time or is not reached.
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
  std::atomic<bool> captured_{false};  // the last record went into a CUDA graph, not as a separate node
};

/// An event with a known time on the host's clock. It relates other events of the device to that clock.
struct HostAnchor {
  std::unique_ptr<Event> event;
  int64_t host_ns = 0;   // CLOCK_MONOTONIC
  int64_t error_ns = 0;  // the true time is within host_ns +- error_ns
};

/// Takes anchors on a separate empty stream, which waits for no other stream. Any thread.
class HostAnchors {
 public:
  explicit HostAnchors(std::shared_ptr<EventPool> pool);
  HostAnchors(const HostAnchors&) = delete;
  HostAnchors& operator=(const HostAnchors&) = delete;

  /// The best of a few tries. Without an event if the GPU answered none in time: for example if all streams share one
  /// hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1) and it is full.
  HostAnchor take(int64_t timeout_ns) const;
  /// Whether its stream was destroyed with the context. Then create new anchors, and discard earlier ones.
  bool was_reset() const noexcept { return pool_->context().was_reset(); }

 private:
  std::shared_ptr<EventPool> pool_;
  driver::CuStream stream_ = nullptr;  // never destroyed: its context may be gone by then
};

}  // namespace gpuscope::timing
