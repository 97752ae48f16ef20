// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/breakdown.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <unordered_map>
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

using Order = std::vector<std::size_t, base::ScratchAllocator<std::size_t>>;

// Up to this many sorted parts are merged. More parts are sorted as a whole.
constexpr std::size_t kMostParts = 64;
// The maximum number of table entries per known number.
constexpr std::size_t kMostHoles = 8;

// The order of rows by start. A recording's tables are nearly sorted, so it is enough to merge their sorted parts.
// Empty: the rows are sorted already.
Order by_start(std::span<const int64_t> starts) {
  std::vector<std::size_t> parts = {0};
  for (std::size_t at = 1; at < starts.size() && parts.size() <= kMostParts; ++at) {
    if (starts[at] < starts[at - 1]) {
      parts.push_back(at);
    }
  }
  Order order;
  if (parts.size() == 1) {
    return order;
  }
  order.resize(starts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto earlier = [starts](std::size_t a, std::size_t b) { return starts[a] < starts[b]; };
  if (parts.size() > kMostParts) {
    std::sort(order.begin(), order.end(), earlier);
    return order;
  }
  const auto place = [&](std::size_t at) { return order.begin() + static_cast<std::ptrdiff_t>(at); };
  parts.push_back(order.size());
  while (parts.size() > 2) {
    std::vector<std::size_t> merged;
    for (std::size_t at = 0; at < parts.size(); at += 2) {
      merged.push_back(parts[at]);
      if (at + 2 < parts.size()) {
        std::inplace_merge(place(parts[at]), place(parts[at + 1]), place(parts[at + 2]), earlier);
      }
    }
    if (merged.back() != order.size()) {
      merged.push_back(order.size());
    }
    parts = std::move(merged);
  }
  return order;
}

/// The spans of one list, by start.
class Source {
 public:
  explicit Source(const ClassifiedIntervals& from) : from_(from), order_(by_start(from.work.start_ns)) { find(); }

  bool is_done() const { return at_ == from_.work.size(); }
  /// Unless it is done.
  const Span& next() const { return next_; }
  void pass() {
    ++at_;
    find();
  }

 private:
  void find() {
    for (; at_ < from_.work.size(); ++at_) {
      const std::size_t row = order_.empty() ? at_ : order_[at_];
      next_ = {from_.work.start_ns[row], from_.work.end_ns[row], from_.classes[row]};
      if (next_.end_ns > next_.start_ns) {
        return;
      }
    }
  }

  ClassifiedIntervals from_;
  Order order_;
  std::size_t at_ = 0;
  Span next_{};
};

/// Walks time from edge to edge. The active classes are bits.
class Sweep {
 public:
  Sweep(const Intervals& windows, std::size_t count, const Division& into)
      : windows_(windows), count_(count), into_(into) {}

  /// In order of start.
  void add(const Span& span) {
    // If one span begins where another ends, the beginning is first: the class stays active.
    end_before(span.start_ns);
    advance(span.start_ns);
    if (window_ == windows_.size() || span.end_ns <= windows_.start_ns[window_]) {
      return;  // between windows
    }
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
  // Assigns the time up to `to_ns` to the classes active since the last edge.
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
  std::vector<End> ends_;  // of the open spans, a heap
};

void check(const Intervals& windows, std::span<const ClassifiedIntervals> work, std::size_t count,
           const Division& into) {
  if (count > kMaxClasses) {
    throw base::InvalidArgument("divide_time: more than 64 classes; accepted are 64");
  }
  if (windows.end_ns.size() != windows.size()) {
    throw base::InvalidArgument("divide_time: as many ends as there are starts are needed");
  }
  for (const auto& [spans, classes] : work) {
    if (spans.end_ns.size() != spans.size()) {
      throw base::InvalidArgument("divide_time: as many ends as there are starts are needed");
    }
    if (spans.size() != classes.size()) {
      throw base::InvalidArgument("divide_time: as many classes as there is work are needed");
    }
    if (std::any_of(classes.begin(), classes.end(), [count](uint8_t each) { return each >= count; })) {
      throw base::InvalidArgument("divide_time: a class is not below their count");
    }
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

}  // namespace

void divide_time(const Intervals& windows, std::span<const ClassifiedIntervals> work, std::size_t count,
                 const Division& into) {
  check(windows, work, count, into);
  std::vector<Source> sources(work.begin(), work.end());
  std::erase_if(sources, [](const Source& each) { return each.is_done(); });
  Sweep sweep(windows, count, into);
  while (!sources.empty()) {
    const auto first = std::min_element(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
      return a.next().start_ns < b.next().start_ns;
    });
    sweep.add(first->next());
    first->pass();
    if (first->is_done()) {
      sources.erase(first);
    }
  }
  sweep.finish();
}

void count_before(std::span<const int64_t> edges, std::span<const int64_t> moments, bool equal,
                  std::span<int64_t> counts) noexcept {
  std::size_t known = 0;  // of the moment before
  for (std::size_t each = 0; each < moments.size(); ++each) {
    const int64_t moment = moments[each];
    const auto is_before = [moment, equal](int64_t edge) { return edge < moment || (equal && edge == moment); };
    std::size_t first = known;
    std::size_t last = known;
    if (known > 0 && !is_before(edges[known - 1])) {
      first = 0;
    } else {  // ever further ahead
      for (std::size_t step = 1; last < edges.size() && is_before(edges[last]); step *= 2) {
        first = last + 1;
        last = std::min(last + step, edges.size());
      }
    }
    const std::span<const int64_t> between = edges.subspan(first, last - first);
    known = first + static_cast<std::size_t>(std::ranges::partition_point(between, is_before) - between.begin());
    counts[each] = static_cast<int64_t>(known);
  }
}

void find_rows(std::span<const uint32_t> known, std::span<const uint32_t> wanted, std::span<int64_t> rows) {
  if (known.empty()) {
    std::ranges::fill(rows, -1);
    return;
  }
  const auto [least, most] = std::ranges::minmax(known);
  const std::size_t numbers = std::size_t{most} - least + 1;
  if (numbers / kMostHoles > known.size()) {
    std::unordered_map<uint32_t, int64_t> places;
    places.reserve(known.size());
    for (std::size_t at = 0; at < known.size(); ++at) {
      places.emplace(known[at], static_cast<int64_t>(at));
    }
    std::ranges::transform(wanted, rows.begin(), [&](uint32_t number) {
      const auto found = places.find(number);
      return found != places.end() ? found->second : -1;
    });
    return;
  }
  std::vector<int64_t, base::ScratchAllocator<int64_t>> places(numbers, -1);
  for (std::size_t at = known.size(); at-- != 0;) {  // backwards, so that the first of equal numbers wins
    places[known[at] - least] = static_cast<int64_t>(at);
  }
  std::ranges::transform(wanted, rows.begin(),
                         [&](uint32_t number) { return number - least < numbers ? places[number - least] : -1; });
}

// The prefix function of Knuth, Morris and Pratt over the reversed sequence: its first n entries repeat after n -
// border(n) entries.
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
