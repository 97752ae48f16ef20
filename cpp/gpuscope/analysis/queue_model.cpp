// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/queue_model.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace gpuscope::analysis {
namespace {

// Sums are clamped to this, so that the next sum does not overflow.
constexpr int64_t kLast = int64_t{1} << 61;

// The maximum distance to a thread's next call.
constexpr std::size_t kAhead = 4'096;

// Rows are nearly sorted: the call after a region is usually within this distance.
constexpr int kNear = 64;
// Costs are means, so a call keeps at least this share of its time.
constexpr double kLeastLeft = 0.25;
// The maximum cost per event, also in a damaged recording.
constexpr int64_t kMostCost = 1'000'000'000;

int64_t plus(int64_t a, int64_t b) { return std::clamp(a + b, -kLast, kLast); }

}  // namespace

/// The saved time of one thread, as sorted disjoint spans.
class QueueModel::Saved {
 public:
  void add(int64_t start, int64_t end) {
    if (end > start) {
      spans_.emplace_back(start, end);
    }
  }
  void finish() {
    std::sort(spans_.begin(), spans_.end());
    std::size_t kept = 0;
    for (const auto& [start, end] : spans_) {
      if (kept > 0 && start <= spans_[kept - 1].second) {
        spans_[kept - 1].second = std::max(spans_[kept - 1].second, end);
      } else {
        spans_[kept++] = {start, end};
      }
    }
    spans_.resize(kept);
    before_.reserve(kept + 1);
    before_.push_back(0);
    for (const auto& [start, end] : spans_) {
      before_.push_back(plus(before_.back(), end - start));
    }
  }
  int64_t between(int64_t start, int64_t end) const { return end > start ? until(end) - until(start) : 0; }

 private:
  int64_t until(int64_t at) const {
    const auto next =
        std::partition_point(spans_.begin(), spans_.end(), [at](const auto& each) { return each.first < at; });
    const auto count = static_cast<std::size_t>(next - spans_.begin());
    return count == 0 ? 0 : before_[count] - std::max<int64_t>(0, spans_[count - 1].second - at);
  }

  std::vector<std::pair<int64_t, int64_t>> spans_;
  std::vector<int64_t> before_;
};

/// Edits by call and work of a window. Empty vectors mean no change.
struct QueueModel::Changes {
  static constexpr uint8_t kUnwaited = 1;
  static constexpr uint8_t kRemoved = 2;
  std::vector<uint8_t> flags;   // of calls
  std::vector<double> factors;  // of work
  std::unordered_map<uint16_t, Saved> saved;

  Changes(const Queues& queues, const Window& window, std::pair<int64_t, int64_t> time, const QueueEdits& edits) {
    const auto flag = [&](std::span<const int64_t> rows, uint8_t bit) {
      for (const int64_t row : rows) {
        if (row < 0 || static_cast<std::size_t>(row) >= queues.call_of_row.size()) {
          continue;
        }
        const std::size_t call = queues.call_of_row[static_cast<std::size_t>(row)];
        if (call >= window.first_call && call < window.last_call) {
          flags.resize(window.last_call - window.first_call);
          flags[call - window.first_call] |= bit;
        }
      }
    };
    const auto scale = [&](std::span<const int64_t> rows, std::span<const double> by, const Rows<uint32_t>& works) {
      for (std::size_t at = 0; at < std::min(rows.size(), by.size()); ++at) {
        const auto row = static_cast<std::size_t>(rows[at]);  // negative rows become too large
        const std::size_t work = row < works.size() ? works[row] : kNone;
        if (work >= window.first_work && work < window.last_work && std::isfinite(by[at])) {
          factors.resize(window.last_work - window.first_work, 1.0);
          factors[work - window.first_work] *= std::clamp(by[at], 0.0, 1e6);
        }
      }
    };
    flag(edits.unwaited, kUnwaited);
    flag(edits.removed_calls, kRemoved);
    scale(edits.kernels, edits.kernel_factors, queues.work_of_kernel);
    scale(edits.copies, edits.copy_factors, queues.work_of_copy);
    for (std::size_t at = 0; at + 2 < edits.host_spans.size(); at += 3) {
      const int64_t thread = edits.host_spans[at];
      const int64_t start = queues.after_base(edits.host_spans[at + 1]);
      const int64_t end = queues.after_base(edits.host_spans[at + 2]);
      if (thread >= 0 && thread <= UINT16_MAX && start < time.second && end > time.first) {
        saved[static_cast<uint16_t>(thread)].add(start, end);
      }
    }
    for (auto& [thread, spans] : saved) {
      spans.finish();
    }
  }

