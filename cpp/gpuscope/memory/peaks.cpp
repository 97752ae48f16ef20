// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/peaks.h"

#include <bit>

namespace gpuscope::memory {
namespace {

// The device above, below it the bytes plus one, 0 for no report yet.
constexpr uint32_t kDeviceShift = 48;
constexpr uint64_t kBytes = (uint64_t{1} << kDeviceShift) - 1;

constexpr uint64_t tag(int32_t device) noexcept { return uint64_t{static_cast<uint16_t>(device)} << kDeviceShift; }
constexpr uint64_t bit(uint32_t scope) noexcept { return uint64_t{1} << scope; }

}  // namespace

uint32_t Peaks::open(int32_t device) noexcept {
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  uint32_t scope = 0;
  do {
    scope = static_cast<uint32_t>(std::countr_one(taken));
    if (scope == kNone) {
      return kNone;
    }
  } while (!taken_.compare_exchange_weak(taken, taken | bit(scope), std::memory_order_acquire));
  words_[scope].store(tag(device), std::memory_order_relaxed);
  open_.fetch_or(bit(scope), std::memory_order_release);
  return scope;
}

void Peaks::close(uint32_t scope) noexcept {
  open_.fetch_and(~bit(scope), std::memory_order_relaxed);
  taken_.fetch_and(~bit(scope), std::memory_order_release);
}

std::optional<int64_t> Peaks::highest(uint32_t scope) const noexcept {
  const uint64_t bytes = words_[scope].load(std::memory_order_relaxed) & kBytes;
  return bytes != 0 ? std::optional<int64_t>(static_cast<int64_t>(bytes - 1)) : std::nullopt;
}

void Peaks::report(int32_t device, int64_t allocated) noexcept {
  const uint64_t seen = tag(device) | ((static_cast<uint64_t>(allocated) + 1) & kBytes);
  for (uint64_t open = open_.load(std::memory_order_acquire); open != 0; open &= open - 1) {
    std::atomic<uint64_t>& word = words_[static_cast<uint32_t>(std::countr_zero(open))];
    uint64_t highest = word.load(std::memory_order_relaxed);
    while ((highest & ~kBytes) == tag(device) && highest < seen &&
           !word.compare_exchange_weak(highest, seen, std::memory_order_relaxed)) {
    }
  }
}

void PeakMemory::close() noexcept {
  if (is_open()) {
    last_ = bytes();
    Peaks::process().close(scope_);
    scope_ = Peaks::kNone;
  }
}

}  // namespace gpuscope::memory
