// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gpuscope/base/flat_map.h"

namespace gpuscope::nvtx {

/// A map of fixed size without removal that any thread may read and write at any moment, without a lock: a fork in the
/// midst of a write leaves nothing held. Keys and values are not 0; 0 stands for an unknown key.
template <std::size_t kSlots>
class PublishedMap {
 public:
  uint64_t find(uint64_t key) const noexcept {
    for (std::size_t step = 0; step < kMostSteps; ++step) {
      const Slot& slot = slots_[(base::mix(key) + step) % kSlots];
      const uint64_t held = slot.key.load(std::memory_order_acquire);
      if (held == key || held == 0) {
        return held == 0 ? 0 : slot.value.load(std::memory_order_acquire);
      }
    }
    return 0;
  }
  /// A full neighbourhood keeps nothing more: false.
  bool set(uint64_t key, uint64_t value) noexcept {
    for (std::size_t step = 0; step < kMostSteps; ++step) {
      Slot& slot = slots_[(base::mix(key) + step) % kSlots];
      uint64_t held = 0;
      if (slot.key.compare_exchange_strong(held, key, std::memory_order_acq_rel) || held == key) {
        slot.value.store(value, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

 private:
  static constexpr std::size_t kMostSteps = 64;
  struct Slot {
    std::atomic<uint64_t> key{0};
    std::atomic<uint64_t> value{0};
  };
  std::array<Slot, kSlots> slots_{};
};

}  // namespace gpuscope::nvtx
