// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace gpuscope::base {

/// Of the bytes of a text, for hash tables in memory.
uint64_t hash(std::string_view text) noexcept;

/// Strings as dense ids, in order of first sight; id 0 is the empty string. One thread at a time.
class StringTable {
 public:
  StringTable() { intern(""); }
  StringTable(const StringTable&) = delete;
  StringTable& operator=(const StringTable&) = delete;

  uint32_t intern(std::string_view text);
  /// The text's id, or UINT32_MAX.
  uint32_t find(std::string_view text) const noexcept {
    const auto found = ids_.find(text);
    return found != ids_.end() ? found->second : UINT32_MAX;
  }
  /// Unknown ids, as a damaged file may hold, read as the empty string.
  std::string_view operator[](uint32_t id) const noexcept {
    return id < texts_.size() ? texts_[id] : std::string_view{};
  }
  uint32_t size() const noexcept { return static_cast<uint32_t>(texts_.size()); }

 private:
  std::deque<std::string> texts_;  // a deque: growth never moves a string that ids_ points into
  std::unordered_map<std::string_view, uint32_t> ids_;
};

/// The region names of the process, as ids that the event logs carry. Any thread; never on a hot path, which caches
/// ids.
class Names {
 public:
  static Names& process();

  /// Names beyond the first 2^20 share one id.
  uint32_t intern(std::string_view name);
  /// The text of an id, as a view that is valid until the process ends.
  std::string_view text(uint32_t id);

  // Around a fork, so that the child does not inherit a lock that nobody will release.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr uint32_t kMax = 1U << 20;  // a program that makes up names for ever must not fill the memory
  std::mutex mutex_;
  StringTable table_;
};

/// The Names ids of the texts that a thread uses, found without a lock. One thread at a time.
class NameCache {
 public:
  /// The Names id of a text; 0 when memory ran out.
  uint32_t id_of(std::string_view text) noexcept;

 private:
  struct Entry {
    std::string_view text;  // the process's own copy
    uint32_t id = 0;        // of the empty text
  };
  std::array<Entry, 1024> entries_{};
};

/// The Names ids of texts that a thread makes from the same words again and again, found by these words, its key. One
/// thread at a time.
class IdCache {
 public:
  using Ids = std::array<uint32_t, 3>;

  /// The ids that `make()` returned for that key, or returns now. An empty key is not kept.
  template <class F>
  Ids ids_of(std::string_view key, F&& make) noexcept {
    // Two places a key, the one of the newer in front.
    const std::size_t place = hash(key) % entries_.size();
    for (const std::size_t at : {place, place ^ 1}) {
      if (entries_[at].key == key && !key.empty()) [[likely]] {
        return entries_[at].ids;
      }
    }
    const Ids ids = make();
    keep(place, key, ids);
    return ids;
  }

 private:
  struct Entry {
    std::string key;
    Ids ids{};
  };
  void keep(std::size_t place, std::string_view key, const Ids& ids) noexcept;

  std::array<Entry, 2048> entries_{};
};

/// Appends a code point; U+FFFD for surrogates and for what lies above U+10FFFF.
void append_utf8(std::string& text, uint32_t code_point);

/// The text with U+FFFD for every byte that is not part of valid UTF-8: the system cuts thread names within a letter.
std::string to_utf8(std::string_view bytes);

/// A symbol as its source spells it; anything that is not a mangled C++ name comes back as it is. Any thread.
std::string demangle(std::string_view symbol);

/// A demangled name without return type, template arguments and parameters: `at::native::reduce_kernel`.
///
/// Namespaces are kept, as they distinguish libraries. Names that are not C++ (Triton's, XLA's) come back as they are,
/// and CUTLASS's `cutlass::Kernel2<cutlass_80_...>` keeps its argument, which says all there is to say.
std::string short_name(std::string_view demangled);

}  // namespace gpuscope::base
