// SPDX-License-Identifier: Apache-2.0
// Replays operators, library ranges and allocations of a thread's events.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "gpuscope/attribution/replay.h"

namespace gpuscope::attribution {
namespace {

using base::Argument;
using base::EnterDetail;
using store::kNone;
using store::PayloadType;

// Bounds the memory of programs that start ranges without ending them.
constexpr std::size_t kMaxStarted = std::size_t{1} << 16;
constexpr int64_t kStartWasRead = INT64_MIN;  // of DecodeState::ended_ranges

/// Removes unneeded entries from a full map. Removes all entries if the needed ones nearly fill it.
template <class Value, class F>
void make_room(base::FlatMap<Value>& map, F&& is_needed) {
  if (map.size() < kMaxStarted) {
    return;
  }
  base::FlatMap<Value> kept;
  map.each([&](uint64_t id, const Value& value) {
    if (is_needed(value)) {
      kept.set(id, value);
    }
  });
  map = kept.size() < kMaxStarted / 4 * 3 ? std::move(kept) : base::FlatMap<Value>();
}

PayloadType payload_type(Argument argument) noexcept {
  switch (argument) {
    case Argument::Signed:
      return PayloadType::Signed;
    case Argument::Float:
      return PayloadType::Float;
    case Argument::Text:
      return PayloadType::Text;
    case Argument::Bool:
      return PayloadType::Bool;
    case Argument::List:
      return PayloadType::List;
    case Argument::None:
      return PayloadType::None;
    case Argument::Complex:
      return PayloadType::Complex;
    default:
      return PayloadType::Unsigned;
  }
}

constexpr char lower(char letter) noexcept {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

std::string_view without_namespace(std::string_view name) noexcept {
  const std::size_t colons = name.rfind("::");
  return colons != std::string_view::npos ? name.substr(colons + 2) : name;
}

}  // namespace

bool is_backward_of(std::string_view backward, std::string_view forward) noexcept {
  backward = without_namespace(backward);
  backward = backward.substr(0, backward.rfind("Backward"));
  forward = without_namespace(forward);
  std::size_t at = 0;
  for (const char letter : forward) {
    if (letter == '_') {
      continue;
    }
    if (at == backward.size() || lower(backward[at]) != lower(letter)) {
      return false;
    }
    ++at;
  }
  return at == backward.size() && at != 0;
}

void Replay::argument(const base::Event& event) {
  const auto what = static_cast<Argument>(event.detail);
  switch (what) {
    case Argument::Unsigned:
    case Argument::Signed:
    case Argument::Float:
    case Argument::Text:
    case Argument::Bool:
    case Argument::List:
    case Argument::None:
    case Argument::Complex:
      arguments_.payloads.push_back({event.word, event.id, what});
      return;
    default:
      arguments_[what] = {event.word, event.id};
  }
}

void Replay::add_details(uint32_t row, const OpenRegion& region, uint32_t parent_path) {
  store::Store& store = *state_->store;
  Dictionaries& dictionaries = state_->dictionaries;
  const bool is_op = EnterDetail::kind(region.detail) == base::RegionKind::Op;
  uint32_t forward = kNone;
  if (arguments_.sequence() >= 0 && is_op) {
    const auto sequence = static_cast<uint64_t>(arguments_.sequence());
    const std::string_view name = dictionaries.text(region.name);
    const bool backward = parent_path != kNone &&
                          dictionaries.text(dictionaries.path_name(parent_path)).starts_with(store::kAutogradPrefix);
    if (backward) {
      forward = state_->forward_ops.find(sequence, [&](uint32_t candidate) {
        return is_backward_of(name, dictionaries.text(dictionaries.path_name(store.region.path[candidate])));
      });
    } else {
      state_->forward_ops.add(thread_, sequence, row);
    }
  }
  const Arguments::Value operands = arguments_[Argument::Operands];
  const Arguments::Value inputs = arguments_[Argument::Inputs];
  const uint32_t overload = arguments_.text(Argument::Overload);
  if (arguments_.sequence() >= 0 || arguments_.shapes() != 0 || operands.word != 0 || arguments_.stack() != 0 ||
      overload != 0) {
    const auto text = [&](uint32_t name) {
      const uint32_t string = name != 0 ? dictionaries.region_name(name) : kNone;
      count_unnamed(string);
      return string;
    };
    store.detail.append({arguments_.sequence(), row, text(inputs.id), kNone, text(arguments_.shapes()),
                         text(static_cast<uint32_t>(inputs.word)), text(arguments_.text(Argument::Concrete)),
                         text(overload), forward, static_cast<uint32_t>(operands.word), operands.id,
                         dictionaries.stack(arguments_.stack())});
  }
  for (const Arguments::Payload& payload : arguments_.payloads) {
    const bool text =
        payload.type == Argument::Text || payload.type == Argument::List || payload.type == Argument::Complex;
    store.payload.append({text ? dictionaries.region_name(static_cast<uint32_t>(payload.value)) : payload.value, row,
                          dictionaries.region_name(payload.name), static_cast<uint16_t>(payload_type(payload.type))});
  }
}

/// Counts a call of NCCL by its payload. `row`: its region, kNone for none.
void Replay::note_collective(int64_t at_ns, uint32_t name, uint32_t row) {
  Dictionaries& dictionaries = state_->dictionaries;
  Collectives::Payload payload;
  for (const Arguments::Payload& each : arguments_.payloads) {
    if (each.type == Argument::Unsigned || each.type == Argument::Signed) {
      Collectives::read(dictionaries.text(dictionaries.region_name(each.name)), each.value, payload);
    }
  }
  std::optional call = state_->collectives.call(dictionaries.text(name), payload, at_ns);
  if (call.has_value() && row != kNone) {
    call->region = row;
    state_->store->collective.append(*call);
  }
}

void Replay::add_results(uint32_t row) {
  if (arguments_.text(Argument::Results) == 0 || row == kNone) {
    return;
  }
  store::Details& detail = state_->store->detail;
  const auto* begin = detail.region.begin();
  const auto* found = std::lower_bound(begin, detail.region.end(), row);
  if (found != detail.region.end() && *found == row) {
    detail.results[static_cast<std::size_t>(found - begin)] =
        state_->dictionaries.region_name(arguments_.text(Argument::Results));
  }
}

void Replay::range_start(int64_t at_ns, uint32_t name, uint32_t detail) {
  ++state_->counters.region_events;
  Dictionaries& dictionaries = state_->dictionaries;
  const uint32_t domain = dictionaries.region_name(EnterDetail::domain(detail));
  const uint32_t string = dictionaries.region_name(name);
  const uint32_t path = dictionaries.path(kNone, string, EnterDetail::kind(detail), domain);
  OpenRegion range{string, name, path, kNone, at_ns, 0, detail};
  if (state_->window.keeps_regions(at_ns)) {
    range.row = add_row(range, kNone);
    if (range.row != kNone) {
      state_->store->region.flags[range.row] |= store::kAsync;
      count_unnamed(dictionaries.path_name(range.path));
      add_details(range.row, range, kNone);
    }
  }
  const StartedRange started{range.path, range.row, at_ns, thread_};
  const uint64_t id = arguments_[Argument::RangeId].word;
  if (const int64_t* ended = state_->ended_ranges.find(id); ended != nullptr && *ended != kStartWasRead) {
    state_->close_range(started, *ended, false);  // on another thread, whose events were read before
    state_->ended_ranges.set(id, kStartWasRead);
    return;
  }
  make_room(state_->started_ranges, [](const StartedRange& other) { return other.path != kNone; });
  state_->started_ranges.set(id, started);
}

void Replay::range_end(int64_t at_ns) {
  ++state_->counters.region_events;
  const uint64_t id = arguments_[Argument::RangeId].word;
  StartedRange* started = state_->started_ranges.find(id);
  if (started != nullptr && started->path != kNone) {
    state_->close_range(*started, at_ns, false);
    *started = {};
    return;
  }
  make_room(state_->ended_ranges, [](int64_t ended_ns) { return ended_ns != kStartWasRead; });
  state_->ended_ranges.set(id, at_ns);
}

void Replay::allocation(int64_t at_ns, bool has_failed) {
  if (!state_->window.contains(at_ns)) {
    return;
  }
  if (!state_->keeps_rows()) {
    state_->counters.refused += state_->full;
    return;
  }
  const Arguments::Value bytes = arguments_[Argument::Bytes];
  const auto size = static_cast<int64_t>(bytes.word);
  const uint64_t allocated = arguments_[Argument::Allocated].word;
  const uint64_t reserved = arguments_[Argument::Reserved].word;
  const uint32_t region = place_at(at_ns).reference;
  if (has_failed) {
    state_->store->failed_allocation.append({at_ns, size, allocated, reserved, region, bytes.id, thread_});
  } else {
    state_->store->allocation.append(
        {at_ns, size, arguments_[Argument::Address].word, allocated, reserved, region, bytes.id, thread_, 0});
  }
}

}  // namespace gpuscope::attribution
