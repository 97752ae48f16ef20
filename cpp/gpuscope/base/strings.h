// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <semaphore>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/pages.h"

namespace gpuscope::base {

/// A hash of a text's bytes, for in-memory tables.
uint64_t hash(std::string_view text) noexcept;

/// A 128-bit digest of a text, or of added words. Collisions are negligible (2^-128), so users keep neither the text
/// nor the words.
class Digest {
 public:
  Digest() noexcept = default;
  explicit Digest(std::string_view text) noexcept;

  void put(uint64_t word) noexcept {
    first_ = (first_ ^ word) * kFirst;
    first_ ^= first_ >> 32;
    second_ = (std::rotl(second_, 23) ^ word) * kSecond;
  }
  void put(const char* words, std::size_t count) noexcept {
    for (const char* end = words + count * sizeof(uint64_t); words != end; words += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, words, sizeof(word));
      put(word);
    }
  }
  /// The start of the search, for a table of any size.
  std::size_t place() const noexcept { return static_cast<std::size_t>(first_ ^ second_ >> 29); }
  auto operator<=>(const Digest&) const noexcept = default;

 private:
  static constexpr uint64_t kFirst = 0x9E3779B97F4A7C15ULL;   // 2^64 / golden ratio
  static constexpr uint64_t kSecond = 0xC2B2AE3D27D4EB4FULL;  // a prime of XXH64
  uint64_t first_ = 0;
  uint64_t second_ = 0;
};

/// Strings with dense ids, in order of first use. Id 0 is the empty string. One thread at a time.
class StringTable {
 public:
  StringTable() { intern(""); }
  StringTable(StringTable&&) noexcept = default;
  StringTable& operator=(StringTable&&) noexcept = default;

  /// Texts never move. Throws std::bad_alloc without a change.
  uint32_t intern(std::string_view text);
  /// The text's id, or UINT32_MAX.
  uint32_t find(std::string_view text) const noexcept;
  /// Unknown ids, as in a damaged file, give the empty string.
  std::string_view operator[](uint32_t id) const noexcept {
    return id < texts_.size() ? texts_[id] : std::string_view{};
  }
  uint32_t size() const noexcept { return static_cast<uint32_t>(texts_.size()); }
  /// The size of the strings and their index, in bytes.
  std::size_t bytes() const noexcept { return text_bytes_ + (texts_.size() - 1) * kEntryBytes; }

 private:
  template <class T>
  using Vector = std::vector<T, BlockAllocator<T>>;
  static constexpr std::size_t kEntryBytes = sizeof(std::string_view) + 2 * sizeof(uint32_t);

  std::size_t slot_of(std::string_view text) const noexcept;
  char* room_for(std::size_t bytes);
  void grow();

  std::vector<Vector<char>> blocks_;  // each filled up to its size
  Vector<std::string_view> texts_;
  Vector<uint32_t> slots_;  // open addressing, a power of two, at most half full. Ids, 0 for an empty slot
  std::size_t text_bytes_ = 0;
};

/// Ids for region names and other texts in the event logs. Any thread. Hot paths cache ids.
///
/// Programs that generate names would fill the memory. Ids of such names belong to a period, which ends when enough
/// names have come. They are valid in that period and the next: by then the logs that contain them are read. A cache
/// stores the period of an id and asks again in another period. All other ids are permanent.
class Names {
 public:
  static Names& process();

  /// A permanent id. Names beyond the first 2^20 share one id.
  uint32_t intern(std::string_view name);
  /// An id of this period. Names beyond the first 2^20 of the period, or beyond its room, share one id.
  uint32_t intern_for_period(std::string_view name);
  /// The name of an id. kMore if the id has expired.
  std::string text(uint32_t id);
  static constexpr std::string_view kMore = "(more names)";

  /// The number of the period. Must be read before an id of it is requested.
  static uint32_t period() noexcept { return period_.load(std::memory_order_relaxed); }
  void begin_period();
  /// Makes caches ask again. Their existing ids stay valid.
  static void empty_caches() noexcept { period_.fetch_add(1, std::memory_order_relaxed); }
  /// The period of an id, 0 for permanent ids, and its index, from 0.
  static constexpr uint32_t period_of(uint32_t id) noexcept { return id >> kIndexBits; }
  static constexpr uint32_t index_of(uint32_t id) noexcept { return id & (kMax - 1); }

