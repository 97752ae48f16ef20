// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvtx/names.h"

#include <array>
#include <atomic>
#include <cstring>
#include <cwchar>

#include "gpuscope/base/strings.h"

namespace gpuscope::nvtx {
namespace {

static_assert(sizeof(wchar_t) == static_cast<std::size_t>(Encoding::Utf32));
std::atomic<uint32_t> highest_registered{0};

template <class Unit>
std::string from_units(std::string_view bytes) {
  std::string text;
  const auto unit = [&](std::size_t at) -> uint32_t {
    Unit value{};
    std::memcpy(&value, bytes.data() + at * sizeof(Unit), sizeof(Unit));
    return value;
  };
  const std::size_t count = bytes.size() / sizeof(Unit);
  for (std::size_t at = 0; at < count; ++at) {
    uint32_t point = unit(at);
    if (sizeof(Unit) == 2 && point >= 0xD800 && point < 0xDC00 && at + 1 < count && (unit(at + 1) & 0xFC00) == 0xDC00) {
      point = 0x10000 + ((point & 0x3FF) << 10) + (unit(++at) & 0x3FF);
    }
    base::append_utf8(text, point);
  }
  return text;
}

std::string decoded(std::string_view bytes, Encoding encoding) {
  switch (encoding) {
    case Encoding::Utf16:
      return from_units<uint16_t>(bytes);
    case Encoding::Utf32:
      return from_units<uint32_t>(bytes);
    default:
      return base::to_utf8(bytes);
  }
}

constexpr Domain kMaxDomains = 1024;
constinit std::array<std::atomic<uint32_t>, kMaxDomains> names{};  // by domain; 0 is free
constinit PublishedMap<4096> categories;
constinit PublishedMap<4096> threads;

// Both parts are shifted by one, as no key may be 0.
constexpr uint64_t category_key(Domain domain, uint32_t category) noexcept {
  return (static_cast<uint64_t>(domain) + 1) << 32 | category;
}
constexpr uint64_t thread_key(uint64_t system_id) noexcept { return system_id + 1; }

}  // namespace

std::string_view bytes_of(const char* text) noexcept { return {text, strnlen(text, kLongestText)}; }

std::string_view bytes_of(const wchar_t* text) noexcept {
  return {reinterpret_cast<const char*>(text), wcsnlen(text, kLongestText / sizeof(wchar_t)) * sizeof(wchar_t)};
}

uint32_t intern(std::string_view bytes, Encoding encoding) noexcept {
  try {
    return base::Names::process().intern(decoded(bytes.substr(0, kLongestText), encoding));
  } catch (...) {  // out of memory
    return 0;
  }
}

uint32_t intern_for_period(std::string_view bytes, Encoding encoding) noexcept {
  try {
    return base::Names::process().intern_for_period(decoded(bytes.substr(0, kLongestText), encoding));
  } catch (...) {  // out of memory
    return 0;
  }
}

uint32_t no_name() noexcept {
  static const uint32_t id = intern("(no name)");
  return id;
}

uint64_t register_text(std::string_view bytes, Encoding encoding) noexcept {
  const uint32_t id = intern(bytes, encoding);
  uint32_t highest = highest_registered.load(std::memory_order_relaxed);
  while (highest < id && !highest_registered.compare_exchange_weak(highest, id, std::memory_order_relaxed)) {
  }
  return uint64_t{id} + 1;
}

uint32_t registered_text(uint64_t number) noexcept {
  const bool known = number != 0 && number <= uint64_t{highest_registered.load(std::memory_order_relaxed)} + 1;
  return known ? static_cast<uint32_t>(number - 1) : no_name();
}

uint32_t TextCache::id_of(std::string_view bytes, Encoding encoding) noexcept {
  const uint64_t hash = base::hash(bytes) ^ static_cast<uint64_t>(encoding);
  Entry& entry = entries_[hash % entries_.size()];
  const uint32_t period = base::Names::period();
  if (entry.period != period || entry.hash != hash || entry.encoding != encoding || entry.bytes != bytes) [[unlikely]] {
    const uint32_t id = intern_for_period(bytes, encoding);
    try {
      entry.bytes = bytes;
    } catch (...) {
      entry.period = 0;
      return id;
    }
    entry.hash = hash;
    entry.id = id;
    entry.encoding = encoding;
    entry.period = period;
  }
  return entry.id;
}

Domain domain_of(uint32_t name) noexcept {
  for (Domain domain = kDefaultDomain + 1; name != 0 && domain < kMaxDomains; ++domain) {
    uint32_t held = 0;
    if (names[domain].compare_exchange_strong(held, name) || held == name) {
      return domain;
    }
  }
  return kDefaultDomain;
}

uint32_t domain_name(Domain domain) noexcept {
  return domain < kMaxDomains ? names[domain].load(std::memory_order_relaxed) : 0;
}

void name_category(Domain domain, uint32_t category, uint32_t name) noexcept {
  categories.set(category_key(domain, category), name);
}

uint32_t category_name(Domain domain, uint32_t category) noexcept {
  return static_cast<uint32_t>(categories.find(category_key(domain, category)));
}

void name_thread(uint32_t system_id, uint32_t name) noexcept { threads.set(thread_key(system_id), name); }

uint32_t thread_name(uint64_t system_id) noexcept { return static_cast<uint32_t>(threads.find(thread_key(system_id))); }

}  // namespace gpuscope::nvtx
