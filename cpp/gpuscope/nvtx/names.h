// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpuscope/base/flat_map.h"

namespace gpuscope::nvtx {

/// The enumerator's value is the size of a character.
enum class Encoding : uint8_t { Utf8 = 1, Utf16 = 2, Utf32 = 4 };

/// Longer texts are cut.
inline constexpr std::size_t kLongestText = 4096;  // bytes

/// The characters of `text` up to its end, or up to the length limit.
std::string_view bytes_of(const char* text) noexcept;
std::string_view bytes_of(const wchar_t* text) noexcept;

/// base::Names ids of texts, for one thread. No lock and no allocation for recently used texts.
class TextCache {
 public:
  /// `bytes`: whole characters. Invalid ones become U+FFFD.
  uint32_t id_of(std::string_view bytes, Encoding encoding = Encoding::Utf8) noexcept;

 private:
  struct Entry {
    std::string bytes;
    uint64_t hash = 0;
    uint32_t id = 0;
    uint32_t period = 0;  // of base::Names, in which `id` is valid
    Encoding encoding = Encoding::Utf8;
  };
  std::array<Entry, 1024> entries_;
};

/// Interns without a cache: takes a lock. Permanent ids, or ids of base::Names' current period.
uint32_t intern(std::string_view bytes, Encoding encoding = Encoding::Utf8) noexcept;
uint32_t intern_for_period(std::string_view bytes, Encoding encoding = Encoding::Utf8) noexcept;
/// The id of "(no name)", for missing texts.
uint32_t no_name() noexcept;

/// A number for a text, valid until the end of the process, never 0.
uint64_t register_text(std::string_view bytes, Encoding encoding) noexcept;
/// The id of its text. The id of "(no name)" for invalid numbers.
uint32_t registered_text(uint64_t number) noexcept;

/// A map of fixed size without removal. Any thread reads and writes without a lock, so a fork during a write leaves no
/// lock. Keys and values are not 0. 0 means an unknown key.
template <std::size_t kSlots>
class PublishedMap {
 public:
  uint64_t find(uint64_t key) const noexcept {
    for (std::size_t step = 0; step < kMaxSteps; ++step) {
      const Slot& slot = slots_[(base::mix(key) + step) % kSlots];
      const uint64_t held = slot.key.load(std::memory_order_acquire);
      if (held == key || held == 0) {
        return held == 0 ? 0 : slot.value.load(std::memory_order_acquire);
      }
    }
    return 0;
  }
  /// False if the slots near the key are full.
  bool set(uint64_t key, uint64_t value) noexcept {
    for (std::size_t step = 0; step < kMaxSteps; ++step) {
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
  static constexpr std::size_t kMaxSteps = 64;
  struct Slot {
    std::atomic<uint64_t> key{0};
    std::atomic<uint64_t> value{0};
  };
  std::array<Slot, kSlots> slots_{};
};

/// The number of a domain. Domains with equal names are one domain.
using Domain = uint32_t;
inline constexpr Domain kDefaultDomain = 0;

/// The domain with that base::Names id. The default domain if there are too many.
Domain domain_of(uint32_t name) noexcept;
/// Its name as a base::Names id. 0 for the default domain and for invalid numbers.
uint32_t domain_name(Domain domain) noexcept;

/// Sets the name of a domain's category, as a base::Names id.
void name_category(Domain domain, uint32_t category, uint32_t name) noexcept;
/// 0 for a category without a name.
uint32_t category_name(Domain domain, uint32_t category) noexcept;

/// Sets the name of a system thread, as a base::Names id.
void name_thread(uint32_t system_id, uint32_t name) noexcept;
/// 0 for a thread without a name.
uint32_t thread_name(uint64_t system_id) noexcept;

}  // namespace gpuscope::nvtx
