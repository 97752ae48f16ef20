// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "gpuscope/base/names.h"

namespace gpuscope::base {

/// The ids of the names that a thread uses, found by their text without a lock. One thread at a time.
class NameCache {
 public:
  /// The Names id of a text; 0 when memory ran out.
  uint32_t id_of(std::string_view text) noexcept {
    Entry& entry = entries_[hash(text) % entries_.size()];
    if (entry.text != text) [[unlikely]] {
      try {
        entry.id = Names::process().intern(text);
        entry.text = Names::process().view(entry.id);
        if (entry.text != text) {  // it is one of the names too many: it shares an id, not a text
          return entry.id;
        }
      } catch (...) {
        entry = {};
        return 0;
      }
    }
    return entry.id;
  }

 private:
  struct Entry {
    std::string_view text;  // the process's own copy, which stays where it is
    uint32_t id = 0;        // of the empty text
  };

  static uint64_t hash(std::string_view text) noexcept {
    constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
    uint64_t value = text.size();
    const char* at = text.data();
    std::size_t left = text.size();
    for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, at, sizeof(word));
      value = (value ^ word) * kFactor;
      value ^= value >> 32;
    }
    uint64_t word = 0;
    std::memcpy(&word, at, left);
    value = (value ^ word) * kFactor;
    return value ^ (value >> 32);
  }

  std::array<Entry, 1024> entries_{};
};

}  // namespace gpuscope::base
