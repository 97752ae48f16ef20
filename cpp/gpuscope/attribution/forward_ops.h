// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/schema.h"

namespace gpuscope::attribution {

/// Whether autograd's `backward`, as "AddmmBackward0", is what the operator `forward`, as "aten::addmm", recorded.
bool is_backward_of(std::string_view backward, std::string_view forward) noexcept;

/// The forward operators whose backward ones may still come: their regions, by thread and autograd's number. Of several
/// with one number, the newest, which is the innermost. One thread at a time.
class ForwardOps {
 public:
  void add(uint16_t thread, uint64_t sequence, uint32_t region) {
    if (std::find(threads_.begin(), threads_.end(), thread) == threads_.end() && threads_.size() < kMostThreads) {
      threads_.push_back(thread);
    }
    if (newer_.size() >= kMost) {
      older_ = std::exchange(newer_, {});
    }
    newer_.set(key(thread, sequence), region);
  }
  /// The forward operator's region, kNone when there is none or several could be it. Each thread numbers for itself,
  /// and the backward operator does not say which thread's number it has: then `matches(region)` decides.
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
  static constexpr std::size_t kMost = std::size_t{1} << 19;  // operators between a forward and its backward
  static constexpr std::size_t kMostThreads = 64;
  static uint64_t key(uint16_t thread, uint64_t sequence) noexcept {
    return (static_cast<uint64_t>(thread) << 48) ^ sequence;
  }

  base::FlatMap<uint32_t> newer_;
  base::FlatMap<uint32_t> older_;
  std::vector<uint16_t> threads_;
};

}  // namespace gpuscope::attribution
