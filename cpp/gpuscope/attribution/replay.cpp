// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/replay.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gpuscope::attribution {

using base::Argument;
using base::EnterDetail;
using base::FunctionDetail;
using base::has_time;
using base::Op;
using store::kNone;

void Replay::take(const base::Event& event) {
  const auto op = static_cast<Op>(event.op);
  if (op == Op::Argument) {
    has_arguments_ = true;
    return argument(event);
  }
  if (op == Op::FunctionEnter || op == Op::FunctionExit) {  // may come between an event and its arguments
    last_ns_ = state_->clock.to_ns(event.word);
    return op == Op::FunctionEnter ? function_enter(last_ns_, event.id, event.detail)
                                   : function_exit(last_ns_, event.detail);
  }
  const bool timed = has_time(op);
  if (timed) {
    last_ns_ = state_->clock.to_ns(event.word);
    if (!window_seen_ && state_->window.contains(last_ns_)) {
      open_window();
    }
  }
  // These have no time. They belong to the event that follows.
  if (op == Op::Strand) {
    next_strand_ = event;
    return;
  }
  if (op == Op::Origin) {
    next_origin_ = event.id;
    return;
  }
  if (next_strand_.has_value()) {
    select_strand(*next_strand_);
    next_strand_.reset();
  }
  if (next_origin_.has_value()) {
    renew_origin(*next_origin_);
    next_origin_.reset();
  }
  play(event);
  if (has_arguments_ && timed) {
    arguments_.clear();
    has_arguments_ = false;
  }
}

void Replay::play(const base::Event& event) {
  switch (static_cast<Op>(event.op)) {
    case Op::Enter:
      return enter(last_ns_, event.id, event.detail);
    case Op::Exit:
      return exit(last_ns_, event.id, event.detail);
    case Op::Mark:
      return mark(last_ns_, event.id);
    case Op::CallEnter:
      return call_enter(last_ns_, event.id, event.detail);
    case Op::CallExit:
      return call_exit(last_ns_, event.id, event.detail);
    case Op::Node:
      return node(event.word, event.detail != 0);
    case Op::NodeOrigin:
      state_->node_origins.set(last_node_, event.word);
      return;
    case Op::GpuTime:
      return gpu_time(static_cast<uint32_t>(event.word), event.id);
    case Op::Pop:
      return pop(last_ns_, event.detail);
    case Op::RangeStart:
      return range_start(last_ns_, event.id, event.detail);
    case Op::RangeEnd:
      return range_end(last_ns_);
    case Op::Allocation:
      return allocation(last_ns_, event.detail != 0);
    case Op::Argument:
    case Op::FunctionEnter:
    case Op::FunctionExit:
    case Op::Strand:
    case Op::Origin:
      return;  // taken above
  }
}

template <class F>
void Replay::each_open(F&& visit) {
  for (Strand& strand : strands_) {
    std::ranges::for_each(strand.stack, visit);
  }
}

std::vector<std::size_t> Replay::strands_by_age() const {
  std::vector<std::size_t> order(strands_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin() + 1, order.end(),
            [this](std::size_t one, std::size_t other) { return strands_[one].number < strands_[other].number; });
  return order;
}

void Replay::open_window() {
  if (window_seen_) {
    return;
  }
  window_seen_ = true;
  if (parent_thread_ != nullptr) {
    parent_thread_->open_window();  // its regions are inherited from here on, even if it logs nothing
  }
  const int64_t open_ns = state_->window.open_ns.load(std::memory_order_relaxed);
  bool shows_hidden = false;
  for (const std::size_t strand : strands_by_age()) {
    Parent parent = place_outside(strand);
    for (OpenRegion& region : strands_[strand].stack) {
      region.start_ns = std::max(region.start_ns, open_ns);
      region.child_ns = region.is_covered ? -open_ns : 0;
      shows_hidden |= std::exchange(region.is_hidden, false);  // each window begins with everything switched on
      if (shows_hidden) {
        region.path = path_of(region, parent.path);
      }
      region.row = add_row(region, parent.row);
      if (region.row != kNone) {
        state_->store->region.flags[region.row] |= store::kClipped;
      }
      begin_part(region);
      parent = {region.row, region.path};
    }
    settle(strand, open_ns, true);
  }
  timeline_.clear();
  note_moment(open_ns);
}

