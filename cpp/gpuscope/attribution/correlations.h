// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace gpuscope::attribution {

/// Which region launched what: the newest 262,144 correlation ids, and up to two million while they await their
/// records. One thread at a time.
///
/// CUPTI numbers driver calls one after another, so that pages of consecutive ids need no hashing; a page whose turn
/// has come round again is emptied, and ids on it count as unknown.
class Correlations {
 public:
  static constexpr uint32_t kUnknown = 0;           // no such launch was seen
  static constexpr uint32_t kOutside = 0x3FFFFFFF;  // launched outside the recorded window
  static constexpr uint32_t kNowhere = 0x3FFFFFFE;  // launched outside every region
  static constexpr uint32_t kMaxReference = 0x3FFFFFFC;

  /// The record that a call is expected to bring.
  enum class Awaits : uint32_t { Nothing = 0, Kernel = 0x80000000, Copy = 0x40000000, Graph = 0xC0000000 };

  void set(uint32_t correlation, uint32_t value, Awaits awaits) {
    Page& page = page_of(correlation);
    uint32_t& entry = page.entries[correlation & kMask];
    page.waiting += (awaits != Awaits::Nothing ? 1 : 0) - ((entry & kAwaits) != 0 ? 1 : 0);
    entry = value | static_cast<uint32_t>(awaits);
  }
  uint32_t find(uint32_t correlation) const noexcept {
    const uint32_t* entry = entry_of(correlation);
    return entry != nullptr ? *entry & ~kAwaits : kUnknown;
  }
  /// What the call still awaited; nothing from then on.
  Awaits take_awaited(uint32_t correlation) noexcept {
    Page* page = find_page(correlation);
    if (page == nullptr) {
      return Awaits::Nothing;
    }
    uint32_t& entry = page->entries[correlation & kMask];
    const auto awaited = static_cast<Awaits>(entry & kAwaits);
    page->waiting -= awaited != Awaits::Nothing ? 1 : 0;
    entry &= ~kAwaits;
    return awaited;
  }
  /// Replaces every reference by `change(reference)`, which may be store::kNone.
  template <class F>
  void change_references(F&& change) {
    each([&](uint32_t& entry) {
      const uint32_t value = entry & ~kAwaits;
      if (value != kUnknown && value != kOutside && value != kNowhere) {
        entry = encode(change(decode(value))) | (entry & kAwaits);
      }
    });
  }
  /// From now on, what was launched so far is outside the recorded window.
  void end_window() {
    each([](uint32_t& entry) { entry = entry == kUnknown ? kUnknown : kOutside; });
    for (const std::unique_ptr<Page>& page : pages_) {
      if (page != nullptr) {
        page->waiting = 0;
      }
    }
  }
  /// A reference as it is kept here: kUnknown is 0, so that references start at 1.
  static uint32_t encode(uint32_t reference) noexcept { return reference <= kMaxReference ? reference + 1 : kNowhere; }
  static uint32_t decode(uint32_t value) noexcept { return value - 1; }

 private:
  static constexpr uint32_t kAwaits = 0xC0000000;
  static constexpr uint32_t kPageBits = 12;
  static constexpr uint32_t kMask = (1U << kPageBits) - 1;
  static constexpr uint32_t kPages = 512;
  // The pages that stay even when all that they awaited has come: a graph's nodes may follow its first by this much.
  static constexpr uint32_t kLinger = 64;

  struct Page {
    uint32_t number = 0;
    int32_t waiting = 0;  // entries that await a record
    std::array<uint32_t, 1U << kPageBits> entries{};
  };

  template <class F>
  void each(F&& visit) {
    for (const std::unique_ptr<Page>& page : pages_) {
      for (std::size_t at = 0; page != nullptr && at < page->entries.size(); ++at) {
        visit(page->entries[at]);
      }
    }
  }
  Page& page_of(uint32_t correlation) {
    const uint32_t number = correlation >> kPageBits;
    std::unique_ptr<Page>& page = pages_[number % kPages];
    if (page == nullptr || page->number != number) {
      page = std::make_unique<Page>();
      page->number = number;
      std::unique_ptr<Page>& old = pages_[(number - kLinger) % kPages];
      if (old != nullptr && old->number == number - kLinger && old->waiting <= 0) {
        old.reset();
      }
    }
    return *page;
  }
  Page* find_page(uint32_t correlation) const noexcept {
    const uint32_t number = correlation >> kPageBits;
    Page* page = pages_[number % kPages].get();
    return page != nullptr && page->number == number ? page : nullptr;
  }
  const uint32_t* entry_of(uint32_t correlation) const noexcept {
    const Page* page = find_page(correlation);
    return page != nullptr ? &page->entries[correlation & kMask] : nullptr;
  }

  std::array<std::unique_ptr<Page>, kPages> pages_;
};

}  // namespace gpuscope::attribution
