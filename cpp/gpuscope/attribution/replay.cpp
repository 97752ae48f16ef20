// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/replay.h"

#include <algorithm>
#include <utility>

namespace gpuscope::attribution {
namespace {

using store::kNone;

/// Whether an event's word is the time.
constexpr bool has_time(base::Op op) noexcept {
  switch (op) {
    case base::Op::Enter:
    case base::Op::Exit:
    case base::Op::Mark:
    case base::Op::CallEnter:
    case base::Op::CallExit:
    case base::Op::Pop:
    case base::Op::RangeStart:
    case base::Op::RangeEnd:
    case base::Op::Allocation:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Replay::take(const base::Event& event) {
  if (static_cast<base::Op>(event.op) == base::Op::Argument) {
    has_arguments_ = true;
    return argument(event);
  }
  if (has_time(static_cast<base::Op>(event.op))) {
    last_ns_ = state_->clock.to_ns(event.word);
    if (!window_seen_ && state_->window.contains(last_ns_)) {
      open_window();
    }
  }
  if (next_strand_.has_value() && static_cast<base::Op>(event.op) != base::Op::Strand) {
    select_strand(*next_strand_);
    next_strand_.reset();
  }
  play(event);
  if (has_arguments_ && has_time(static_cast<base::Op>(event.op))) {
    arguments_.clear();
    has_arguments_ = false;
  }
}

void Replay::play(const base::Event& event) {
  const auto at = [&] { return last_ns_; };
  switch (static_cast<base::Op>(event.op)) {
    case base::Op::Enter:
      return enter(at(), event.id, event.detail);
    case base::Op::Exit:
      return exit(at(), event.id);
    case base::Op::Mark:
      return mark(at(), event.id);
    case base::Op::CallEnter:
      return call_enter(at(), event.id, event.detail);
    case base::Op::CallExit:
      return call_exit(at(), event.id, event.detail);
    case base::Op::Strand:
      next_strand_ = event.word;  // has no time of its own: the thread turned to it with the event that follows
      return;
    case base::Op::Node:
      return node(event.word, event.detail != 0);
    case base::Op::NodeOrigin:
      state_->node_origins.set(last_node_, event.word);
      return;
    case base::Op::GpuTime:
      return gpu_time(static_cast<uint32_t>(event.word), event.id);
    case base::Op::Pop:
      return pop(at(), event.detail);
    case base::Op::RangeStart:
      return range_start(at(), event.id, event.detail);
    case base::Op::RangeEnd:
      return range_end(at());
    case base::Op::Allocation:
      return allocation(at());
    case base::Op::Argument:
      return;  // taken above
  }
}

template <class F>
void Replay::each_open(F&& visit) {
  for (std::size_t strand = 0; strand < strands_.size(); ++strand) {
    for (std::size_t depth = 0; depth < strands_[strand].stack.size(); ++depth) {
      visit(strands_[strand].stack[depth], parent_of(strand, depth));
    }
  }
}

void Replay::open_window() {
  if (window_seen_) {
    return;
  }
  window_seen_ = true;
  if (lender_ != nullptr) {
    lender_->open_window();  // its regions are lent from here on, whether or not anything happens in it
  }
  const int64_t open_ns = state_->window.open_ns.load(std::memory_order_relaxed);
  bool shows_hidden = false;
  each_open([&](OpenRegion& region, OpenRegion* parent) {
    region.start_ns = std::max(region.start_ns, open_ns);
    region.child_ns = 0;
    shows_hidden |= std::exchange(region.is_hidden, false);  // each window begins with everything switched on
    if (shows_hidden) {
      region.path = path_of(region, parent != nullptr ? parent->path : kNone);
    }
    region.row = add_row(region, parent != nullptr ? parent->row : kNone);
    if (region.row != kNone) {
      state_->store->region.flags[region.row] |= store::kClipped;
    }
  });
  timeline_.clear();
  note_moment(open_ns);
}

void Replay::close_window(int64_t close_ns) {
  for (std::size_t strand = strands_.size(); strand-- > 0;) {
    for (std::size_t depth = strands_[strand].stack.size(); depth-- > 0;) {
      OpenRegion& region = strands_[strand].stack[depth];
      if (region.start_ns < close_ns && window_seen_) {
        close(region, close_ns, parent_of(strand, depth));
      }
      region.row = kNone;
    }
  }
  for (OpenCall& call : calls_) {
    if (call.row != kNone) {
      state_->store->api.duration_ns[call.row] = std::max<int64_t>(0, close_ns - call.start_ns);
    }
    call.row = kNone;
    call.in_window = false;
  }
  window_seen_ = false;
  timeline_.clear();
}

void Replay::apply(const Eviction& eviction) {
  each_open([&](OpenRegion& region, OpenRegion*) {
    region.row = eviction.region(region.row);
    if (region.row != kNone && !region.is_hidden) {
      region.start_ns = state_->store->region.start_ns[region.row];
    }
  });
  for (OpenCall& call : calls_) {
    call.row = eviction.api(call.row);
  }
  for (Moment& moment : timeline_) {
    moment.reference = eviction.region(moment.reference);
  }
}

uint32_t Replay::add_row(const OpenRegion& region, uint32_t parent_row) {
  if (!state_->keeps_rows()) {
    state_->counters.refused += state_->full;
    return kNone;
  }
  return state_->store->region.append({region.start_ns, 0, parent_row, region.path, thread_, store::kOpen});
}

uint32_t Replay::path_of(const OpenRegion& region, uint32_t parent_path) {
  Dictionaries& dictionaries = state_->dictionaries;
  const uint32_t domain = dictionaries.region_name(base::EnterDetail::domain(region.detail));
  return dictionaries.path(parent_path, dictionaries.region_name(region.name), base::EnterDetail::kind(region.detail),
                           domain);
}

void Replay::note_moment(int64_t at_ns) {
  if (!keeps_timeline_) {
    return;
  }
  const Place place = own_place();
  timeline_.push_back({at_ns, place.reference, place.path});
  if (timeline_.size() > kMaxTimeline) {
    timeline_.pop_front();
  }
}

Replay::OpenRegion* Replay::innermost(std::size_t strand) {
  // A task that has nothing open is inside whatever its thread had open when it turned to tasks.
  for (const std::size_t index : {strand, std::size_t{0}}) {
    if (!strands_[index].stack.empty()) {
      return &strands_[index].stack.back();
    }
  }
  return nullptr;
}

Replay::OpenRegion* Replay::parent_of(std::size_t strand, std::size_t depth) {
  if (depth > 0) {
    return &strands_[strand].stack[depth - 1];
  }
  return strand != 0 && !strands_[0].stack.empty() ? &strands_[0].stack.back() : nullptr;
}

Replay::Place Replay::own_place() const {
  const OpenRegion* region = const_cast<Replay*>(this)->innermost(current_);
  if (region == nullptr) {
    return {kNone, kNone};
  }
  return {state_->aggregates() ? region->path : region->row, region->path};
}

Replay::Place Replay::place_at(int64_t at_ns) const {
  Place place = own_place();
  if (keeps_timeline_ && !timeline_.empty() && at_ns < timeline_.back().at_ns) {
    const auto after = std::upper_bound(timeline_.begin(), timeline_.end(), at_ns,
                                        [](int64_t at, const Moment& moment) { return at < moment.at_ns; });
    place =
        after == timeline_.begin() ? Place{kNone, kNone} : Place{std::prev(after)->reference, std::prev(after)->path};
  }
  if (place.path == kNone && lender_ != nullptr) {
    place = lender_->place_at(at_ns);
  }
  return place;
}

void Replay::enter(int64_t at_ns, uint32_t name, uint32_t detail) {
  ++state_->counters.region_events;
  std::vector<OpenRegion>& stack = strands_[current_].stack;
  const auto [parent_row, parent_path] = parent_at(at_ns, detail);
  OpenRegion region{name, kNone, kNone, at_ns, 0, detail};
  region.is_hidden = state_->window.contains(at_ns) && !state_->window.keeps_regions(at_ns);
  region.path = region.is_hidden ? parent_path : path_of(region, parent_path);
  if (region.is_hidden) {
    region.row = parent_row;
  } else if (state_->window.contains(at_ns)) {
    region.row = add_row(region, parent_row);
    if (has_arguments_ && region.row != kNone) {
      add_details(region.row, region, parent_path);
    }
  }
  stack.push_back(region);
  note_moment(at_ns);
}

void Replay::close(OpenRegion& region, int64_t end_ns, OpenRegion* parent) {
  if (region.is_hidden) {
    if (parent != nullptr) {
      parent->child_ns += region.child_ns;
    }
    return;
  }
  const int64_t close_ns = state_->window.close_ns.load(std::memory_order_relaxed);
  const int64_t duration_ns = std::max<int64_t>(0, std::min(end_ns, close_ns) - region.start_ns);
  region.child_ns = std::min(region.child_ns, duration_ns);  // children may outlive a region that closes out of turn
  if (state_->aggregates()) {
    if (window_seen_ && region.start_ns < close_ns) {
      state_->totals.add_region(region.path, duration_ns, region.child_ns);
    }
  } else if (region.row != kNone) {
    state_->store->region.duration_ns[region.row] = duration_ns;
  }
  if (parent != nullptr) {
    parent->child_ns += duration_ns;
  }
}

bool Replay::close_in(std::size_t strand, int64_t at_ns, uint32_t name) {
  std::vector<OpenRegion>& stack = strands_[strand].stack;
  for (std::size_t depth = stack.size(); depth-- > 0;) {
    if (stack[depth].name == name && (stack[depth].detail & base::EnterDetail::kPopped) == 0) {
      close_at(strand, depth, at_ns);
      return true;
    }
  }
  return false;
}

void Replay::close_at(std::size_t strand, std::size_t depth, int64_t at_ns) {
  std::vector<OpenRegion>& stack = strands_[strand].stack;
  close(stack[depth], at_ns, parent_of(strand, depth));
  if (const uint32_t row = stack[depth].row; row != kNone && !stack[depth].is_hidden) {
    state_->store->region.flags[row] &= static_cast<uint16_t>(~store::kOpen);
  }
  stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(depth));
}

void Replay::exit(int64_t at_ns, uint32_t name) {
  ++state_->counters.region_events;
  // A task may be finished from another one, as asynchronous generators are.
  bool closed = close_in(current_, at_ns, name);
  for (std::size_t other = 0; !closed && other < strands_.size(); ++other) {
    closed = close_in(other, at_ns, name);
  }
  if (!closed && state_->window.contains(at_ns)) {
    ++state_->counters.unmatched_exits;
  }
  note_moment(at_ns);
}

void Replay::gpu_time(uint32_t pair, uint32_t name) {
  const std::vector<OpenRegion>& stack = strands_[current_].stack;
  const auto region =
      std::find_if(stack.rbegin(), stack.rend(), [name](const OpenRegion& open) { return open.name == name; });
  const bool kept =
      region != stack.rend() && window_seen_ && !region->is_hidden && !state_->window.gpu.off_at(region->start_ns);
  state_->gpu_spans.push_back({pair, kept ? region->row : kNone, kept ? region->path : kNone});
}

void Replay::mark(int64_t at_ns, uint32_t name) {
  note_moment(at_ns);  // it may be the first that is heard of another task
  if (state_->aggregates() || !state_->window.keeps_regions(at_ns)) {
    return;
  }
  if (state_->full) {
    ++state_->counters.refused;
    return;
  }
  state_->store->mark.append({at_ns, state_->dictionaries.region_name(name), own_place().reference, thread_, 0});
}

void Replay::select_strand(uint64_t key) {
  if (strands_[0].key == 0) {
    strands_[0].key = key;  // the first one seen is what the thread did before it turned to tasks
  }
  for (std::size_t index = 0; index < strands_.size(); ++index) {
    if (strands_[index].key == key) {
      current_ = index;
      return;
    }
  }
  // Reuse a task that has nothing open, so that a server's millions of tasks cost nothing.
  for (std::size_t index = 1; index < strands_.size(); ++index) {
    if (strands_[index].stack.empty()) {
      strands_[index].key = key;
      current_ = index;
      return;
    }
  }
  strands_.push_back({key, {}});
  current_ = strands_.size() - 1;
}

}  // namespace gpuscope::attribution