void Replay::close_window(int64_t close_ns) {
  const std::vector<std::size_t> order = strands_by_age();
  for (auto strand = order.rbegin(); strand != order.rend(); ++strand) {
    for (std::size_t depth = strands_[*strand].stack.size(); depth-- > 0;) {
      OpenRegion& region = strands_[*strand].stack[depth];
      if (region.start_ns < close_ns && window_seen_) {
        close(region, close_ns, false);
      }
      region.row = kNone;
    }
  }
  close_functions(0, close_ns);
  for (Strand& strand : strands_) {
    if (strand.place.has_value()) {
      strand.place->row = kNone;
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

void Replay::end_thread() {
  for (std::size_t strand = 0; strand < strands_.size(); ++strand) {
    settle_origin(strand);  // while their rows are known
  }
  close_window(last_ns_);
}

void Replay::measure_open(int64_t at_ns, std::vector<uint32_t>& calls) {
  store::Store& store = *state_->store;
  each_open([&](const OpenRegion& region) {
    if (region.row != kNone && !region.is_hidden) {
      store.region.duration_ns[region.row] = std::max<int64_t>(0, at_ns - region.start_ns);
    }
  });
  for (const OpenFunction& function : functions_) {
    if (function.row != kNone) {
      store.python_function.duration_ns[function.row] = std::max<int64_t>(0, at_ns - function.start_ns);
    }
  }
  for (const OpenCall& call : calls_) {
    if (call.row != kNone) {
      store.api.duration_ns[call.row] = std::max<int64_t>(0, at_ns - call.start_ns);
      calls.push_back(call.row);
    }
  }
}

void Replay::apply(const Eviction& eviction) {
  each_open([&](OpenRegion& region) {
    region.row = eviction.region(region.row);
    if (region.row != kNone && !region.is_hidden) {
      region.start_ns = state_->store->region.start_ns[region.row];
    }
  });
  for (Strand& strand : strands_) {
    if (strand.place.has_value()) {
      strand.place->row = eviction.region(strand.place->row);
    }
  }
  for (OpenCall& call : calls_) {
    call.row = eviction.api(call.row);
  }
  for (Moment& moment : timeline_) {
    moment.reference = eviction.region(moment.reference);
  }
  for (OpenFunction& function : functions_) {
    function.row = eviction[store::Target::PythonFunctions].renumber(function.row);
    if (function.row != kNone) {
      function.start_ns = state_->store->python_function.start_ns[function.row];
    }
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
  const uint32_t domain = dictionaries.region_name(EnterDetail::domain(region.detail));
  return dictionaries.path(parent_path, region.name, EnterDetail::kind(region.detail), domain);
}

void Replay::count_unnamed(uint32_t string) noexcept {
  state_->counters.unnamed += state_->dictionaries.is_unnamed(string);
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

// -- places -----------------------------------------------------------------------------------------------------------

Replay::Innermost Replay::innermost_region() const noexcept {
  const std::vector<OpenRegion>& stack = strands_[current_].stack;
  const auto found = std::find_if(stack.rbegin(), stack.rend(), [](const OpenRegion& region) {
    return EnterDetail::kind(region.detail) != base::RegionKind::Op && !region.is_hidden;
  });
  return found != stack.rend() ? Innermost{true, found->name, found->start_ns} : Innermost{};
}

Replay::Parent Replay::parent_in(std::size_t strand, std::size_t depth) {
  const std::vector<OpenRegion>& stack = strands_[strand].stack;
  return depth == 0 ? place_outside(strand) : Parent{stack[depth - 1].row, stack[depth - 1].path};
}

Replay::Place Replay::own_place() const {
  auto* self = const_cast<Replay*>(this);
  const Parent place = self->own_parent();
  uint32_t path = place.path;
  if (has_outlasting_) {
    const std::optional<OpenPlace> inside = self->outlasting_below(strands_[current_].stack.size());
    path = inside.has_value() ? self->work_path(*inside) : path;  // also looked up where rows are added up
  }
  return {state_->aggregates() ? path : place.row, place.path};
}

Replay::Place Replay::place_at(int64_t at_ns) const {
  Place place = own_place();
  if (keeps_timeline_ && !timeline_.empty() && at_ns < timeline_.back().at_ns) {
    const auto after = std::upper_bound(timeline_.begin(), timeline_.end(), at_ns,
                                        [](int64_t at, const Moment& moment) { return at < moment.at_ns; });
    place =
        after == timeline_.begin() ? Place{kNone, kNone} : Place{std::prev(after)->reference, std::prev(after)->path};
  }
  if (place.path == kNone && parent_thread_ != nullptr) {
    place = parent_thread_->place_at(at_ns);
  }
  return place;
}

// -- regions ----------------------------------------------------------------------------------------------------------

Replay::Parent Replay::parent_at(int64_t at_ns, uint32_t detail, std::size_t depth) {
  if (const Parent parent = parent_in(current_, depth); parent.path != kNone) {
    return parent;
  }
  // Operators on a thread without open regions (autograd's threads) belong to the region that waits for them. This
  // region is never an operator, as other operators run concurrently.
  if (parent_thread_ != nullptr && (detail & EnterDetail::kPopped) != 0) {
    const Place place = parent_thread_->place_at(at_ns);
    Parent parent{state_->aggregates() ? kNone : place.reference, place.path};
    while (parent.path != kNone && state_->dictionaries.path_kind(parent.path) == base::RegionKind::Op) {
      parent.path = state_->dictionaries.path_parent(parent.path);
      parent.row = parent.row != kNone ? state_->store->region.parent[parent.row] : kNone;
    }
    return parent;
  }
  return {kNone, kNone};
}

void Replay::enter(int64_t at_ns, uint32_t name, uint32_t detail) {
  ++state_->counters.region_events;
  std::vector<OpenRegion>& stack = strands_[current_].stack;
  const std::size_t depth = depth_of(EnterDetail::call(detail));
  const auto [parent_row, parent_path] = parent_at(at_ns, detail, depth);
  OpenRegion region{state_->dictionaries.region_name(name), name, kNone, kNone, at_ns, 0, detail};
  region.number = ++regions_opened_;
  if (region.call = EnterDetail::call(detail); region.call != 0) {
    region.detail = EnterDetail::make(EnterDetail::kind(detail));
  }
  region.is_hidden = state_->window.contains(at_ns) && !state_->window.keeps_regions(at_ns);
  region.path = region.is_hidden ? parent_path : path_of(region, parent_path);
  region.outlasts = has_outlasting_ && outlasting_below(depth).has_value();
  if (region.is_hidden) {
    region.row = parent_row;
  } else if (state_->window.contains(at_ns)) {
    region.row = add_row(region, parent_row);
    if (region.row != kNone) {
      count_unnamed(state_->dictionaries.path_name(region.path));
      if (has_arguments_) {
        add_details(region.row, region, parent_path);
      }
    }
    begin_part(region);
  }
  if (has_arguments_) {
    note_collective(at_ns, region.name, region.is_hidden ? kNone : region.row);
  }
  stack.insert(stack.begin() + static_cast<std::ptrdiff_t>(depth), region);
  settle(current_, at_ns, region.call != 0);
  note_moment(at_ns);
}

/// The stack position for a new region. A resumed call surrounds the regions that were open in it when it was
/// suspended: these move to the top.
std::size_t Replay::depth_of(uint32_t call) {
  std::vector<OpenRegion>& stack = strands_[current_].stack;
  if (call == 0) {
    return stack.size();
  }
  const auto around = [call](const OpenRegion& region) { return region.inside != call; };
  const auto first = std::stable_partition(stack.begin(), stack.end(), around);
  std::for_each(first, stack.end(), [](OpenRegion& region) { region.inside = 0; });
  return static_cast<std::size_t>(first - stack.begin());
}

/// A call begins, or continues after a suspension.
void Replay::begin_part(OpenRegion& region) {
  if (region.call == 0) {
    return;
  }
  const auto [entry, is_new] = state_->calls.try_emplace(region.call);
  CallInParts& call = entry->second;
  if (is_new || call.name != region.name) {
    call = {.name = region.name, .path = region.path};
  } else if (!call.is_running) {
    const int64_t suspended_ns = std::max<int64_t>(0, region.start_ns - call.ended_ns);
    call.suspended_ns += suspended_ns;
    state_->note_suspension(call, suspended_ns);
  }
  call.is_running = true;
  if (region.row != kNone) {
    call.first = call.first != kNone ? call.first : region.row;
    call.last = region.row;
    state_->store->resumption.append({0, region.row, call.first});
  }
}

void Replay::end_part(const OpenRegion& region, int64_t end_ns, int64_t duration_ns, int64_t child_ns, bool ends_call) {
  const auto found = state_->calls.find(region.call);
  if (found == state_->calls.end()) {
    return;
  }
  CallInParts& call = found->second;
  call.ended_ns = end_ns;
  call.is_running = false;
  call.ran_ns += duration_ns;
  call.child_ns += child_ns;
  if (ends_call) {
    if (state_->aggregates()) {
      state_->add_total(call.path, call.ran_ns, call.child_ns, call.suspended_ns);
    }
    state_->calls.erase(found);
  }
}

void Replay::close(OpenRegion& region, int64_t end_ns, bool ends_call) {
  if (region.is_hidden) {
    return;
  }
  const int64_t close_ns = state_->window.close_ns.load(std::memory_order_relaxed);
  end_ns = std::min(end_ns, close_ns);
  const int64_t duration_ns = std::max<int64_t>(0, end_ns - region.start_ns);
  const int64_t child_ns = std::clamp<int64_t>(region.child_ns + (region.is_covered ? end_ns : 0), 0, duration_ns);
  const bool in_window = window_seen_ && region.start_ns < close_ns;
  if (region.call != 0 && in_window) {
    end_part(region, end_ns, duration_ns, child_ns, ends_call);
  }
  if (region.row != kNone) {
    state_->store->region.duration_ns[region.row] = duration_ns;
  } else if (state_->aggregates() && region.call == 0 && in_window) {
    state_->add_total(region.path, duration_ns, child_ns);
  }
}

void Replay::close_at(std::size_t strand, std::size_t depth, int64_t at_ns, bool ends_call) {
  std::vector<OpenRegion>& stack = strands_[strand].stack;
  OpenRegion& closed = stack[depth];
  add_results(closed.row);
  close(closed, at_ns, ends_call);
  if (closed.row != kNone && !closed.is_hidden) {
    state_->store->region.flags[closed.row] &= static_cast<uint16_t>(~store::kOpen);
  }
  if (depth + 1 < stack.size() || closed.tasks != 0) [[unlikely]] {
    leave(strand, depth, at_ns, ends_call);
  }
  stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(depth));
  settle(strand, at_ns);
  if (stack.empty()) {
    offer_strand(strand);
  }
}

template <class F>
bool Replay::close_in(std::size_t strand, int64_t at_ns, bool ends_call, F&& matches) {
  const std::vector<OpenRegion>& stack = strands_[strand].stack;
  for (std::size_t depth = stack.size(); depth-- > 0;) {
    if (matches(stack[depth])) {
      close_at(strand, depth, at_ns, ends_call);
      return true;
    }
  }
  return false;
}

template <class F>
void Replay::close_innermost(int64_t at_ns, bool ends_call, F&& matches) {
  ++state_->counters.region_events;
  // One task may finish another, as with asynchronous generators. Libraries that pop know no Python tasks, which may
  // have switched since the push.
  bool closed = close_in(current_, at_ns, ends_call, matches);
  for (std::size_t other = 0; !closed && other < strands_.size(); ++other) {
    closed = close_in(other, at_ns, ends_call, matches);
  }
  if (!closed && state_->window.contains(at_ns)) {
    ++state_->counters.unmatched_exits;
  }
  note_moment(at_ns);
}

void Replay::exit(int64_t at_ns, uint32_t name, uint32_t detail) {
  // One thread may resume a generator, and another one end it. The other thread's own region of that name must not end.
  const Strand& strand = strands_[current_];
  const bool is_elsewhere = (detail & base::ExitDetail::kElsewhere) != 0;
  if (is_elsewhere || (strand.is_elsewhere && strand.stack.empty())) {
    ++state_->counters.region_events;
    const bool found = (state_->exit_elsewhere && state_->exit_elsewhere(*this, strand.key, at_ns, name, detail)) ||
                       (!is_elsewhere && exit_of(kNoTask, at_ns, name, detail));
    state_->counters.unmatched_exits += !found && state_->window.contains(at_ns) ? 1 : 0;
    return note_moment(at_ns);
  }
  const ExitName exited{name, state_->dictionaries.region_name(name)};
  const bool by_exception = (detail & base::ExitDetail::kByException) != 0;
  close_innermost(at_ns, by_exception, [&](const OpenRegion& region) { return exited.ends(region, detail); });
}

bool Replay::exit_of(uint64_t task, int64_t at_ns, uint32_t name, uint32_t detail) {
  const ExitName exited{name, state_->dictionaries.region_name(name)};
  const bool by_exception = (detail & base::ExitDetail::kByException) != 0;
  const auto close = [&](std::size_t strand) {
    return close_in(strand, at_ns, by_exception, [&](const OpenRegion& region) { return exited.ends(region, detail); });
  };
  bool found = false;
  if (const auto known = strand_of_key_.find(task); known != strand_of_key_.end()) {
    if (!window_seen_ && state_->window.contains(at_ns)) {
      open_window();  // this thread had no events in it yet
    }
    found = close(known->second);
  }
  for (std::size_t index = 0; task == kNoTask && !found && index < strands_.size(); ++index) {
    found = strands_[index].key == kNoTask && close(index);
  }
  if (found && at_ns >= last_ns_) {
    note_moment(at_ns);
  }
  return found;
}

void Replay::pop(int64_t at_ns, uint32_t source) {
  const auto is_of_source = [source](const OpenRegion& region) {
    return EnterDetail::source(region.detail) == EnterDetail::source(source);
  };
  if (has_arguments_) {
    const std::vector<OpenRegion>& stack = strands_[current_].stack;
    if (const auto closed = std::find_if(stack.rbegin(), stack.rend(), is_of_source); closed != stack.rend()) {
      note_collective(closed->start_ns, closed->name, closed->is_hidden ? kNone : closed->row);
    }
  }
  close_innermost(at_ns, false, is_of_source);
}

void Replay::gpu_time(uint32_t pair, uint32_t name) {
  const std::vector<OpenRegion>& stack = strands_[current_].stack;
  const ExitName exited{name, state_->dictionaries.region_name(name)};
  const auto region =
      std::find_if(stack.rbegin(), stack.rend(), [&exited](const OpenRegion& open) { return exited.matches(open); });
  const bool kept =
      region != stack.rend() && window_seen_ && !region->is_hidden && !state_->window.gpu.off_at(region->start_ns);
  state_->gpu_spans.push_back({pair, kept ? region->row : kNone, kept ? region->path : kNone});
}

void Replay::mark(int64_t at_ns, uint32_t name) {
  note_moment(at_ns);  // may be the first event of another task
  if (state_->aggregates() || !state_->window.keeps_regions(at_ns)) {
    return;
  }
  if (state_->full) {
    ++state_->counters.refused;
    return;
  }
  const uint32_t string = state_->dictionaries.region_name(name);
  count_unnamed(string);
  state_->store->mark.append({at_ns, string, own_place().reference, thread_, 0});
}

// -- functions of Python ----------------------------------------------------------------------------------------------

void Replay::function_enter(int64_t at_ns, uint32_t name, uint32_t detail) {
  const auto module = static_cast<uint32_t>(std::exchange(arguments_[Argument::Module].id, 0));  // plus one
  if (!state_->window.keeps_regions(at_ns)) {
    return;
  }
  ++state_->counters.function_events;
  const bool running = (detail & FunctionDetail::kRunning) != 0;
  if (has_lost_events_) {  // a frame at the address of an earlier one, whose end was lost
    const auto stale = std::ranges::find(functions_, detail & ~FunctionDetail::kRunning, &OpenFunction::detail);
    end_functions(static_cast<std::size_t>(stale - functions_.begin()), at_ns);
  }
  const int64_t start_ns = running ? state_->window.open_ns.load(std::memory_order_relaxed) : at_ns;
  uint32_t row = kNone;
  if (state_->keeps_rows()) {
    const uint32_t parent = functions_.empty() ? kNone : functions_.back().row;
    const auto flags = static_cast<uint16_t>(store::kOpen | (running ? store::kClipped : 0));
    row =
        state_->store->python_function.append({start_ns, 0, state_->dictionaries.region_name(name), parent, module - 1,
                                               thread_, flags, static_cast<uint8_t>(FunctionDetail::kind(detail))});
  } else {
    state_->counters.refused += state_->full;
  }
  functions_.push_back({row, detail & ~FunctionDetail::kRunning, start_ns});
}

void Replay::function_exit(int64_t at_ns, uint32_t detail) {
  // Ending a frame also ends its calls: the exit of the built-in function that stops the recording is not seen.
  for (std::size_t depth = functions_.size(); depth-- > 0;) {
    if (functions_[depth].detail == detail) {
      ++state_->counters.function_events;
      return end_functions(depth, at_ns);
    }
    // A built-in function is always innermost. If another function is there, its call was not seen.
    if (FunctionDetail::kind(detail) == base::FunctionKind::BuiltIn) {
      return;
    }
  }
}

void Replay::end_functions(std::size_t depth, int64_t end_ns) {
  for (std::size_t ended = depth; ended < functions_.size(); ++ended) {
    if (functions_[ended].row != kNone) {
      state_->store->python_function.flags[functions_[ended].row] &= static_cast<uint16_t>(~store::kOpen);
    }
  }
  close_functions(depth, end_ns);
}

void Replay::close_functions(std::size_t depth, int64_t end_ns) {
  end_ns = std::min(end_ns, state_->window.close_ns.load(std::memory_order_relaxed));
  for (; functions_.size() > depth; functions_.pop_back()) {
    if (const OpenFunction& function = functions_.back(); function.row != kNone) {
      state_->store->python_function.duration_ns[function.row] = std::max<int64_t>(0, end_ns - function.start_ns);
    }
  }
}

}  // namespace gpuscope::attribution
