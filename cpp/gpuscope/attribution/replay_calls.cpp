// SPDX-License-Identifier: Apache-2.0
// Replays driver calls and graph nodes of a thread's events.
#include <algorithm>
#include <cstdint>

#include "gpuscope/attribution/replay.h"

namespace gpuscope::attribution {
namespace {

using store::kNone;

// Bounds the memory of programs that capture graphs without end.
constexpr std::size_t kMaxNodes = std::size_t{1} << 20;

Correlations::Awaits awaits(store::CallKind kind) {
  switch (kind) {
    case store::CallKind::Launch:
      return Correlations::Awaits::Kernel;
    case store::CallKind::Memcpy:
    case store::CallKind::Memset:
      return Correlations::Awaits::Copy;
    case store::CallKind::GraphLaunch:
      return Correlations::Awaits::Graph;
    default:
      return Correlations::Awaits::Nothing;
  }
}

}  // namespace

void Replay::count(Correlations::Awaits awaited, int calls) {
  Counters& counters = state_->counters;
  counters.launches += awaited == Correlations::Awaits::Kernel ? calls : 0;
  counters.copies += awaited == Correlations::Awaits::Copy ? calls : 0;
  counters.graph_launches += awaited == Correlations::Awaits::Graph ? calls : 0;
}

void Replay::call_enter(int64_t at_ns, uint32_t correlation, uint32_t callback) {
  const activity::DriverCall* what = activity::find_call(callback);
  OpenCall call{callback, correlation, kNone, kNone, at_ns, state_->window.keeps_calls(at_ns), false};
  if (!call.in_window || what == nullptr) {
    state_->correlations.set(correlation, Correlations::kOutside, Correlations::Awaits::Nothing);
    state_->counters.later_calls += at_ns >= state_->window.close_ns.load(std::memory_order_relaxed);
  } else {
    ++state_->counters.callbacks;
    state_->counters.refused += state_->full;
    const Place place = place_at(at_ns);
    call.path = place.path;
    const Correlations::Awaits awaited = awaits(what->kind);
    count(awaited, 1);  // counted now: the call may still run when the window ends
    state_->correlations.set(correlation, Correlations::encode(place.reference), awaited);
    if (state_->keeps_rows() && !state_->settings.no_calls) {
      const uint16_t id = state_->dictionaries.call(what->name, what->kind, false, 0, callback);
      call.row = state_->store->api.append({at_ns, 0, correlation, place.reference, id, thread_});
      if (has_arguments_ && arguments_.stack() != 0) {
        state_->store->call_stack.append({call.row, state_->dictionaries.stack(arguments_.stack())});
      }
    }
  }
  calls_.push_back(call);
}

void Replay::call_exit(int64_t at_ns, uint32_t result, uint32_t callback) {
  // A call that began before the recording has no enter.
  if (calls_.empty() || calls_.back().callback != callback) {
    return;
  }
  const OpenCall call = calls_.back();
  calls_.pop_back();
  const activity::DriverCall* what = activity::find_call(callback);
  if (!call.in_window || what == nullptr) {
    return;
  }
  if (result != 0 || call.captured) {
    state_->correlations.take(call.correlation);
    count(awaits(what->kind), -1);
  }
  const int64_t duration_ns = std::max<int64_t>(0, at_ns - call.start_ns);
  if (state_->settings.no_calls) {
    return;
  }
  if (state_->aggregates()) {
    state_->totals.add_work(call.path, store::Work::Call, state_->dictionaries.string(what->name), duration_ns);
    const std::optional<OpenPlace> place = shown_below(current_, strands_[current_].stack.size());
    if (OpenRegion* region = place.has_value() ? find_open(*place) : nullptr;
        region != nullptr && !region->is_covered) {
      const int64_t close_ns = state_->window.close_ns.load(std::memory_order_relaxed);
      region->child_ns += std::max<int64_t>(0, std::min(at_ns, close_ns) - call.start_ns);
    }
  } else if (call.row != kNone) {
    state_->store->api.duration_ns[call.row] = duration_ns;
    if (result != 0 || call.captured) {
      state_->store->api.call[call.row] =
          state_->dictionaries.call(what->name, what->kind, call.captured, static_cast<int32_t>(result), callback);
    }
  }
}

bool Replay::has_open_launches() const {
  return std::ranges::any_of(calls_, [](const OpenCall& call) {
    const activity::DriverCall* what = call.in_window ? activity::find_call(call.callback) : nullptr;
    return what != nullptr && awaits(what->kind) != Correlations::Awaits::Nothing;
  });
}

void Replay::take_call(const activity::DriverCall& what, int64_t start_ns, int64_t end_ns, uint32_t correlation,
                       uint32_t result) {
  if (!window_seen_ && state_->window.contains(start_ns)) {
    open_window();
  }
  call_enter(start_ns, correlation, what.callback);
  call_exit(end_ns, result, what.callback);
}

void Replay::node(uint64_t id, bool cloned) {
  last_node_ = id;
  if (state_->node_paths.size() + state_->node_origins.size() >= kMaxNodes) {
    state_->node_paths.clear();
    state_->node_origins.clear();
  }
  if (cloned) {
    return;  // its origin follows
  }
  const int64_t now_ns = calls_.empty() ? INT64_MAX : calls_.back().start_ns;
  state_->node_paths.set(id, place_at(now_ns).path);
  if (!calls_.empty()) {
    calls_.back().captured = true;
  }
}

}  // namespace gpuscope::attribution
