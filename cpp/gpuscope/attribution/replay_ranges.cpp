// SPDX-License-Identifier: Apache-2.0
// The part of Replay that plays operators, annotations of libraries and allocations back.
#include <algorithm>
#include <bit>
#include <utility>

#include "gpuscope/attribution/replay.h"

namespace gpuscope::attribution {
namespace {

using base::Argument;
using base::EnterDetail;
using store::kNone;
using store::PayloadType;

// Ranges that are started and never ended must not fill the memory.
constexpr std::size_t kMaxStarted = std::size_t{1} << 16;
constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";

PayloadType payload_type(Argument argument) noexcept {
  switch (argument) {
    case Argument::Signed:
      return PayloadType::Signed;
    case Argument::Float:
      return PayloadType::Float;
    case Argument::Text:
      return PayloadType::Text;
    default:
      return PayloadType::Unsigned;
  }
}

}  // namespace

Replay::Parent Replay::parent_at(int64_t at_ns, uint32_t detail) {
  if (const OpenRegion* parent = innermost(current_); parent != nullptr) {
    return {parent->row, parent->path};
  }
  // Operators on a thread that has nothing else open, as autograd's, are part of what they work for.
  if (lender_ != nullptr && (detail & base::EnterDetail::kPopped) != 0) {
    const Place place = lender_->place_at(at_ns);
    return {state_->aggregates() ? kNone : place.reference, place.path};
  }
  return {kNone, kNone};
}

void Replay::argument(const base::Event& event) {
  const auto what = static_cast<Argument>(event.detail);
  switch (what) {
    case Argument::Operator:
      arguments_.sequence = std::bit_cast<int64_t>(event.word);
      arguments_.shapes = event.id;
      return;
    case Argument::Types:
      arguments_.types = static_cast<uint32_t>(event.word);
      return;
    case Argument::Results:
      arguments_.results = static_cast<uint32_t>(event.word);
      return;
    case Argument::Operands:
      arguments_.op = static_cast<uint32_t>(event.word);
      arguments_.producer = event.id;
      return;
    case Argument::Stack:
      arguments_.stack = static_cast<uint32_t>(event.word);
      return;
    case Argument::RangeId:
      arguments_.range = event.word;
      return;
    case Argument::Unsigned:
    case Argument::Signed:
    case Argument::Float:
    case Argument::Text:
      arguments_.payloads.push_back({event.word, event.id, what});
      return;
    case Argument::Address:
      arguments_.address = event.word;
      return;
    case Argument::Bytes:
      arguments_.bytes = std::bit_cast<int64_t>(event.word);
      arguments_.device = event.id;
      return;
    case Argument::Allocated:
      arguments_.allocated = event.word;
      return;
    case Argument::Reserved:
      arguments_.reserved = event.word;
      return;
  }
}

void Replay::add_details(uint32_t row, const OpenRegion& region, uint32_t parent_path) {
  store::Store& store = *state_->store;
  Dictionaries& dictionaries = state_->dictionaries;
  const bool is_op = EnterDetail::kind(region.detail) == base::RegionKind::Op;
  uint32_t forward = kNone;
  if (arguments_.sequence >= 0 && is_op) {
    const auto sequence = static_cast<uint64_t>(arguments_.sequence);
    const std::string_view name = dictionaries.text(dictionaries.region_name(region.name));
    const bool backward =
        parent_path != kNone && dictionaries.text(dictionaries.path_name(parent_path)).starts_with(kEngine);
    if (backward) {
      forward = state_->forward_ops.find(sequence, [&](uint32_t candidate) {
        return is_backward_of(name, dictionaries.text(dictionaries.path_name(store.region.path[candidate])));
      });
    } else {
      state_->forward_ops.add(thread_, sequence, row);
    }
  }
  if (arguments_.sequence >= 0 || arguments_.shapes != 0 || arguments_.op != 0 || arguments_.stack != 0) {
    const auto text = [&](uint32_t name) { return name != 0 ? dictionaries.region_name(name) : kNone; };
    store.detail.append({arguments_.sequence, row, text(arguments_.types), kNone, text(arguments_.shapes), forward,
                         arguments_.op, arguments_.producer, dictionaries.stack(arguments_.stack)});
  }
  for (const Arguments::Payload& payload : arguments_.payloads) {
    const bool text = payload.type == Argument::Text;
    store.payload.append({text ? dictionaries.region_name(static_cast<uint32_t>(payload.value)) : payload.value, row,
                          dictionaries.region_name(payload.name), static_cast<uint16_t>(payload_type(payload.type))});
  }
}

void Replay::add_results(uint32_t row) {
  if (arguments_.results == 0 || row == kNone) {
    return;
  }
  store::Details& detail = state_->store->detail;
  const auto* begin = detail.region.begin();
  const auto* found = std::lower_bound(begin, detail.region.end(), row);
  if (found != detail.region.end() && *found == row) {
    detail.results[static_cast<std::size_t>(found - begin)] = state_->dictionaries.region_name(arguments_.results);
  }
}

bool Replay::pop_in(std::size_t strand, int64_t at_ns, uint32_t source) {
  const std::vector<OpenRegion>& stack = strands_[strand].stack;
  for (std::size_t depth = stack.size(); depth-- > 0;) {
    if (EnterDetail::source(stack[depth].detail) == EnterDetail::source(source)) {
      add_results(stack[depth].row);
      close_at(strand, depth, at_ns);
      return true;
    }
  }
  return false;
}

void Replay::pop(int64_t at_ns, uint32_t source) {
  ++state_->counters.region_events;
  // Libraries know nothing of Python's tasks: another one may have its turn since the push.
  bool closed = pop_in(current_, at_ns, source);
  for (std::size_t other = 0; !closed && other < strands_.size(); ++other) {
    closed = pop_in(other, at_ns, source);
  }
  if (!closed && state_->window.contains(at_ns)) {
    ++state_->counters.unmatched_exits;
  }
  note_moment(at_ns);
}

void Replay::range_start(int64_t at_ns, uint32_t name, uint32_t detail) {
  ++state_->counters.region_events;
  Dictionaries& dictionaries = state_->dictionaries;
  const uint32_t domain = dictionaries.region_name(EnterDetail::domain(detail));
  OpenRegion range{name,  dictionaries.path(kNone, dictionaries.region_name(name), EnterDetail::kind(detail), domain),
                   kNone, at_ns,
                   0,     detail};
  if (state_->window.keeps_regions(at_ns)) {
    range.row = add_row(range, kNone);
    if (range.row != kNone) {
      state_->store->region.flags[range.row] |= store::kAsync;
      add_details(range.row, range, kNone);
    }
  }
  const uint64_t id = arguments_.range;
  if (const int64_t* ended = state_->ended_ranges.find(id); ended != nullptr && *ended != INT64_MIN) {
    end_range({range.path, range.row, at_ns}, *ended);  // on another thread, whose events were read before
    state_->ended_ranges.set(id, INT64_MIN);
    return;
  }
  if (state_->started_ranges.size() >= kMaxStarted) {
    state_->started_ranges.clear();
  }
  state_->started_ranges.set(id, {range.path, range.row, at_ns});
}

void Replay::range_end(int64_t at_ns) {
  ++state_->counters.region_events;
  const uint64_t id = arguments_.range;
  StartedRange* started = state_->started_ranges.find(id);
  if (started != nullptr && started->path != kNone) {
    end_range(*started, at_ns);
    *started = {};
    return;
  }
  if (state_->ended_ranges.size() >= kMaxStarted) {
    state_->ended_ranges.clear();
  }
  state_->ended_ranges.set(id, at_ns);
}

void Replay::end_range(const StartedRange& range, int64_t end_ns) {
  const int64_t close_ns = state_->window.close_ns.load(std::memory_order_relaxed);
  const int64_t duration_ns = std::max<int64_t>(0, std::min(end_ns, close_ns) - range.start_ns);
  if (state_->aggregates()) {
    if (state_->window.keeps_regions(range.start_ns)) {
      state_->totals.add_region(range.path, duration_ns, duration_ns);  // overlaps others: no self time
    }
  } else if (range.row != kNone) {
    state_->store->region.duration_ns[range.row] = duration_ns;
    state_->store->region.flags[range.row] &= static_cast<uint16_t>(~store::kOpen);
  }
}

void Replay::allocation(int64_t at_ns) {
  if (!state_->window.contains(at_ns)) {
    return;
  }
  if (!state_->keeps_rows()) {
    state_->counters.refused += state_->full;
    return;
  }
  state_->store->allocation.append({at_ns, arguments_.bytes, arguments_.address, arguments_.allocated,
                                    arguments_.reserved, place_at(at_ns).reference, arguments_.device, thread_, 0});
}

}  // namespace gpuscope::attribution
