// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpuscope/device/primary_context.h"
#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

/// Plain timing events of one device, made once and used again. Any thread.
///
/// It keeps the device's primary context alive, and never destroys an event: at the end of the process the context may
/// be gone before the pool is. It holds as many events as were ever in use at once.
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
  mutable std::mutex mutex_;
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

}  // namespace gpuscope::device