  int64_t saved_between(uint16_t thread, int64_t start, int64_t end) const {
    const auto found = saved.find(thread);
    return found == saved.end() ? 0 : found->second.between(start, end);
  }
  /// For the piece before a call.
  int64_t saved_before(const Rows<Call>& calls, const Call& call) const {
    const int64_t from = call.start - call.piece;
    int64_t time = saved_between(call.thread, from, call.start);
    if (call.after != kNone && calls[call.after].thread != call.thread) {
      time += saved_between(calls[call.after].thread, from, call.start);
    }
    return std::clamp<int64_t>(time, 0, std::max<int64_t>(0, call.piece));
  }
  /// The remaining own time of a call.
  int64_t own(const Call& call) const {
    const int64_t length = call.end - call.start;
    const int64_t time = saved_between(call.thread, call.start, call.end);
    if (time <= 0 || length <= 0) {
      return call.own;
    }
    return static_cast<int64_t>(static_cast<double>(call.own) *
                                (1.0 - static_cast<double>(time) / static_cast<double>(length)));
  }
};

void QueueModel::take_out(const store::Store& store, const RecordingCosts& costs) {
  const auto known = [](int64_t cost) { return std::clamp<int64_t>(cost, 0, kMostCost); };
  const int64_t of_launch = known(costs.launch);
  const int64_t of_copy = known(costs.copy);
  const int64_t of_call = known(costs.call);
  const int64_t of_region = known(costs.region);
  Rows<int64_t> spent(queues_.calls.size());
  for (std::size_t at = 0; at < queues_.calls.size(); ++at) {
    spent[at] = queues_.calls[at].first_work < queues_.works_before(at + 1) ? of_launch : of_call;
  }
  for (const uint32_t work : queues_.work_of_copy) {
    if (work < queues_.works.size()) {
      spent[queues_.works[work].call] = of_copy;
    }
  }
  struct OfThread {
    const std::vector<uint32_t>* calls = nullptr;
    std::size_t next = 0;
  };
  std::unordered_map<uint16_t, OfThread> threads;
  OfThread* here = nullptr;
  for (std::size_t row = 0; of_region != 0 && row < store.region.size(); ++row) {
    const uint16_t thread = store.region.thread[row];
    if (here == nullptr || thread != store.region.thread[row - 1]) {
      here = &threads.try_emplace(thread, OfThread{.calls = calls_of(thread)}).first->second;
    }
    if (here->calls == nullptr) {
      continue;
    }
    const std::vector<uint32_t>& calls = *here->calls;
    std::size_t& next = here->next;
    const int64_t start = queues_.after_base(store.region.start_ns[row]);
    const auto is_before = [&](uint32_t call) { return queues_.calls[call].start < start; };
    for (int step = 0; step < kNear && next < calls.size() && is_before(calls[next]); ++step) {
      ++next;
    }
    for (int step = 0; step < kNear && next > 0 && !is_before(calls[next - 1]); ++step) {
      --next;
    }
    if ((next < calls.size() && is_before(calls[next])) || (next > 0 && !is_before(calls[next - 1]))) {
      next = static_cast<std::size_t>(std::partition_point(calls.begin(), calls.end(), is_before) - calls.begin());
    }
    if (next < calls.size()) {
      spent[calls[next]] += of_region;
    }
  }
  scales_.resize(queues_.calls.size());
  for (std::size_t at = 0; at < queues_.calls.size(); ++at) {
    const int64_t whole = queues_.calls[at].piece + queues_.calls[at].own;
    const double left = whole > 0 ? 1.0 - static_cast<double>(spent[at]) / static_cast<double>(whole) : 1.0;
    scales_[at] = static_cast<float>(std::clamp(left, kLeastLeft, 1.0));
  }
}

std::vector<std::size_t> QueueModel::calls_before(std::span<const int64_t> moments) const {
  std::vector<std::size_t> before;
  before.reserve(moments.size());
  for (const int64_t moment : moments) {
    const int64_t at = queues_.after_base(moment);
    const auto next = std::partition_point(queues_.calls.begin(), queues_.calls.end(),
                                           [at](const Call& call) { return call.start < at; });
    before.push_back(static_cast<std::size_t>(next - queues_.calls.begin()));
  }
  return before;
}

/// The replayed begin and end of calls and work of a window. Outside the window as recorded.
struct QueueModel::Times {
  Times(const Queues& queues, const Window& window)
      : queues_(queues),
        window_(window),
        starts(window.last_call - window.first_call),
        ends(starts.size()),
        begun(window.last_work - window.first_work),
        ended(begun.size()) {}

