// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/ledger.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/open_regions.h"
#include "gpuscope/base/stacks.h"
#include "gpuscope/memory/history.h"
#include "gpuscope/memory/native_library.h"

namespace gpuscope::memory {

using base::AllocationKind;
using base::AllocationStep;
using base::DriverAllocation;

namespace {

// What has an address is part of the memory history, too, while one is recorded.
void tell(const Piece& piece, bool taken) noexcept {
  if (piece.address != 0 && History::process().recording()) {
    const auto bytes = static_cast<int64_t>(piece.bytes);
    History::process().record({piece.address, taken ? bytes : -bytes, 0, 0, piece.device, Source::Driver});
  }
}

}  // namespace

Ledger& Ledger::process() {
  static Ledger* ledger = [] {
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
  author.thread = static_cast<uint64_t>(syscall(SYS_gettid));
  const base::StackSource source =
      stacks_.load(std::memory_order_relaxed) ? base::stack_source.load(std::memory_order_acquire) : nullptr;
  author.stack = source != nullptr ? source() : 0;
  author.region = base::current_region();
  return author;
}

void Ledger::record(const DriverAllocation& told) noexcept {
  const Author author = told.step == AllocationStep::Taken ? find_author() : Author{};
  try {
    const std::lock_guard lock(mutex_);
    switch (told.step) {
      case AllocationStep::Taken:
        return told.result == 0 ? take(told, author) : refuse(told, author);
      case AllocationStep::Released:
        return release(told);
      case AllocationStep::Mapped:
        return map(told);
      case AllocationStep::Unmapped:
        return unmap(told);
      case AllocationStep::Retained:
        if (const auto found = virtual_.find(told.handle); found != virtual_.end()) {
          ++found->second.holders;
        }
        return;
      case AllocationStep::ContextGone:
        return forget_context(told.context);
    }
  } catch (const std::exception&) {
    missed_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Ledger::take(const DriverAllocation& told, const Author& author) {
  Entry entry;
  entry.piece = {told.address, told.bytes, told.pool, told.context, base::Clock::process().to_ns(told.ended_ticks),
                 told.device,  told.kind,  author};
  entry.taken_ticks = told.ended_ticks;
  // What was there before has been released: its release is yet to be told, or was missed.
  switch (told.kind) {
    case AllocationKind::Virtual:
      virtual_[told.handle] = entry;
      return;
    case AllocationKind::Array:
      arrays_[told.handle] = entry;
      return;
    default:
      by_address_[told.address] = entry;
      tell(entry.piece, true);
  }
}

void Ledger::refuse(const DriverAllocation& told, const Author& author) {
  Failure failure{told.bytes, 0,     base::Clock::process().to_ns(told.ended_ticks), told.device, told.result,
                  told.kind,  author};
  for (const Entries* entries : {&by_address_, &virtual_, &arrays_}) {
    for (const auto& [key, entry] : *entries) {
      failure.live_bytes += entry.piece.device == told.device ? entry.piece.bytes : 0;
    }
  }
  failures_.push_back(failure);
  if (failures_.size() > kFailures) {
    failures_.pop_front();
  }
}

void Ledger::release(const DriverAllocation& told) {
  Entries& entries = told.kind == AllocationKind::Virtual ? virtual_
                     : told.kind == AllocationKind::Array ? arrays_
                                                          : by_address_;
  const auto found = entries.find(
      told.kind == AllocationKind::Virtual || told.kind == AllocationKind::Array ? told.handle : told.address);
  if (found == entries.end()) {
    ++unknown_releases_;
    return;
  }
  // The driver may give a place out again, on another thread, before the call that released it has come to its end.
  if (found->second.taken_ticks > told.began_ticks) {
    return;
  }
  if (found->second.holders > 0) {
    --found->second.holders;
  }
  if (found->second.holders == 0 && found->second.mappings == 0) {
    tell(found->second.piece, false);
    entries.erase(found);
  }
}

void Ledger::map(const DriverAllocation& told) {
  const auto found = virtual_.find(told.handle);
  if (found == virtual_.end()) {
    return;
  }
  mappings_[told.address] = {told.handle, told.ended_ticks};
  if (found->second.mappings++ == 0) {
    found->second.piece.address = told.address;
    tell(found->second.piece, true);
  }
}

void Ledger::unmap(const DriverAllocation& told) {
  // One call may unmap neighbours that were mapped one by one.
  auto next = mappings_.lower_bound(told.address);
  while (next != mappings_.end() && next->first - told.address < told.bytes) {
    if (next->second.mapped_ticks > told.began_ticks) {
      ++next;
      continue;
    }
    const auto found = virtual_.find(next->second.handle);
    next = mappings_.erase(next);
    if (found == virtual_.end() || found->second.mappings == 0) {
      continue;
    }
    if (--found->second.mappings == 0) {
      tell(found->second.piece, false);
      found->second.piece.address = 0;
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
      const bool gone = entry.second.piece.context == context;
      if (gone) {
        tell(entry.second.piece, false);
      }
      return gone;
    });
  }
}

std::vector<Piece> Ledger::live() {
  const std::lock_guard lock(mutex_);
  std::vector<Piece> pieces;
  pieces.reserve(by_address_.size() + virtual_.size() + arrays_.size());
  for (const Entries* entries : {&by_address_, &virtual_, &arrays_}) {
    for (const auto& [key, entry] : *entries) {
      pieces.push_back(entry.piece);
    }
  }
  return pieces;
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
