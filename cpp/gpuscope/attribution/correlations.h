// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/schema.h"

namespace gpuscope::attribution {

/// Maps launches to regions: the newest 262,144 correlation ids, and up to two million that still await records. One
/// thread at a time.
///
/// CUPTI numbers driver calls consecutively, so pages of ids need no hashing. A page reused for later ids is cleared.
/// The earlier ids are then unknown.
class Correlations {
 public:
  static constexpr uint32_t kUnknown = 0;           // no such launch was logged
  static constexpr uint32_t kOutside = 0x3FFFFFFF;  // launched outside the recorded window
  static constexpr uint32_t kNowhere = 0x3FFFFFFE;  // launched outside every region
  static constexpr uint32_t kMaxReference = 0x3FFFFFFC;

  /// The kind of record that a call is expected to produce.
  enum class Awaits : uint32_t { Nothing = 0, Kernel = 0x80000000, Copy = 0x40000000, Graph = 0xC0000000 };

  void set(uint32_t correlation, uint32_t value, Awaits awaits) {
    Page& page = page_of(correlation);
    uint32_t& entry = page.entries[correlation & kMask];
    page.waiting += (awaits != Awaits::Nothing ? 1 : 0) - ((entry & kAwaits) != 0 ? 1 : 0);
    --count(entry);
    entry = value | static_cast<uint32_t>(awaits);
    ++count(entry);
  }
  /// The number of calls of this window that await such a record.
  uint32_t awaited(Awaits what) const noexcept { return counts_[static_cast<uint32_t>(what) >> kAwaitsShift]; }
  uint32_t find(uint32_t correlation) const noexcept {
    const Page* page = find_page(correlation);
    return page != nullptr ? page->entries[correlation & kMask] & ~kAwaits : kUnknown;
  }
  struct Taken {
    uint32_t value;
    Awaits awaited;
  };
  /// The value, and the record that the call still awaited. The call awaits nothing afterwards.
  Taken take(uint32_t correlation) noexcept {
    Page* page = find_page(correlation);
    if (page == nullptr) {
      return {kUnknown, Awaits::Nothing};
    }
    uint32_t& entry = page->entries[correlation & kMask];
    const auto awaited = static_cast<Awaits>(entry & kAwaits);
    page->waiting -= awaited != Awaits::Nothing ? 1 : 0;
    --count(entry);
    entry &= ~kAwaits;
    ++count(entry);
    return {entry, awaited};
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
  /// Marks all launches so far as outside the recorded window.
  void end_window() {
    each([](uint32_t& entry) { entry = entry == kUnknown ? kUnknown : kOutside; });
    for (const std::unique_ptr<Page>& page : pages_) {
      if (page != nullptr) {
        page->waiting = 0;
      }
    }
    counts_ = {};
  }
  /// The stored form of a reference: kUnknown is 0, so references start at 1.
  static uint32_t encode(uint32_t reference) noexcept { return reference <= kMaxReference ? reference + 1 : kNowhere; }
  static uint32_t decode(uint32_t value) noexcept { return value - 1; }

 private:
  static constexpr uint32_t kAwaits = 0xC0000000;
  static constexpr uint32_t kAwaitsShift = 30;
  static constexpr uint32_t kPageBits = 12;
  static constexpr uint32_t kMask = (1U << kPageBits) - 1;
  static constexpr uint32_t kPages = 512;
  // Pages kept after their awaited records came: a graph's later nodes may follow its first by that many pages.
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
      forget(page.get());
      page = std::make_unique<Page>();
      page->number = number;
      std::unique_ptr<Page>& old = pages_[(number - kLinger) % kPages];
      if (old != nullptr && old->number == number - kLinger && old->waiting <= 0) {
        old.reset();
      }
    }
    return *page;
  }
  /// The records that the page's calls await will not be recognised.
  void forget(const Page* page) noexcept {
    for (std::size_t at = 0; page != nullptr && page->waiting > 0 && at < page->entries.size(); ++at) {
      --count(page->entries[at]);
    }
  }
  uint32_t& count(uint32_t entry) noexcept { return counts_[entry >> kAwaitsShift]; }
  Page* find_page(uint32_t correlation) const noexcept {
    const uint32_t number = correlation >> kPageBits;
    Page* page = pages_[number % kPages].get();
    return page != nullptr && page->number == number ? page : nullptr;
  }

  std::array<std::unique_ptr<Page>, kPages> pages_;
  std::array<uint32_t, 4> counts_{};  // by awaited kind; the entry for Nothing has no meaning
};

/// Maps a thread and autograd's sequence number to the region of the forward operator, for backward operators with the
/// same number. If several match, the newest, which is the innermost. One thread at a time.
class ForwardOps {
 public:
  void add(uint16_t thread, uint64_t sequence, uint32_t region) {
    if (std::find(threads_.begin(), threads_.end(), thread) == threads_.end() && threads_.size() < kMaxThreads) {
      threads_.push_back(thread);
    }
    if (newer_.size() >= kMax) {
      older_ = std::exchange(newer_, {});
    }
    newer_.set(key(thread, sequence), region);
  }
  /// The forward operator's region, kNone if there is none or several match. Sequence numbers are per thread, and a
  /// backward operator does not name the thread: `matches(region)` decides.
  template <class F>
  uint32_t find(uint64_t sequence, F&& matches) {
    uint32_t only = store::kNone;
    uint32_t matching = store::kNone;
    std::size_t found = 0;
    std::size_t matched = 0;
    for (const uint16_t thread : threads_) {
      const uint32_t* region = newer_.find(key(thread, sequence));
      region = region != nullptr ? region : older_.find(key(thread, sequence));
      if (region == nullptr || *region == store::kNone) {
        continue;
      }
      only = *region;
      ++found;
      if (matches(*region)) {
        matching = *region;
        ++matched;
      }
    }
    return found == 1 ? only : matched == 1 ? matching : store::kNone;
  }
  template <class F>
  void change_regions(F&& change) {
    for (auto* map : {&newer_, &older_}) {
      map->each([&](uint64_t, uint32_t& region) { region = change(region); });
    }
  }
  void clear() {
    newer_.clear();
    older_.clear();
    threads_.clear();
  }

 private:
  static constexpr std::size_t kMax = std::size_t{1} << 19;  // operators between a forward and its backward
  static constexpr std::size_t kMaxThreads = 64;
  static uint64_t key(uint16_t thread, uint64_t sequence) noexcept {
    return (static_cast<uint64_t>(thread) << 48) ^ sequence;
  }

  base::FlatMap<uint32_t> newer_;
  base::FlatMap<uint32_t> older_;
  std::vector<uint16_t> threads_;
};

}  // namespace gpuscope::attribution
