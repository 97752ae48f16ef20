// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::timing {

/// Times regions on the GPU with pairs of CUDA events on the default stream, if CUPTI is not available.
///
/// begin and end: any thread, no lock. They skip cases that could disturb the program: threads without a context,
/// capturing streams. read: one thread.
class RegionTimer {
 public:
  static constexpr uint32_t kPairs = 1024;
  static constexpr uint32_t kNoPair = UINT32_MAX;

  explicit RegionTimer(driver::Cuda cuda) : cuda_(std::move(cuda)) {}
  RegionTimer(const RegionTimer&) = delete;
  RegionTimer& operator=(const RegionTimer&) = delete;

  /// Records the first event of a pair. kNoPair if that is impossible now.
  uint32_t begin() noexcept;
  /// Records the second event. False if the pair is void and was taken back.
  bool end(uint32_t pair) noexcept;

  enum class State { Running, Done, Void };
  struct Elapsed {
    State state;
    int64_t duration_ns;
  };
  /// The duration of the pair's work. Pairs that are Done or Void become free.
  Elapsed read(uint32_t pair) noexcept;

  /// Frees every pair: open regions of an earlier session lose theirs.
  void take_all_back() noexcept;

  /// The timer that regions use now, or null.
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
