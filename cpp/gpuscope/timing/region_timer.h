// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::timing {

/// Times regions on the GPU with pairs of CUDA events on the default stream, where CUPTI is not available.
///
/// begin and end: any thread, no lock; they skip what could disturb the program: threads without a context, streams
/// that are capturing. read: one thread.
class RegionTimer {
 public:
  static constexpr uint32_t kPairs = 1024;
  static constexpr uint32_t kNoPair = UINT32_MAX;

  explicit RegionTimer(driver::Cuda cuda) : cuda_(std::move(cuda)) {}
  RegionTimer(const RegionTimer&) = delete;
  RegionTimer& operator=(const RegionTimer&) = delete;

  /// Records the first event of a pair; kNoPair when that cannot be done now.
  uint32_t begin() noexcept;
  /// Records the second; false when the pair is void and has been taken back.
  bool end(uint32_t pair) noexcept;

  enum class State { Running, Done, Void };
  struct Reading {
    State state;
    int64_t duration_ns;
  };
  /// How long the pair's work took; a pair that is Done or Void is free for another region.
  Reading read(uint32_t pair) noexcept;

  /// Every pair is free again: regions of an earlier session that are still open keep none.
  void take_all_back() noexcept;

  /// The timer that regions use now, or nullptr.
  static std::atomic<RegionTimer*>& current() noexcept;

 private:
  struct Pair {
    driver::CuEvent start = nullptr;
    driver::CuEvent stop = nullptr;
    driver::CuContext context = nullptr;  // whose the events are
  };
  driver::CuContext recordable() const noexcept;
  uint32_t claim(driver::CuContext context, bool from_others) noexcept;
  void give_back(uint32_t pair) noexcept;

  driver::Cuda cuda_;
  // Never destroyed: their context may be gone by then.
  std::array<Pair, kPairs> pairs_{};
  std::array<std::atomic<uint64_t>, kPairs / 64> used_{};
};

}  // namespace gpuscope::timing
