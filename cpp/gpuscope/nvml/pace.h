// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuscope::nvml {

/// What a sampler reads of a GPU, in the order in which it is read less often where reading takes too long.
enum class Part : std::size_t { kCounters, kLinks, kMemory, kUse };
inline constexpr std::array kPartNames{"performance_counters", "link_bytes", "memory", "use"};
using Divisors = std::array<unsigned, kPartNames.size()>;

/// Limits what sampling takes. Where three rounds in a row each take more than 2 % of the interval, the next part is
/// read half as often: performance counters first, use last, then these again, at least once a second each. The last
/// such step is undone after a minute of rounds that take less than 0.5 %: what it gave back is then at most 1 %.
/// One thread.
class Pace {
 public:
  explicit Pace(std::chrono::nanoseconds interval);

  /// Whether this round reads it.
  bool has(Part part) const noexcept { return round_ % divisors_[static_cast<std::size_t>(part)] == 0; }
  /// Each how manieth round reads it.
  unsigned divisor(Part part) const noexcept { return divisors_[static_cast<std::size_t>(part)]; }
  const Divisors& divisors() const noexcept { return divisors_; }
  void end_round(int64_t took_ns);

 private:
  void slow_down();

  int64_t interval_ns_;
  unsigned most_;  // of a divisor
  uint64_t round_ = 0;
  uint64_t steps_ = 0;
  unsigned too_long_ = 0;  // rounds in a row
  uint64_t short_ = 0;
  Divisors divisors_{1, 1, 1, 1};
};

/// Of a core, for each GPU that is read.
inline constexpr double kSamplingShare = 0.002;

/// What may be spent of a core: so much at once, and a share of the time in the long run. What takes long waits until
/// nothing is owed. Times in ns. One thread.
class Allowance {
 public:
  Allowance(double share, int64_t at_once_ns, int64_t now_ns)
      : share_(share), most_ns_(at_once_ns), left_ns_(at_once_ns), at_ns_(now_ns) {}

  void spend(int64_t now_ns, int64_t cpu_ns);
  /// At once, from now on; below 0: owed.
  int64_t left_ns() const noexcept { return left_ns_; }
  /// When nothing is owed any more.
  int64_t free_ns() const noexcept;

 private:
  double share_;
  int64_t most_ns_;
  int64_t left_ns_;  // below 0: owed
  int64_t at_ns_;
};

/// How long samples took: 16 bins an octave, so that a quantile is within 3.1 %.
class Durations {
 public:
  void add(int64_t ns);
  uint64_t count() const noexcept { return count_; }
  int64_t sum_ns() const noexcept { return sum_ns_; }
  /// What a share of them does not exceed; 0 where there are none.
  int64_t quantile_ns(double share) const;

 private:
  static constexpr std::size_t kBins = 1024;  // of store::histogram_bin: every duration of 64 bits has one
  std::array<uint64_t, kBins> bins_{};
  uint64_t count_ = 0;
  int64_t sum_ns_ = 0;
};

}  // namespace gpuscope::nvml
