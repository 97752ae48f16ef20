// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/breakdown.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/pages.h"

namespace gpuscope::analysis {
namespace {

struct Span {
  int64_t start_ns;
  int64_t end_ns;
  uint8_t of;
};

using Spans = std::vector<Span, base::ScratchAllocator<Span>>;

// So many parts that are in order by themselves are merged; more are sorted.
constexpr std::size_t kMostParts = 64;

/// Walks time from edge to edge, with the classes that fill it as bits.
class Sweep {
 public:
  Sweep(const Intervals& windows, std::size_t count, const Division& into)
      : windows_(windows), count_(count), into_(into) {}

  /// In the order of their starts.
  void add(const Span& span) {
    // Where one begins as another ends, the beginning comes first: no class is left and entered again.
    end_before(span.start_ns);
    advance(span.start_ns);
    if (open_[span.of]++ == 0) {
      filled_ |= uint64_t{1} << span.of;
    }
    ends_.push_back({span.end_ns, span.of});
    std::push_heap(ends_.begin(), ends_.end(), later);
  }
  void finish() {
    end_before(INT64_MAX);
    advance(INT64_MAX);
  }

 private:
  struct End {
    int64_t at_ns;
    uint8_t of;
  };
  static bool later(const End& a, const End& b) { return a.at_ns > b.at_ns; }

  void end_before(int64_t to_ns) {
    while (!ends_.empty() && ends_.front().at_ns < to_ns) {
      const End end = ends_.front();
      std::pop_heap(ends_.begin(), ends_.end(), later);
      ends_.pop_back();
      advance(end.at_ns);
      if (--open_[end.of] == 0) {
        filled_ &= ~(uint64_t{1} << end.of);
      }
    }
  }
  // Gives the time up to `to_ns` to what has filled it since the last edge.
  void advance(int64_t to_ns) {
    for (; window_ < windows_.size(); ++window_) {
      const int64_t end_ns = windows_.end_ns[window_];
      const int64_t from_ns = std::max(at_ns_, windows_.start_ns[window_]);
      const int64_t until_ns = std::min(to_ns, end_ns);
      if (until_ns > from_ns) {
        give(until_ns - from_ns);
      }
      if (to_ns < end_ns) {
        break;
      }
    }
    at_ns_ = to_ns;
  }
  void give(int64_t duration_ns) {
    const auto first = filled_ != 0 ? static_cast<std::size_t>(std::countr_zero(filled_)) : count_;
    into_.exclusive_ns[first * windows_.size() + window_] += duration_ns;
    if (into_.covered_ns.empty()) {
      return;
    }
    for (uint64_t left = filled_; left != 0; left &= left - 1) {
      into_.covered_ns[static_cast<std::size_t>(std::countr_zero(left)) * windows_.size() + window_] += duration_ns;
    }
  }

  Intervals windows_;
  std::size_t count_;
  Division into_;
  std::size_t window_ = 0;
  int64_t at_ns_ = INT64_MIN;
  uint64_t filled_ = 0;
  std::array<uint32_t, kMaxClasses> open_{};
  std::vector<End> ends_;  // of what is open, as a heap
};

void check(const Intervals& windows, const Intervals& work, std::span<const uint8_t> classes, std::size_t count,
           const Division& into) {
  if (count > kMaxClasses) {
    throw base::InvalidArgument("divide_time: more than 64 classes; accepted are 64");
  }
  if (windows.end_ns.size() != windows.size() || work.end_ns.size() != work.size()) {
    throw base::InvalidArgument("divide_time: as many ends as there are starts are needed");
  }
  if (work.size() != classes.size()) {
    throw base::InvalidArgument("divide_time: as many classes as there is work are needed");
  }
  if (std::any_of(classes.begin(), classes.end(), [count](uint8_t each) { return each >= count; })) {
    throw base::InvalidArgument("divide_time: a class is not below their count");
  }
  for (std::size_t at = 0; at < windows.size(); ++at) {
    if (windows.end_ns[at] < windows.start_ns[at] || (at > 0 && windows.start_ns[at] < windows.end_ns[at - 1])) {
      throw base::InvalidArgument("divide_time: the windows are not in order, or one reaches into the next");
    }
  }
  if (into.exclusive_ns.size() != windows.size() * (count + 1) ||
      (!into.covered_ns.empty() && into.covered_ns.size() != windows.size() * count)) {
    throw base::InvalidArgument("divide_time: the results have no entry for each class and window");
  }
}

// Tables of a recording are in order, or nearly: what consists of several needs to be merged alone.
void sort_by_start(Spans& spans) {
  const auto earlier = [](const Span& a, const Span& b) { return a.start_ns < b.start_ns; };
  const auto place = [&](std::size_t at) { return spans.begin() + static_cast<std::ptrdiff_t>(at); };
  std::vector<std::size_t> parts = {0};
  for (std::size_t at = 1; at < spans.size(); ++at) {
    if (earlier(spans[at], spans[at - 1])) {
      parts.push_back(at);
      if (parts.size() > kMostParts) {
        std::sort(spans.begin(), spans.end(), earlier);
        return;
      }
    }
  }
  parts.push_back(spans.size());
  while (parts.size() > 2) {
    std::vector<std::size_t> merged;
    for (std::size_t at = 0; at < parts.size(); at += 2) {
      merged.push_back(parts[at]);
      if (at + 2 < parts.size()) {
        std::inplace_merge(place(parts[at]), place(parts[at + 1]), place(parts[at + 2]), earlier);
      }
    }
    if (merged.back() != spans.size()) {
      merged.push_back(spans.size());
    }
    parts = std::move(merged);
  }
}

}  // namespace

void divide_time(const Intervals& windows, const Intervals& work, std::span<const uint8_t> classes, std::size_t count,
                 const Division& into) {
  check(windows, work, classes, count, into);
  Spans spans;
  spans.reserve(work.size());
  for (std::size_t at = 0; at < work.size(); ++at) {
    if (work.end_ns[at] > work.start_ns[at]) {
      spans.push_back({work.start_ns[at], work.end_ns[at], classes[at]});
    }
  }
  sort_by_start(spans);
  Sweep sweep(windows, count, into);
  for (const Span& span : spans) {
    sweep.add(span);
  }
  sweep.finish();
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
