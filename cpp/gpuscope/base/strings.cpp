// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/strings.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace gpuscope::base {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The length of the valid sequence at the start of `bytes`, 0 if there is none (Unicode standard, table 3-7).
std::size_t sequence_length(std::string_view bytes) noexcept {
  const auto byte = [&](std::size_t at) { return static_cast<uint8_t>(at < bytes.size() ? bytes[at] : 0); };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t length = first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : 4;
  if (first < 0xC2 || first > 0xF4) {
    return 0;
  }
  // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) {
    return 0;
  }
  for (std::size_t at = 2; at < length; ++at) {
    if ((byte(at) & 0xC0) != 0x80) {
      return 0;
    }
  }
  return length;
}

constexpr std::string_view kOperator = "operator";
constexpr std::string_view kCutlass = "<cutlass";
constexpr std::string_view kAnonymous = "(anonymous namespace)";

bool is_word(char character) noexcept {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
         (character >= '0' && character <= '9') || character == '_' || character == '$';
}

/// The position after the bracket that closes the one at `open`, or the end of the text.
std::size_t skip_brackets(std::string_view text, std::size_t open, char opening, char closing) noexcept {
  int depth = 0;
  for (std::size_t at = open; at < text.size(); ++at) {
    if (text[at] == opening) {
      ++depth;
    } else if (text[at] == closing && --depth == 0) {
      return at + 1;
    }
  }
  return text.size();
}

/// The position after the template arguments that begin at `open`. Parentheses inside may contain `>` and `->`.
std::size_t skip_template(std::string_view text, std::size_t open) noexcept {
  int depth = 0;
  for (std::size_t at = open; at < text.size();) {
    if (text[at] == '(') {
      at = skip_brackets(text, at, '(', ')');
      continue;
    }
    if (text[at] == '<') {
      ++depth;
    } else if (text[at] == '>' && --depth == 0) {
      return at + 1;
    }
    ++at;
  }
  return text.size();
}

bool starts_operator(std::string_view text, std::size_t at) noexcept {
  return text.substr(at).starts_with(kOperator) && (at == 0 || !is_word(text[at - 1])) &&
         (at + kOperator.size() == text.size() || !is_word(text[at + kOperator.size()]));
}

/// The position after an operator's name: `operator()`, `operator<<`, `operator bool`.
std::size_t skip_operator(std::string_view text, std::size_t at) noexcept {
  at += kOperator.size();
  if (text.substr(at).starts_with("()")) {
    return at + 2;
  }
  const std::size_t end = text.find_first_of(text.substr(at).starts_with(' ') ? "(" : "( ", at);
  return end == std::string_view::npos ? text.size() : end;
}

/// Whether the template arguments are one CUTLASS name: its wrapper kernel has no other name.
bool is_cutlass_name(std::string_view arguments) noexcept {
  if (!arguments.starts_with(kCutlass) || !arguments.ends_with('>')) {
    return false;
  }
  arguments = arguments.substr(1, arguments.size() - 2);
  return std::all_of(arguments.begin(), arguments.end(), is_word);
}

}  // namespace

