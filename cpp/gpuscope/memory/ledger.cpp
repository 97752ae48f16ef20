// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/ledger.h"

#include <pthread.h>

#include <exception>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/open_regions.h"
#include "gpuscope/base/stacks.h"
#include "gpuscope/base/system.h"
#include "gpuscope/memory/history.h"
#include "gpuscope/memory/native_library.h"

namespace gpuscope::memory {

using base::AllocationKind;
using base::AllocationStep;
using base::DriverAllocation;

namespace {

// What has an address is part of the memory history, too, while one is recorded.
void record_in_history(const Allocation& allocation, bool taken) noexcept {
  if (allocation.address != 0 && History::process().recording()) {
    const auto bytes = static_cast<int64_t>(allocation.bytes);
    History::process().record({allocation.address, taken ? bytes : -bytes, 0, 0, allocation.device, Source::Driver});
  }
}

}  // namespace

Ledger& Ledger::process() {
  static Ledger* ledger = [] {
    base::survive_forks();
    static auto* made = new Ledger;  // leaked: the driver is called until the last moment
    pthread_atfork([] { made->mutex_.lock(); }, [] { made->mutex_.unlock(); },
                   [] {
                     base::allocation_sink.store(nullptr);
                     base::OpenRegions::end(base::OpenRegions::kLedger);
                     made->clear();  // the memory is the parent's
                     made->mutex_.unlock();
                   });
    return made;
  }();
  return *ledger;
}

void Ledger::begin(bool stacks) {
  const std::lock_guard lock(mutex_);
  clear();
  failures_.clear();
  unknown_releases_ = 0;
  missed_ = 0;
  stacks_ = stacks;
  base::OpenRegions::begin(base::OpenRegions::kLedger);
}

void Ledger::forget() noexcept {
  base::OpenRegions::end(base::OpenRegions::kLedger);
  const std::lock_guard lock(mutex_);
  clear();
}

void Ledger::clear() noexcept {
  by_address_.clear();
  virtual_.clear();
  arrays_.clear();
  mappings_.clear();
}

Author Ledger::find_author() const noexcept {
  Author author;
  author.library = NativeLibraries::process().caller();
  author.thread = base::thread_id();
  author.stack = stacks_.load(std::memory_order_relaxed) ? base::current_stack() : 0;
  author.region = base::current_region();
  return author;
}

void Ledger::record(const DriverAllocation& event) noexcept {
  const Author author = event.step == AllocationStep::Taken ? find_author() : Author{};
  try {
    const std::lock_guard lock(mutex_);
    switch (event.step) {
      case AllocationStep::Taken:
        return event.result == 0 ? take(event, author) : refuse(event, author);
      case AllocationStep::Released:
        return release(event);
      case AllocationStep::Mapped:
        return map(event);
      case AllocationStep::Unmapped:
        return unmap(event);
      case AllocationStep::Retained:
        if (const auto found = virtual_.find(event.handle); found != virtual_.end()) {
          ++found->second.holders;
        }
        return;
      case AllocationStep::ContextGone:
        return forget_context(event.context);
    }
  } catch (const std::exception&) {
    missed_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Ledger::take(const DriverAllocation& event, const Author& author) {
  Entry entry;
  entry.allocation = {
      event.address, event.bytes, event.pool, event.context, base::Clock::process().to_ns(event.ended_ticks),
      event.device,  event.kind,  author};
  entry.taken_ticks = event.ended_ticks;
  // What was there before has been released: its release is yet to come, or was missed.
  switch (event.kind) {
    case AllocationKind::Virtual:
      virtual_[event.handle] = entry;
      return;
    case AllocationKind::Array:
      arrays_[event.handle] = entry;
      return;
    default:
      by_address_[event.address] = entry;
      record_in_history(entry.allocation, true);
  }
}

void Ledger::refuse(const DriverAllocation& event, const Author& author) {
  Failure failure{event.bytes, 0,     base::Clock::process().to_ns(event.ended_ticks), event.device, event.result,
                  event.kind,  author};
  for (const Entries* entries : {&by_address_, &virtual_, &arrays_}) {
    for (const auto& [key, entry] : *entries) {
      failure.live_bytes += entry.allocation.device == event.device ? entry.allocation.bytes : 0;
    }
  }
  failures_.push_back(failure);
  if (failures_.size() > kFailures) {
    failures_.pop_front();
  }
}

void Ledger::release(const DriverAllocation& event) {
  Entries& entries = event.kind == AllocationKind::Virtual ? virtual_
                     : event.kind == AllocationKind::Array ? arrays_
                                                           : by_address_;
  const auto found = entries.find(
      event.kind == AllocationKind::Virtual || event.kind == AllocationKind::Array ? event.handle : event.address);
  if (found == entries.end()) {
    ++unknown_releases_;
    return;
  }
  // The driver may give a place out again, on another thread, before the call that released it has come to its end.
  if (found->second.taken_ticks > event.began_ticks) {
    return;
  }
  if (found->second.holders > 0) {
    --found->second.holders;
  }
  if (found->second.holders == 0 && found->second.mappings == 0) {
    record_in_history(found->second.allocation, false);
    entries.erase(found);
  }
}

void Ledger::map(const DriverAllocation& event) {
  const auto found = virtual_.find(event.handle);
  if (found == virtual_.end()) {
    return;
  }
  mappings_[event.address] = {event.handle, event.ended_ticks};
  if (found->second.mappings++ == 0) {
    found->second.allocation.address = event.address;
    record_in_history(found->second.allocation, true);
  }
}

void Ledger::unmap(const DriverAllocation& event) {
  // One call may unmap neighbours that were mapped one by one.
  auto next = mappings_.lower_bound(event.address);
  while (next != mappings_.end() && next->first - event.address < event.bytes) {
    if (next->second.mapped_ticks > event.began_ticks) {
      ++next;
      continue;
    }
    const auto found = virtual_.find(next->second.handle);
    next = mappings_.erase(next);
    if (found == virtual_.end() || found->second.mappings == 0) {
      continue;
    }
    if (--found->second.mappings == 0) {
      record_in_history(found->second.allocation, false);
      found->second.allocation.address = 0;
      if (found->second.holders == 0) {
        virtual_.erase(found);
      }
    }
  }
}

void Ledger::forget_context(uint64_t context) {
  // Virtual memory is of no context.
  for (Entries* entries : {&by_address_, &arrays_}) {
    std::erase_if(*entries, [context](const auto& entry) {
      const bool gone = entry.second.allocation.context == context;
      if (gone) {
        record_in_history(entry.second.allocation, false);
      }
      return gone;
    });
  }
}

std::vector<Allocation> Ledger::live() {
  const std::lock_guard lock(mutex_);
  std::vector<Allocation> allocations;
  allocations.reserve(by_address_.size() + virtual_.size() + arrays_.size());
  for (const Entries* entries : {&by_address_, &virtual_, &arrays_}) {
    for (const auto& [key, entry] : *entries) {
      allocations.push_back(entry.allocation);
    }
  }
  return allocations;
}

std::vector<Failure> Ledger::failures() {
  const std::lock_guard lock(mutex_);
  return {failures_.begin(), failures_.end()};
}

Ledger::Counts Ledger::counts() {
  const std::lock_guard lock(mutex_);
  return {unknown_releases_, missed_.load()};
}

}  // namespace gpuscope::memory
