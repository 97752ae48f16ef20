// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace gpuscope::nvml {

/// When a counter of energy goes on, found by reading it at well chosen moments.
///
/// Such a counter stands still and goes on at once, each 99.5 ms on an H100: what is read is what it had at its latest
/// tick, and says as much about a moment as that tick is known to be near it. A reading takes milliseconds, so that
/// there should be few: at first it is read again and again until it has gone on twice or, where reading takes long,
/// some times more, which gives the period; then only before and after some ticks, whose bounds each reading narrows.
/// These lie ever farther apart, up to five seconds: a part of the time since a window began, so that a recording of
/// any length has some; a greater part where readings take so long that what they may take would else be spent within
/// seconds, and nothing be told of those after. Where a tick is not where it was expected, it begins anew. Times in
/// ns. One thread.
class EnergyTicks {
 public:
  /// The counter went on between these moments.
  struct Tick {
    int64_t first_ns;
    int64_t last_ns;
  };
  struct Reading {
    int64_t begin_ns;  // the call
    int64_t end_ns;
    int64_t value;
  };
  struct Taken {
    std::optional<Tick> tick;  // at which the counter took this value, as far as that is known
    bool is_new = false;       // it says something that the readings before did not
  };

  /// `interval_ns`: between two values that are wanted at least, but for the first seconds of a window: in a short
  /// recording they are all that is told.
  explicit EnergyTicks(int64_t interval_ns) : interval_ns_(interval_ns) {}

  /// When to read next, at `now_ns` or later.
  int64_t next_ns(int64_t now_ns);
  Taken take(const Reading& reading);
  /// Of a reading at any other moment, which changes nothing here: when the tick was that its value is of.
  std::optional<Tick> find_tick(const Reading& reading) const;
  void begin_window(int64_t moment_ns) noexcept { began_ns_ = moment_ns; }
  /// Of CPU time that was spent since the last call, what is not the first search's, which is free up to 0.25 s.
  int64_t charge(int64_t cpu_ns) noexcept;
  /// So much CPU time may be spent at once, below 0 where some is owed, which it is no more at `free_ns`: until then it
  /// reads nothing that could wait, only what a search, or a tick that was read before, still needs.
  void allow(int64_t left_ns, int64_t free_ns) noexcept {
    left_ns_ = left_ns;
    free_ns_ = free_ns;
  }
  /// Begins anew then.
  void rest_until(int64_t moment_ns) {
    seek(moment_ns);
    before_.reset();
    due_ns_ = moment_ns;
  }

 private:
  enum class Aim : uint8_t { Seek, Before, Middle, After, Often };

  struct Expected {
    int64_t number = 0;  // ticks since `first_`
    int64_t low_ns = 0;
    int64_t high_ns = 0;
    int64_t width() const noexcept { return high_ns - low_ns; }
  };

  Expected expect(int64_t number) const;
  bool can_aim_at(const Expected& tick) const;
  double parts_of_window(int64_t passed_ns) const;
  int64_t step_ns(int64_t now_ns) const;
  void aim_at(int64_t from_ns);
  void seek(int64_t now_ns);
  void read_at_any_moment(int64_t now_ns);
  Tick latest(const Reading& reading) const;
  void narrow_period();
  Taken take_seeking(const Reading& reading);

  int64_t interval_ns_;
  int64_t began_ns_ = 0;
  int64_t left_ns_ = std::numeric_limits<int64_t>::max();
  int64_t free_ns_ = 0;
  int64_t call_ns_ = 4'000'000;  // how long a reading takes, as the longest of the latest did
  std::optional<Reading> before_;
  Aim aim_ = Aim::Seek;
  int64_t due_ns_ = 0;
  bool can_wait_ = true;  // the next reading
  int searches_ = 1;
  int64_t search_left_ns_ = 250'000'000;  // of the first one's CPU time
  int found_ = 0;                         // ticks, one after the other, while it seeks
  int64_t unchanged_since_ns_ = 0;
  Expected first_, last_, next_;
  int64_t shortest_ns_ = 0;  // the period
  int64_t longest_ns_ = 0;
  int64_t value_before_ = 0;  // at the tick before the one that is aimed at
};

}  // namespace gpuscope::nvml
