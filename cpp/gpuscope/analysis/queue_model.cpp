// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/queue_model.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace gpuscope::analysis {
namespace {

// No sum leads further, so that the next does not overflow.
constexpr int64_t kLast = int64_t{1} << 61;

int64_t plus(int64_t a, int64_t b) { return std::clamp(a + b, -kLast, kLast); }

/// The time of one thread that is no longer spent, as spans in order that do not touch.
class Saved {
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

}  // namespace

/// Edits by call and work; empty vectors where nothing of the kind changes.
struct QueueModel::Changes {
  static constexpr uint8_t kUnwaited = 1;
  static constexpr uint8_t kRemoved = 2;
  std::vector<uint8_t> flags;   // of calls
  std::vector<double> factors;  // of work
  std::unordered_map<uint16_t, Saved> saved;

  Changes() = default;
  Changes(const QueueModel& model, const QueueEdits& edits) {
    const auto flag = [&](std::span<const int64_t> rows, uint8_t bit) {
      for (const int64_t row : rows) {
        if (row >= 0 && static_cast<std::size_t>(row) < model.call_of_row_.size()) {
          flags.resize(model.calls_.size());
          flags[model.call_of_row_[static_cast<std::size_t>(row)]] |= bit;
        }
      }
    };
    const auto scale = [&](std::span<const int64_t> rows, std::span<const double> by,
                           const std::vector<uint32_t>& works) {
      for (std::size_t at = 0; at < std::min(rows.size(), by.size()); ++at) {
        const auto row = static_cast<std::size_t>(rows[at]);  // below 0 is far above them all
        if (row < works.size() && works[row] != kNone && std::isfinite(by[at])) {
          factors.resize(model.works_.size(), 1.0);
          factors[works[row]] *= std::clamp(by[at], 0.0, 1e6);
        }
      }
    };
    flag(edits.unwaited, kUnwaited);
    flag(edits.removed_calls, kRemoved);
    scale(edits.kernels, edits.kernel_factors, model.work_of_kernel_);
    scale(edits.copies, edits.copy_factors, model.work_of_copy_);
    for (const QueueEdits::Span& span : edits.host_spans) {
      if (span.thread >= 0 && span.thread <= UINT16_MAX) {
        saved[static_cast<uint16_t>(span.thread)].add(model.after_base(span.start_ns), model.after_base(span.end_ns));
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
  /// Of the piece before a call.
  int64_t saved_before(const std::vector<Call>& calls, const Call& call) const {
    const int64_t from = call.start - call.piece;
    int64_t time = saved_between(call.thread, from, call.start);
    if (call.after != kNone && calls[call.after].thread != call.thread) {
      time += saved_between(calls[call.after].thread, from, call.start);
    }
    return std::clamp<int64_t>(time, 0, std::max<int64_t>(0, call.piece));
  }
  /// What remains of the time that a call itself takes.
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

int64_t QueueModel::after_base(int64_t time_ns) const noexcept {
  const auto distance = [](int64_t from, int64_t to) {
    return static_cast<int64_t>(std::min(static_cast<uint64_t>(to) - static_cast<uint64_t>(from), uint64_t{kFar}));
  };
  return time_ns >= base_ ? distance(base_, time_ns) : -distance(time_ns, base_);
}

std::vector<std::size_t> QueueModel::calls_before(std::span<const int64_t> moments) const {
  std::vector<std::size_t> before;
  before.reserve(moments.size());
  for (const int64_t moment : moments) {
    const int64_t at = after_base(moment);
    const auto next =
        std::partition_point(calls_.begin(), calls_.end(), [at](const Call& call) { return call.start < at; });
    before.push_back(static_cast<std::size_t>(next - calls_.begin()));
  }
  return before;
}

QueueModel::Times QueueModel::run(const std::vector<std::size_t>& before, const Changes& changes) const {
  Times times;
  times.starts.resize(calls_.size());
  times.ends.resize(calls_.size());
  times.done.reserve(before.size());
  std::vector<int64_t> begun(works_.size());
  std::vector<int64_t> ended(works_.size());
  std::vector<int64_t> of_device(devices_, -kLast);
  int64_t done = -kLast;
  std::size_t moment = 0;
  for (std::size_t at = 0; at < calls_.size(); ++at) {
    for (; moment < before.size() && before[moment] <= at; ++moment) {
      times.done.push_back(done);
    }
    const Call& call = calls_[at];
    const uint8_t flags = changes.flags.empty() ? 0 : changes.flags[at];
    const bool removed = (flags & Changes::kRemoved) != 0;
    const bool waits = flags == 0;
    int64_t piece = call.piece;
    int64_t own = removed ? 0 : call.own;
    if (!changes.saved.empty()) {
      piece -= changes.saved_before(calls_, call);
      own = removed ? 0 : changes.own(call);
    }
    const int64_t start = plus(call.after == kNone ? 0 : times.ends[call.after], piece);
    int64_t end = plus(start, own);
    if (waits && call.queue_wait != kNone) {
      end = std::max(end, plus(begun[call.queue_wait], call.queue_wake));
    }
    const std::size_t last = at + 1 < calls_.size() ? calls_[at + 1].first_work : works_.size();
    for (std::size_t each = call.first_work; each < last; ++each) {
      const Work& work = works_[each];
      const double factor = changes.factors.empty() ? 1.0 : changes.factors[each];
      if (removed || factor == 0.0) {
        begun[each] = ended[each] = work.after == kNone ? start : ended[work.after];
        continue;
      }
      int64_t from = std::max(start, plus(work.from_start ? start : end, work.latency));
      if (work.after != kNone) {
        from = std::max(from, plus(ended[work.after], work.gap));
      }
      if (work.beside != kNone) {
        from = std::max(from, plus(begun[work.beside], work.start - works_[work.beside].start));
      }
      if (work.held != kNone) {
        from = std::max(from, plus(ended[work.held], held_gap_));
      }
      const auto length = work.end - work.start;
      begun[each] = from;
      ended[each] = plus(
          from, factor == 1.0 ? length : static_cast<int64_t>(std::min(static_cast<double>(length) * factor, 1e18)));
      of_device[work.device] = std::max(of_device[work.device], ended[each]);
      done = std::max(done, ended[each]);
    }
    if (waits && call.wait != kNone) {
      end = std::max(end, plus(ended[call.wait], call.wake));
    }
    if (waits && call.wait_device != 0) {
      end = std::max(end, plus(of_device[call.wait_device - 1U], call.wake));
    }
    times.starts[at] = start;
    times.ends[at] = end;
  }
  times.done.resize(before.size(), done);
  return times;
}

std::vector<int64_t> QueueModel::passed(std::span<const int64_t> moments, std::optional<uint16_t> thread,
                                        const Times& times, const Changes* changes) const {
  std::vector<uint32_t> rows;
  for (uint32_t at = 0; at < calls_.size(); ++at) {
    if (!thread || calls_[at].thread == *thread) {
      rows.push_back(at);
    }
  }
  if (rows.empty() && thread) {  // it never called
    return passed(moments, std::nullopt, times, changes);
  }
  std::vector<int64_t> found;
  found.reserve(moments.size());
  for (std::size_t each = 0; each < moments.size(); ++each) {
    const int64_t moment = after_base(moments[each]);
    const auto next =
        std::partition_point(rows.begin(), rows.end(), [&](uint32_t row) { return calls_[row].start <= moment; });
    const auto saved = [&](uint32_t row, int64_t start, int64_t end) {
      return changes == nullptr ? 0 : changes->saved_between(calls_[row].thread, start, end);
    };
    // Before the next call, as long as it was recorded to be.
    const auto before_next = [&] {
      return plus(times.starts[*next], -(calls_[*next].start - moment - saved(*next, moment, calls_[*next].start)));
    };
    int64_t at = moment;
    if (next != rows.begin()) {
      const uint32_t row = *(next - 1);
      const Call& call = calls_[row];
      if (moment < call.end) {
        at = plus(times.starts[row], std::min(moment - call.start, times.ends[row] - times.starts[row]));
      } else if (next != rows.end() && calls_[*next].after != row) {  // it waited for another thread
        at = std::max(times.ends[row], before_next());
      } else {
        at = plus(times.ends[row], std::max<int64_t>(0, moment - call.end - saved(row, call.end, moment)));
      }
    } else if (next != rows.end()) {
      at = before_next();
    }
    found.push_back(std::max(at, times.done[each]));
  }
  return found;
}

std::vector<int64_t> QueueModel::recorded(std::span<const int64_t> moments, std::optional<uint16_t> thread) const {
  Times times;
  times.starts.reserve(calls_.size());
  times.ends.reserve(calls_.size());
  for (const Call& call : calls_) {
    times.starts.push_back(call.start);
    times.ends.push_back(call.end);
  }
  int64_t done = -kLast;
  std::size_t work = 0;
  for (const std::size_t before : calls_before(moments)) {
    const std::size_t last = before < calls_.size() ? calls_[before].first_work : works_.size();
    for (; work < last; ++work) {
      done = std::max(done, works_[work].end);
    }
    times.done.push_back(done);
  }
  return passed(moments, thread, times, nullptr);
}

std::vector<int64_t> QueueModel::replayed(std::span<const int64_t> moments, std::optional<uint16_t> thread,
                                          const QueueEdits& edits) const {
  const Changes changes(*this, edits);
  return passed(moments, thread, run(calls_before(moments), changes), &changes);
}

int64_t QueueModel::waited_ns(std::size_t row) const noexcept {
  if (row >= call_of_row_.size()) {
    return 0;
  }
  const Call& call = calls_[call_of_row_[row]];
  return call.end - call.start - call.own;
}

int64_t QueueModel::launched_ns(std::size_t row) const noexcept {
  if (row >= call_of_row_.size()) {
    return 0;
  }
  const std::size_t at = call_of_row_[row];
  const std::size_t last = at + 1 < calls_.size() ? calls_[at + 1].first_work : works_.size();
  int64_t sum = 0;
  for (std::size_t each = calls_[at].first_work; each < last; ++each) {
    sum = plus(sum, works_[each].end - works_[each].start);
  }
  return sum;
}

}  // namespace gpuscope::analysis
