// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/breakdown.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "gpuscope/base/errors.h"

namespace gpuscope::analysis {
namespace {

struct Edge {
  int64_t at_ns;
  uint8_t of;
};

using Edges = std::vector<Edge>;

/// Walks time from edge to edge, with the classes that fill it as bits.
class Sweep {
 public:
  Sweep(std::span<const Interval> windows, std::size_t count) : windows_(windows), count_(count) {
    division_.exclusive_ns.resize(windows.size() * (count + 1));
    division_.covered_ns.resize(windows.size() * count);
  }

  void begin(const Edge& edge) {
    advance(edge.at_ns);
    if (open_[edge.of]++ == 0) {
      filled_ |= uint64_t{1} << edge.of;
    }
  }
  void end(const Edge& edge) {
    advance(edge.at_ns);
    if (--open_[edge.of] == 0) {
      filled_ &= ~(uint64_t{1} << edge.of);
    }
  }
  Division finish() {
    advance(INT64_MAX);
    return std::move(division_);
  }

 private:
  // Gives the time up to `to_ns` to what has filled it since the last edge.
  void advance(int64_t to_ns) {
    while (window_ < windows_.size()) {
      const Interval& window = windows_[window_];
      const int64_t from_ns = std::max(at_ns_, window.start_ns);
      const int64_t until_ns = std::min(to_ns, window.end_ns);
      if (until_ns > from_ns) {
        give(until_ns - from_ns);
      }
      if (to_ns < window.end_ns) {
        break;
      }
      ++window_;
    }
    at_ns_ = to_ns;
  }
  void give(int64_t duration_ns) {
    const auto first = filled_ != 0 ? static_cast<std::size_t>(std::countr_zero(filled_)) : count_;
    division_.exclusive_ns[window_ * (count_ + 1) + first] += duration_ns;
    for (uint64_t left = filled_; left != 0; left &= left - 1) {
      division_.covered_ns[window_ * count_ + static_cast<std::size_t>(std::countr_zero(left))] += duration_ns;
    }
  }

  std::span<const Interval> windows_;
  std::size_t count_;
  std::size_t window_ = 0;
  int64_t at_ns_ = INT64_MIN;
  uint64_t filled_ = 0;
  std::array<uint32_t, kMaxClasses> open_{};
  Division division_;
};

void check(std::span<const Interval> windows, std::span<const Interval> work, std::span<const uint8_t> classes,
           std::size_t count) {
  if (count > kMaxClasses) {
    throw base::InvalidArgument("divide_time: more than 64 classes; accepted are 64");
  }
  if (work.size() != classes.size()) {
    throw base::InvalidArgument("divide_time: as many classes as there is work are needed");
  }
  if (std::any_of(classes.begin(), classes.end(), [count](uint8_t each) { return each >= count; })) {
    throw base::InvalidArgument("divide_time: a class is not below their count");
  }
  for (std::size_t at = 0; at < windows.size(); ++at) {
    if (windows[at].end_ns < windows[at].start_ns || (at > 0 && windows[at].start_ns < windows[at - 1].end_ns)) {
      throw base::InvalidArgument("divide_time: the windows are not in order, or one reaches into the next");
    }
  }
}

// Recordings have most of them in order already.
void sort_by_time(Edges& edges) {
  const auto earlier = [](const Edge& a, const Edge& b) { return a.at_ns < b.at_ns; };
  if (!std::is_sorted(edges.begin(), edges.end(), earlier)) {
    std::sort(edges.begin(), edges.end(), earlier);
  }
}

}  // namespace

Division divide_time(std::span<const Interval> windows, std::span<const Interval> work,
                     std::span<const uint8_t> classes, std::size_t count) {
  check(windows, work, classes, count);
  Edges begins;
  Edges ends;
  begins.reserve(work.size());
  ends.reserve(work.size());
  for (std::size_t at = 0; at < work.size(); ++at) {
    if (work[at].end_ns > work[at].start_ns) {
      begins.push_back({work[at].start_ns, classes[at]});
      ends.push_back({work[at].end_ns, classes[at]});
    }
  }
  sort_by_time(begins);
  sort_by_time(ends);
  Sweep sweep(windows, count);
  // Where one begins as another ends, the beginning comes first: no count goes below zero.
  for (std::size_t begun = 0, ended = 0; ended < ends.size();) {
    if (begun < begins.size() && begins[begun].at_ns <= ends[ended].at_ns) {
      sweep.begin(begins[begun++]);
    } else {
      sweep.end(ends[ended++]);
    }
  }
  return sweep.finish();
}

// The prefix function of Knuth, Morris and Pratt over the reversed sequence: its first n entries repeat after
// n - border(n) of them.
Repetition find_repetition(std::span<const uint32_t> sequence, std::size_t times) {
  const std::size_t size = sequence.size();
  const auto reversed = [&](std::size_t at) { return sequence[size - 1 - at]; };
  std::vector<uint32_t> border(size);
  Repetition found;
  for (std::size_t at = 1; at < size; ++at) {
    std::size_t length = border[at - 1];
    while (length > 0 && reversed(at) != reversed(length)) {
      length = border[length - 1];
    }
    length += reversed(at) == reversed(length) ? 1 : 0;
    border[at] = static_cast<uint32_t>(length);
    const std::size_t entries = at + 1;
    if (const std::size_t period = entries - length; entries >= times * period) {
      found = {size - entries, period};
    }
  }
  return found;
}

}  // namespace gpuscope::analysis