  bool has_call(std::size_t call) const { return call >= window_.first_call && call < window_.last_call; }
  int64_t start_of(std::size_t call) const {
    return has_call(call) ? starts[call - window_.first_call] : queues_.calls[call].start;
  }
  int64_t end_of(std::size_t call) const {
    return has_call(call) ? ends[call - window_.first_call] : queues_.calls[call].end;
  }
  // Of work before or in the window.
  int64_t begin_of_work(std::size_t work) const {
    return work >= window_.first_work ? begun[work - window_.first_work] : queues_.works[work].start;
  }
  int64_t end_of_work(std::size_t work) const {
    return work >= window_.first_work ? ended[work - window_.first_work] : queues_.works[work].end;
  }
  const Window& window() const { return window_; }

 private:
  const Queues& queues_;
  Window window_;

 public:
  std::vector<int64_t> starts;
  std::vector<int64_t> ends;
  std::vector<int64_t> begun;
  std::vector<int64_t> ended;
  std::vector<int64_t> done;  // end of the work launched before each moment
};

QueueModel::Window QueueModel::window(const std::vector<std::size_t>& before, std::optional<uint16_t> thread) const {
  if (before.empty()) {
    return {};
  }
  const auto [least, most] = std::minmax_element(before.begin(), before.end());
  std::size_t last = *most;
  // The thread's next call too: the time before it may depend on it.
  while (last < queues_.calls.size() && last < *most + kAhead && thread && queues_.calls[last].thread != *thread) {
    ++last;
  }
  last = std::min(last + 1, queues_.calls.size());
  return {.first_call = *least,
          .last_call = last,
          .first_work = queues_.works_before(*least),
          .last_work = queues_.works_before(last)};
}

void QueueModel::run(Times& times, const std::vector<std::size_t>& before, const Changes& changes) const {
  const Window& window = times.window();
  times.done.reserve(before.size());
  int64_t done = queues_.done[window.first_call];
  std::vector<int64_t> of_device(queues_.devices, done);
  std::size_t moment = 0;
  for (std::size_t at = window.first_call; at < window.last_call; ++at) {
    for (; moment < before.size() && before[moment] <= at; ++moment) {
      times.done.push_back(done);
    }
    const Call& call = queues_.calls[at];
    const uint8_t flags = changes.flags.empty() ? 0 : changes.flags[at - window.first_call];
    const bool removed = (flags & Changes::kRemoved) != 0;
    const bool waits = flags == 0;
    int64_t piece = call.piece;
    int64_t own = removed ? 0 : call.own;
    if (!changes.saved.empty()) {
      piece -= changes.saved_before(queues_.calls, call);
      own = removed ? 0 : changes.own(call);
    }
    piece = scaled(at, piece);
    own = scaled(at, own);
    const int64_t start = plus(call.after == kNone ? 0 : times.end_of(call.after), piece);
    int64_t end = plus(start, own);
    if (waits && call.queue_wait != kNone) {
      end = std::max(end, plus(times.begin_of_work(call.queue_wait), call.queue_wake));
    }
    for (std::size_t each = call.first_work; each < queues_.works_before(at + 1); ++each) {
      const Work& work = queues_.works[each];
      const std::size_t place = each - window.first_work;
      const double factor = changes.factors.empty() ? 1.0 : changes.factors[place];
      if (removed || factor == 0.0) {
        times.begun[place] = times.ended[place] = work.after == kNone ? start : times.end_of_work(work.after);
        continue;
      }
      int64_t from = std::max(start, plus(work.from_start ? start : end, work.latency));
      if (work.after != kNone) {
        from = std::max(from, plus(times.end_of_work(work.after), work.gap));
      }
      if (work.beside != kNone) {
        from = std::max(from, plus(times.begin_of_work(work.beside), work.start - queues_.works[work.beside].start));
      }
      if (work.held != kNone) {
        from = std::max(from, plus(times.end_of_work(work.held), queues_.held_gap));
      }
      int64_t length = work.end - work.start;
      if (factor != 1.0) {
        length =
            static_cast<int64_t>(std::min(static_cast<double>(length) * factor, static_cast<double>(Queues::kFar)));
      }
      times.begun[place] = from;
      times.ended[place] = plus(from, length);
      of_device[work.device] = std::max(of_device[work.device], times.ended[place]);
      done = std::max(done, times.ended[place]);
    }
    if (waits && call.wait != kNone) {
      end = std::max(end, plus(times.end_of_work(call.wait), call.wake));
    }
    if (waits && call.wait_device != 0) {
      end = std::max(end, plus(of_device[call.wait_device - 1U], call.wake));
    }
    times.starts[at - window.first_call] = start;
    times.ends[at - window.first_call] = end;
  }
  times.done.resize(before.size(), done);
}