  /// The room for the names of one period, in bytes. At half of it `reader`, the log reader, is released.
  void set_room(std::size_t bytes, std::counting_semaphore<>* reader = nullptr);
  /// Whether this period's names use more than that share of their room.
  bool fill(double share);
  /// The size of the names of periods, in bytes.
  std::size_t bytes();
  /// Drops the names of periods. No log may be read afterwards.
  void forget();

  // For a fork, so that the child inherits no locked mutex.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr uint32_t kIndexBits = 20;
  static constexpr uint32_t kMax = 1U << kIndexBits;
  static constexpr uint32_t kPeriods = (1U << (32 - kIndexBits)) - 2;  // 0 is none, and no id is UINT32_MAX

  struct Period {
    uint32_t tag = 0;
    StringTable names;
  };

  static inline std::atomic<uint32_t> period_{1};
  std::mutex mutex_;
  StringTable kept_;
  Period newer_{1, {}};
  Period older_;
  std::size_t room_ = SIZE_MAX;
  std::counting_semaphore<>* reader_ = nullptr;
  bool woken_ = false;  // whether the reader was released in this period
};

/// The size limit of a thread's cache. It doubles while reused entries do not fit. Compiled models use thousands of
/// texts and shapes per step, in turns: a cache of half that size would find few of them.
class CacheSize {
 public:
  static constexpr std::size_t kMost = 16384;
  /// Whether to double, after an entry that was in use was evicted.
  bool grows(std::size_t size) noexcept {
    if (size >= kMost || ++lost_ < size / 4) {
      return false;
    }
    lost_ = 0;
    return true;
  }

 private:
  std::size_t lost_ = 0;
};

/// The Names ids of a thread's texts, found without a lock. One thread at a time.
class NameCache {
 public:
  /// The Names id of a text. 0 if memory ran out.
  uint32_t id_of(std::string_view text) noexcept;

 private:
  // Found by digest, without the text: a lookup reads one cache line.
  struct alignas(32) Entry {
    Digest text;
    uint32_t id = 0;
    uint32_t period = 0;  // 0 for none
  };
  void keep(const Digest& text, uint32_t id, uint32_t period);

  std::vector<Entry> entries_ = std::vector<Entry>(1024);  // a power of two
  CacheSize size_;
};

/// The Names ids of texts that a thread makes repeatedly from the same words. The key is the digest of the words. One
/// thread at a time.
class IdCache {
 public:
  using Ids = std::array<uint32_t, 3>;

  /// The ids that `make()` returned for that key, or returns now.
  template <class F>
  Ids ids_of(const Digest& key, F&& make) noexcept {
    const uint32_t period = Names::period();
    for (const Entry& entry : place_of(key).entries) {
      if (entry.period == period && entry.key == key) [[likely]] {
        return entry.ids;
      }
    }
    const Ids ids = make();
    keep(key, ids, period);
    return ids;
  }

 private:
  struct Entry {
    Digest key;
    Ids ids{};
    uint32_t period = 0;  // 0 for none
  };
  // One cache line.
  struct alignas(64) Place {
    std::array<Entry, 2> entries;  // the newer in front
  };
  Place& place_of(const Digest& key) noexcept { return places_[key.place() & (places_.size() - 1)]; }
  void keep(const Digest& key, const Ids& ids, uint32_t period) noexcept;
  void grow(uint32_t period);

  std::vector<Place> places_ = std::vector<Place>(1024);  // a power of two
  CacheSize size_;
};

/// Appends a code point. U+FFFD for surrogates and values above U+10FFFF.
void append_utf8(std::string& text, uint32_t code_point);

/// The text with U+FFFD for each byte that is not part of valid UTF-8: the system truncates thread names by bytes.
std::string to_utf8(std::string_view bytes);

/// A symbol as in its source. Names that are not mangled C++ are unchanged. Any thread.
std::string demangle(std::string_view symbol);

/// A demangled name without return type, template arguments and parameters: `at::native::reduce_kernel`.
///
/// Namespaces stay, as they distinguish libraries. Names that are not C++ (Triton's, XLA's) are unchanged. CUTLASS's
/// `cutlass::Kernel2<cutlass_80_...>` keeps its argument, which is its only distinction.
std::string short_name(std::string_view demangled);

}  // namespace gpuscope::base