uint64_t hash(std::string_view text) noexcept {
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

Digest::Digest(std::string_view text) noexcept {
  const std::size_t words = text.size() / sizeof(uint64_t);
  put(text.data(), words);
  uint64_t rest = 0;
  std::memcpy(&rest, text.data() + words * sizeof(uint64_t), text.size() % sizeof(uint64_t));
  put(rest);
  put(text.size());
}

uint32_t StringTable::intern(std::string_view text) {
  if (texts_.size() * 2 >= slots_.size()) {
    grow();
  }
  const std::size_t slot = slot_of(text);
  if (slots_[slot] != 0 || (text.empty() && !texts_.empty())) {
    return slots_[slot];
  }
  const auto id = static_cast<uint32_t>(texts_.size());
  if (texts_.size() == texts_.capacity()) {
    texts_.reserve(std::max<std::size_t>(16, texts_.size() * 2));
  }
  char* copy = room_for(text.size());
  std::copy(text.begin(), text.end(), copy);
  texts_.emplace_back(copy, text.size());
  slots_[slot] = id;  // the empty string has id 0, like a free slot, and needs no slot
  text_bytes_ += text.size();
  return id;
}

uint32_t StringTable::find(std::string_view text) const noexcept {
  const uint32_t id = text.empty() ? 0 : slots_[slot_of(text)];
  return id != 0 || text.empty() ? id : UINT32_MAX;
}

std::size_t StringTable::slot_of(std::string_view text) const noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash(text) & mask;
  while (slots_[slot] != 0 && texts_[slots_[slot]] != text) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

char* StringTable::room_for(std::size_t bytes) {
  constexpr std::size_t kFirst = 1024;
  constexpr std::size_t kMost = std::size_t{1} << 20;
  if (blocks_.empty() || blocks_.back().capacity() - blocks_.back().size() < bytes) {
    Vector<char> block;
    block.reserve(std::max(bytes, blocks_.empty() ? kFirst : std::min(kMost, blocks_.back().capacity() * 2)));
    blocks_.push_back(std::move(block));
  }
  Vector<char>& block = blocks_.back();
  block.resize(block.size() + bytes);
  return block.data() + block.size() - bytes;
}

void StringTable::grow() {
  Vector<uint32_t> larger(std::max<std::size_t>(64, slots_.size() * 2));
  larger.swap(slots_);
  for (uint32_t id = 1; id < texts_.size(); ++id) {
    slots_[slot_of(texts_[id])] = id;
  }
}

Names& Names::process() {
  static auto* names = new Names;  // leaked: logs are read until process exit
  return *names;
}

uint32_t Names::intern(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (kept_.size() < kMax - 1) {
    return kept_.intern(name);
  }
  const uint32_t known = kept_.find(name);
  return known != UINT32_MAX ? known : kept_.intern(kMore);
}

uint32_t Names::intern_for_period(std::string_view name) {
  if (name.empty()) {
    return 0;
  }
  const std::lock_guard lock(mutex_);
  StringTable& names = newer_.names;
  uint32_t index = 0;
  if (names.size() < kMax - 1 && names.bytes() < room_) {
    index = names.intern(name);
    if (reader_ != nullptr && names.bytes() > room_ / 2 && !std::exchange(woken_, true)) {
      reader_->release();
    }
  } else {
    const uint32_t known = names.find(name);
    index = known != UINT32_MAX ? known : names.intern(kMore);
  }
  return newer_.tag << kIndexBits | index;
}

std::string Names::text(uint32_t id) {
  const std::lock_guard lock(mutex_);
  const uint32_t period = period_of(id);
  const StringTable* names = period == 0            ? &kept_
                             : period == newer_.tag ? &newer_.names
                             : period == older_.tag ? &older_.names
                                                    : nullptr;
  return std::string(names != nullptr ? (*names)[index_of(id)] : kMore);
}

void Names::begin_period() {
  StringTable names;
  const std::lock_guard lock(mutex_);
  older_ = std::exchange(newer_, {newer_.tag % kPeriods + 1, std::move(names)});
  woken_ = false;
  empty_caches();
}

void Names::set_room(std::size_t bytes, std::counting_semaphore<>* reader) {
  const std::lock_guard lock(mutex_);
  room_ = bytes;
  reader_ = reader;
}

bool Names::fill(double share) {
  const std::lock_guard lock(mutex_);
  const StringTable& names = newer_.names;
  return static_cast<double>(names.bytes()) > share * static_cast<double>(room_) ||
         static_cast<double>(names.size()) > share * kMax;
}

std::size_t Names::bytes() {
  const std::lock_guard lock(mutex_);
  return newer_.names.bytes() + older_.names.bytes();
}

void Names::forget() {
  begin_period();
  begin_period();
}

uint32_t NameCache::id_of(std::string_view text) noexcept {
  const Digest digest(text);
  const Entry& entry = entries_[digest.place() & (entries_.size() - 1)];
  const uint32_t period = Names::period();
  if (entry.period == period && entry.text == digest) [[likely]] {
    return entry.id;
  }
  uint32_t id = 0;
  try {
    id = Names::process().intern_for_period(text);
    keep(digest, id, period);
  } catch (...) {  // out of memory: the next use asks again
  }
  return id;
}

void NameCache::keep(const Digest& text, uint32_t id, uint32_t period) {
  if (entries_[text.place() & (entries_.size() - 1)].period == period && size_.grows(entries_.size())) {
    std::vector<Entry> larger(entries_.size() * 2);
    for (const Entry& entry : entries_) {
      if (entry.period == period) {
        larger[entry.text.place() & (larger.size() - 1)] = entry;  // distinct slots stay distinct
      }
    }
    entries_ = std::move(larger);
  }
  entries_[text.place() & (entries_.size() - 1)] = {text, id, period};
}

void IdCache::keep(const Digest& key, const Ids& ids, uint32_t period) noexcept {
  if (place_of(key).entries[1].period == period && size_.grows(2 * places_.size())) {
    try {
      grow(period);
    } catch (const std::bad_alloc&) {  // keeps its size
    }
  }
  Place& place = place_of(key);
  place.entries[1] = std::exchange(place.entries[0], {key, ids, period});
}

void IdCache::grow(uint32_t period) {
  std::vector<Place> larger(places_.size() * 2);
  larger.swap(places_);
  for (const Place& place : larger) {
    for (const Entry& entry : place.entries) {
      if (entry.period == period) {
        auto& entries = place_of(entry.key).entries;
        entries[entries[0].period == 0 ? 0 : 1] = entry;  // at most two entries per new place
      }
    }
  }
}

void append_utf8(std::string& text, uint32_t code_point) {
  if ((code_point >= 0xD800 && code_point < 0xE000) || code_point > 0x10FFFF) {
    code_point = 0xFFFD;
  }
  const auto tail = [&](unsigned shift) { text += static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    text += static_cast<char>(0xC0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    text += static_cast<char>(0xE0 | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string to_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t length = sequence_length(bytes);
    text += length == 0 ? kReplacement : bytes.substr(0, length);
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return text;
}

std::string demangle(std::string_view symbol) {
  std::string text(symbol);
  if (!symbol.starts_with("_Z")) {
    return text;
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status),
                                                          &std::free);
  return status == 0 ? std::string(plain.get()) : text;
}

std::string short_name(std::string_view demangled) {
  if (demangled.find_first_of("<(") == std::string_view::npos) {
    return std::string(demangled);
  }
  std::string kept;
  std::size_t name_start = 0;  // in `kept`; the return type precedes it
  for (std::size_t at = 0; at < demangled.size();) {
    std::size_t next = at + 1;
    if (starts_operator(demangled, at)) {
      next = skip_operator(demangled, at);
      kept += demangled.substr(at, next - at);
    } else if (demangled[at] == '<') {
      next = skip_template(demangled, at);
      if (const std::string_view arguments = demangled.substr(at, next - at); is_cutlass_name(arguments)) {
        kept += arguments;
      }
    } else if (demangled.substr(at).starts_with(kAnonymous)) {
      next = at + kAnonymous.size();
      kept += kAnonymous;
    } else if (demangled[at] == '{') {  // {lambda(int)#1}
      next = skip_brackets(demangled, at, '{', '}');
      kept += demangled.substr(at, next - at);
    } else if (demangled[at] == '(' && kept.ends_with("decltype ")) {
      next = skip_brackets(demangled, at, '(', ')');
    } else if (demangled[at] == '(') {
      break;
    } else {
      kept += demangled[at];
      if (demangled[at] == ' ') {
        name_start = kept.size();
      }
    }
    at = next;
  }
  kept.erase(0, name_start);
  return kept.empty() ? std::string(demangled) : kept;
}

}  // namespace gpuscope::base
