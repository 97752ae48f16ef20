// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpuscope/base/pages.h"

namespace gpuscope::base {

/// Mixes the bits of a key (the finalizer of SplitMix64, Steele et al. 2014).
constexpr uint64_t mix(uint64_t key) noexcept {
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ULL;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EBULL;
  return key ^ (key >> 31);
}

/// Open-addressing map with 64-bit keys, without removal. One thread at a time.
template <class Value>
class FlatMap {
 public:
  FlatMap() : slots_(kFirst) {}

  Value* find(uint64_t key) noexcept {
    Slot& slot = slot_of(key);
    return slot.used ? &slot.value : nullptr;
  }
  /// The value of `key`. New keys get `make()`.
  template <class F>
  Value& find_or_make(uint64_t key, F&& make) {
    Slot* slot = &slot_of(key);
    if (!slot->used) {
      if ((size_ + 1) * 4 > slots_.size() * 3) {
        grow();
        slot = &slot_of(key);
      }
      *slot = {key, make(), true};
      ++size_;
    }
    return slot->value;
  }
  void set(uint64_t key, Value value) {
    find_or_make(key, [&] { return value; }) = value;
  }
  /// Calls `visit(key, value&)` for each entry, in no order.
  template <class F>
  void each(F&& visit) {
    for (Slot& slot : slots_) {
      if (slot.used) {
        visit(slot.key, slot.value);
      }
    }
  }
  std::size_t size() const noexcept { return size_; }
  void clear() {
    Slots(kFirst).swap(slots_);
    shift_ = kFirstShift;
    size_ = 0;
  }
  /// The size of the entries, in bytes.
  std::size_t bytes() const noexcept { return size_ * sizeof(Slot); }

 private:
  static constexpr std::size_t kFirst = 64;
  static constexpr int kFirstShift = 58;
  struct Slot {
    uint64_t key = 0;
    Value value{};
    bool used = false;
  };
  using Slots = std::vector<Slot, BlockAllocator<Slot>>;

  Slot& slot_of(uint64_t key) noexcept {
    std::size_t at = (key * 0x9E3779B97F4A7C15ULL) >> shift_;  // 2^64 / golden ratio
    while (slots_[at].used && slots_[at].key != key) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return slots_[at];
  }
  void grow() {
    Slots old(slots_.size() * 2);
    old.swap(slots_);
    --shift_;
    for (Slot& slot : old) {
      if (slot.used) {
        slot_of(slot.key) = slot;
      }
    }
  }

  Slots slots_;
  int shift_ = kFirstShift;  // from hash to slot
  std::size_t size_ = 0;
};

}  // namespace gpuscope::base
