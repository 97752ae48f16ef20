// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuscope::nvml {

/// The parts of a GPU's readings, in the order in which they are slowed down.
enum class Part : std::size_t { kCounters, kLinks, kMemory, kUse };
inline constexpr std::array kPartNames{"performance_counters", "link_bytes", "memory", "use"};
using Divisors = std::array<unsigned, kPartNames.size()>;

/// Shares of a core per GPU at 10 Hz: in total, for each round, and for slow figures. The host, counted once, has the
/// share of one GPU. The readings of every minute have the rest up to 0.2 %.
inline constexpr double kSamplingShare = 0.0018;
inline constexpr double kRoundShare = 0.0015;
inline constexpr double kSlowShare = 0.00015;

/// Limits the cost of sampling.
///
/// After three rounds in a row above 2 % of the interval, the next part is read half as often. Performance counters,
/// link bytes and memory take turns, down to once per second each, and use follows. If two seconds in a row exceed
/// their share of a core, all three parts slow down together, or use does. An NVML call takes 2 us on some hosts and 40
/// us on others. Rates above 10 Hz have the same limit per round.
///
/// The last step is undone after a minute of rounds below 0.5 % that used less than half of the share. One thread.
class Pace {
 public:
  Pace(std::chrono::nanoseconds interval, unsigned gpus);

  /// Whether this round reads the part.
  bool has(Part part) const noexcept { return round_ % divisors_[static_cast<std::size_t>(part)] == 0; }
  /// The part is read every n-th round.
  unsigned divisor(Part part) const noexcept { return divisors_[static_cast<std::size_t>(part)]; }
  const Divisors& divisors() const noexcept { return divisors_; }
  /// `took_ns`: duration of the round. `cpu_ns`: CPU time of the thread.
  void end_round(int64_t took_ns, int64_t cpu_ns);

 private:
  /// The divisor that the step with this number doubles, from 0.
  unsigned& divisor_of(uint64_t step) noexcept;
  bool slow_down();
  bool runs_too_long(int64_t cpu_ns);

  int64_t interval_ns_;
  int64_t cpu_limit_ns_;  // of a round
  unsigned most_;         // of a divisor, a power of two
  uint64_t in_turns_;     // number of steps until all parts except use are read most rarely
  uint64_t round_ = 0;
  uint64_t steps_ = 0;
  unsigned too_long_ = 0;  // rounds in a row
  uint64_t short_ = 0;
  int64_t cpu_ns_ = 0;  // of the rounds of this window
  unsigned busy_ = 0;   // windows in a row above the share
  bool is_calm_ = true;
  Divisors divisors_{1, 1, 1, 1};
};

/// The schedule of slow figures: once per second, or less often to stay within a share of a core. One thread.
class Seldom {
 public:
  using Moment = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::nanoseconds kShortest = std::chrono::seconds(1);
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::seconds(30);

  /// `interval`: of the rounds, and the minimum time between readings.
  Seldom(double share, std::chrono::nanoseconds interval) : share_(share), interval_(interval) {}

  bool is_due(Moment now) const noexcept { return due_ <= now; }
  /// Reports the CPU time of a reading that began at `began`. The first reading is slower and does not count.
  void has_taken(int64_t cpu_ns, Moment began) noexcept;
  /// The time until it is due again.
  std::chrono::nanoseconds wait() const noexcept { return wait_; }

 private:
  double share_;
  std::chrono::nanoseconds interval_;
  std::chrono::nanoseconds wait_{0};
  Moment due_;
};

/// A budget of CPU time: a maximum at once, and a long-term share of a core. Slow readings wait until no time is owed.
/// Times in ns. One thread.
class Allowance {
 public:
  Allowance(double share, int64_t at_once_ns, int64_t now_ns)
      : share_(share), most_ns_(at_once_ns), left_ns_(at_once_ns), at_ns_(now_ns) {}

  void spend(int64_t now_ns, int64_t cpu_ns);
  /// The available time. Below 0: owed.
  int64_t left_ns() const noexcept { return left_ns_; }
  /// The time at which nothing is owed.
  int64_t free_ns() const noexcept;

 private:
  double share_;
  int64_t most_ns_;
  int64_t left_ns_;  // below 0: owed
  int64_t at_ns_;
};

/// Durations of samples: 16 bins per octave, so a quantile is within 3.1 %.
class Durations {
 public:
  void add(int64_t ns);
  uint64_t count() const noexcept { return count_; }
  int64_t sum_ns() const noexcept { return sum_ns_; }
  /// The duration that a share of them does not exceed. 0 if there are none.
  int64_t quantile_ns(double share) const;

 private:
  static constexpr std::size_t kBins = 1024;  // for every store::histogram_bin of a 64-bit duration
  std::array<uint64_t, kBins> bins_{};
  uint64_t count_ = 0;
  int64_t sum_ns_ = 0;
};

}  // namespace gpuscope::nvml