/// Null for all threads.
const std::vector<uint32_t>* QueueModel::calls_of(std::optional<uint16_t> thread) const {
  const auto found = thread ? queues_.calls_of_thread.find(*thread) : queues_.calls_of_thread.end();
  return found == queues_.calls_of_thread.end() ? nullptr : &found->second;
}

/// The number of calls that have begun, of a thread or of all.
std::size_t QueueModel::calls_until(int64_t moment, const std::vector<uint32_t>* of_thread) const {
  const auto begun = [moment](const Call& call) { return call.start <= moment; };
  if (of_thread == nullptr) {
    return static_cast<std::size_t>(std::partition_point(queues_.calls.begin(), queues_.calls.end(), begun) -
                                    queues_.calls.begin());
  }
  const auto next = std::partition_point(of_thread->begin(), of_thread->end(),
                                         [&](uint32_t call) { return begun(queues_.calls[call]); });
  return static_cast<std::size_t>(next - of_thread->begin());
}

std::vector<int64_t> QueueModel::passed(std::span<const int64_t> moments, std::optional<uint16_t> thread,
                                        const Times& times, const Changes* changes) const {
  std::vector<int64_t> found;
  found.reserve(moments.size());
  const std::vector<uint32_t>* const of_thread = calls_of(thread);
  const std::size_t count = of_thread == nullptr ? queues_.calls.size() : of_thread->size();
  const auto call_at = [&](std::size_t at) -> std::size_t { return of_thread == nullptr ? at : (*of_thread)[at]; };
  for (std::size_t each = 0; each < moments.size(); ++each) {
    const int64_t moment = queues_.after_base(moments[each]);
    const std::size_t next = calls_until(moment, of_thread);
    // The remaining time before the next call.
    const auto remains = [&](const Call& call, int64_t start, int64_t end) {
      if (changes == nullptr) {
        return end - start;
      }
      const int64_t time = end - start - changes->saved_between(call.thread, start, end);
      return next != count ? scaled(call_at(next), time) : time;
    };
    // Keeps the recorded time before the next call.
    const auto before_next = [&] {
      const Call& call = queues_.calls[call_at(next)];
      return plus(times.start_of(call_at(next)), -remains(call, moment, call.start));
    };
    int64_t at = moment;
    if (next != 0) {
      const std::size_t row = call_at(next - 1);
      const Call& call = queues_.calls[row];
      if (moment < call.end) {
        at = plus(times.start_of(row), std::min(moment - call.start, times.end_of(row) - times.start_of(row)));
      } else if (next != count && queues_.calls[call_at(next)].after != row && times.has_call(call_at(next))) {
        at = std::max(times.end_of(row), before_next());  // it waited for another thread
      } else {
        at = plus(times.end_of(row), std::max<int64_t>(0, remains(call, call.end, moment)));
      }
    } else if (next != count && times.has_call(call_at(next))) {
      at = before_next();
    }
    found.push_back(std::max(at, times.done[each]));
  }
  return found;
}

std::vector<int64_t> QueueModel::recorded(std::span<const int64_t> moments, std::optional<uint16_t> thread) const {
  Times times(queues_, {});
  for (const std::size_t before : calls_before(moments)) {
    times.done.push_back(queues_.done[before]);
  }
  return passed(moments, thread, times, nullptr);
}

/// The time range in which a replay needs the saved time.
std::pair<int64_t, int64_t> QueueModel::asked_for(const Window& window, std::span<const int64_t> moments,
                                                  std::optional<uint16_t> thread) const {
  if (moments.empty()) {
    return {};
  }
  const std::vector<uint32_t>* const of_thread = calls_of(thread);
  int64_t first = queues_.after_base(moments.front());
  int64_t last = queues_.after_base(moments.back());
  if (const std::size_t begun = calls_until(first, of_thread); begun > 0) {
    first = std::min(first, queues_.calls[of_thread == nullptr ? begun - 1 : (*of_thread)[begun - 1]].end);
  }
  for (std::size_t at = window.first_call; at < window.last_call; ++at) {
    first = std::min(first, queues_.calls[at].start - queues_.calls[at].piece);
    last = std::max(last, queues_.calls[at].end);
  }
  return {first, last};
}

std::vector<int64_t> QueueModel::replayed(std::span<const int64_t> moments, std::optional<uint16_t> thread,
                                          const QueueEdits& edits) const {
  const std::vector<std::size_t> before = calls_before(moments);
  Times times(queues_, window(before, thread));
  const Changes changes(queues_, times.window(), asked_for(times.window(), moments, thread), edits);
  run(times, before, changes);
  return passed(moments, thread, times, &changes);
}

}  // namespace gpuscope::analysis
