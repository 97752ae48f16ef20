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

/// Of a core, for each GPU that is read, at 10 Hz: all of it, what is read each round, and what differs seldom; of the
/// host, which there is once, as much as of a GPU. Below 0.2 % by what is read each minute whatever it takes.
inline constexpr double kSamplingShare = 0.0018;
inline constexpr double kRoundShare = 0.0015;
inline constexpr double kSlowShare = 0.00015;

/// Limits what sampling takes. Where three rounds in a row each take more than 2 % of the interval, the next part is
/// read half as often: performance counters, bytes of links and memory in turns, at least once a second each, and use
/// only then. Where the rounds of two seconds in a row run for more than their share of a core, all three at once are,
/// or use: a call of NVML takes 2 us on some hosts and 40 on others. Rounds that were asked for more often than at 10
/// Hz may run for as long each. The last such step is undone after a minute of rounds that take less than 0.5 % and ran
/// for less than half of the share. One thread.
class Pace {
 public:
  Pace(std::chrono::nanoseconds interval, unsigned gpus);

  /// Whether this round reads it.
  bool has(Part part) const noexcept { return round_ % divisors_[static_cast<std::size_t>(part)] == 0; }
  /// Each how manieth round reads it.
  unsigned divisor(Part part) const noexcept { return divisors_[static_cast<std::size_t>(part)]; }
  const Divisors& divisors() const noexcept { return divisors_; }
  /// How long it took, and for how long the thread ran.
  void end_round(int64_t took_ns, int64_t cpu_ns);

 private:
  /// Of the step with this number, from 0 on.
  unsigned& divisor_of(uint64_t step) noexcept;
  bool slow_down();
  bool runs_too_long(int64_t cpu_ns);

  int64_t interval_ns_;
  int64_t cpu_limit_ns_;  // of a round
  unsigned most_;         // of a divisor, a power of two
  uint64_t in_turns_;     // steps, until all parts but use are read as seldom as may be
  uint64_t round_ = 0;
  uint64_t steps_ = 0;
  unsigned too_long_ = 0;  // rounds in a row
  uint64_t short_ = 0;
  int64_t cpu_ns_ = 0;  // of the rounds of this window
  unsigned busy_ = 0;   // windows in a row above the share
  bool is_calm_ = true;
  Divisors divisors_{1, 1, 1, 1};
};

/// When to read what differs seldom: once a second, or as seldom as keeps it to its share of a core. One thread.
class Seldom {
 public:
  using Moment = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::nanoseconds kShortest = std::chrono::seconds(1);
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::seconds(30);

  /// `interval`: of the rounds, after which it is read at the earliest.
  Seldom(double share, std::chrono::nanoseconds interval) : share_(share), interval_(interval) {}

  bool is_due(Moment now) const noexcept { return due_ <= now; }
  /// What reading it ran for, begun at `began`. What beginning takes comes once, so that the first time does not count.
  void has_taken(int64_t cpu_ns, Moment began) noexcept;
  /// After how long it is due again.
  std::chrono::nanoseconds wait() const noexcept { return wait_; }

 private:
  double share_;
  std::chrono::nanoseconds interval_;
  std::chrono::nanoseconds wait_{0};
  Moment due_;
};

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
