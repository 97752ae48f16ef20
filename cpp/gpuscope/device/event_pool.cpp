// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/event_pool.h"

#include "gpuscope/device/relaxed_capture.h"

namespace gpuscope::device {

driver::CuEvent EventPool::take() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    const driver::CuEvent event = free_.back();
    free_.pop_back();
    return event;
  }
  free_.reserve(created_ + 1);  // so that give_back never allocates
  const PrimaryContext::Current current(context_);
  const RelaxedCapture relaxed(context_.cuda());
  driver::CuEvent event = nullptr;
  GPUSCOPE_CUDA(context_.cuda(), event_create, &event, 0);
  ++created_;
  return event;
}

void EventPool::give_back(driver::CuEvent event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

EventPool::Counts EventPool::counts() const {
  const std::lock_guard lock(mutex_);
  return {created_, created_ - free_.size(), free_.size()};
}

std::shared_ptr<EventPool> EventPools::of(int ordinal) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<EventPool>& pool = pools_[ordinal];
  if (!pool) {
    pool = std::make_shared<EventPool>(cuda_, ordinal);
  }
  return pool;
}

EventPool::Counts EventPools::counts(int ordinal) const {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(ordinal);
  return found == pools_.end() || !found->second ? EventPool::Counts{} : found->second->counts();
}

}  // namespace gpuscope::device
