// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace gpuscope::nvml {

/// Finds the ticks of an energy counter: the moments at which its value steps, every 99.5 ms on an H100.
///
/// A reading returns the value of the latest tick and takes milliseconds, so readings are few. A search reads until it
/// has seen two ticks, or more if calls are slow; this gives the period. Then it reads only before and after selected
/// ticks, which narrows their bounds. Their distance grows with the time since the window began, up to five seconds,
/// and faster if calls would use up the CPU budget. An unexpected tick starts a new search. Times in ns. One thread.
class EnergyTicks {
 public:
  /// The counter stepped between these moments.
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
    std::optional<Tick> tick;  // of this value, if known
    bool is_new = false;       // whether it adds to earlier readings
  };

  /// `interval_ns`: the distance of wanted values. The first seconds of a window have more, for short recordings.
  explicit EnergyTicks(int64_t interval_ns) : interval_ns_(interval_ns) {}

  /// The time of the next reading, at `now_ns` or later.
  int64_t next_ns(int64_t now_ns);
  Taken take(const Reading& reading);
  /// The tick of a reading at any other moment. Changes no state.
  std::optional<Tick> find_tick(const Reading& reading) const;
  void begin_window(int64_t moment_ns) noexcept { began_ns_ = moment_ns; }
  /// Returns the CPU time to charge since the last call. The first search is free up to 0.25 s.
  int64_t charge(int64_t cpu_ns) noexcept;
  /// Sets the available CPU time. Below 0, time is owed until `free_ns`. Until then only a started search or tick
  /// continues.
  void allow(int64_t left_ns, int64_t free_ns) noexcept {
    left_ns_ = left_ns;
    free_ns_ = free_ns;
  }
  /// Starts a new search then.
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
  int64_t call_ns_ = 4'000'000;  // recent duration of a reading
  std::optional<Reading> before_;
  Aim aim_ = Aim::Seek;
  int64_t due_ns_ = 0;
  bool can_wait_ = true;  // whether the next reading can wait
  int searches_ = 1;
  int64_t search_left_ns_ = 250'000'000;  // free CPU time of the first search
  int found_ = 0;                         // consecutive ticks of a search
  int64_t unchanged_since_ns_ = 0;
  Expected first_, last_, next_;
  int64_t shortest_ns_ = 0;  // the period
  int64_t longest_ns_ = 0;
  int64_t value_before_ = 0;  // before the tick that is aimed at
};

}  // namespace gpuscope::nvml
