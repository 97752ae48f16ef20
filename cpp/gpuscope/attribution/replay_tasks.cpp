// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <utility>

#include "gpuscope/attribution/replay.h"

namespace gpuscope::attribution {

using store::kNone;

/// Whether the place's strand is of this thread, and still the same strand.
bool Replay::has_strand(const TaskPlace& place) const noexcept {
  return place.strand < strands_.size() && strands_[place.strand].number == place.strand_number;
}

Replay::OpenRegion* Replay::find_open(const OpenPlace& place) {
  std::vector<OpenRegion>& stack = strands_[place.strand].stack;
  const auto found = std::find_if(stack.rbegin(), stack.rend(),
                                  [&](const OpenRegion& region) { return region.number == place.region; });
  return found != stack.rend() ? &*found : nullptr;
}

Replay::OpenRegion* Replay::find_open(const TaskPlace& place) {
  return has_strand(place) ? find_open(OpenPlace{place.strand, place.region}) : nullptr;
}

std::optional<Replay::OpenPlace> Replay::shown_below(std::size_t strand, std::size_t depth) const {
  for (const std::vector<OpenRegion>& stack = strands_[strand].stack; depth-- > 0;) {
    if (!stack[depth].is_hidden) {
      return OpenPlace{strand, stack[depth].number};
    }
  }
  return open_outside(strand);
}

/// The innermost open region around a task: the first region around the place of its creation that is still open.
std::optional<Replay::OpenPlace> Replay::open_outside(std::size_t strand) const {
  const auto find = [&](std::size_t index, uint64_t newest) -> std::optional<OpenPlace> {
    const std::vector<OpenRegion>& stack = strands_[index].stack;
    const auto found = std::find_if(stack.rbegin(), stack.rend(), [&](const OpenRegion& region) {
      return region.number <= newest && !region.is_hidden;
    });
    return found != stack.rend() ? std::optional(OpenPlace{index, found->number}) : std::nullopt;
  };
  while (strands_[strand].place.has_value()) {
    const TaskPlace& place = *strands_[strand].place;
    if (!has_strand(place) || place.strand == strand ||
        (place.strand != 0 && place.strand_number >= strands_[strand].number)) {
      return std::nullopt;
    }
    if (const std::optional<OpenPlace> found = find(place.strand, place.region); found.has_value()) {
      return found;
    }
    strand = place.strand;
  }
  return strand != 0 ? find(0, UINT64_MAX) : std::nullopt;
}

Replay::Parent Replay::place_outside(std::size_t strand) {
  if (const std::optional<TaskPlace>& place = strands_[strand].place; place.has_value()) {
    const OpenRegion* region = find_open(*place);
    return {region != nullptr ? region->row : place->row, place->path};
  }
  // Tasks with an unknown origin are inside the open regions of their thread.
  const OpenRegion* region = strand != 0 && !strands_[0].stack.empty() ? &strands_[0].stack.back() : nullptr;
  return region != nullptr ? Parent{region->row, region->path} : Parent{kNone, kNone};
}

TaskPlace Replay::place_in(std::size_t strand) const {
  for (const std::size_t index : {strand, std::size_t{0}}) {
    const Strand& around = strands_[index];
    if (!around.stack.empty()) {
      const OpenRegion& region = around.stack.back();
      return {region.row, region.path, index, around.number, region.number};
    }
    if (around.place.has_value()) {
      return *around.place;
    }
  }
  return {};
}

void Replay::settle_origin(std::size_t strand) {
  if (const uint32_t origin = std::exchange(strands_[strand].origin, 0); origin != 0) {
    state_->origins.settle(origin, place_in(strand));
  }
}

void Replay::renew_origin(uint32_t origin) {
  settle_origin(current_);
  if (origin != 0) {
    strands_[current_].origin = origin;
    state_->origins.set(origin, this, current_);
  }
}

std::optional<TaskPlace> Replay::place_of_origin(uint32_t origin) const {
  const auto find = [&]() -> std::optional<TaskPlace> {
    if (const Origins::Current* current = state_->origins.find_current(origin); current != nullptr) {
      return current->thread->place_in(current->strand);
    }
    const TaskPlace* settled = state_->origins.find_settled(origin);
    return settled != nullptr ? std::optional(*settled) : std::nullopt;
  };
  // The main thread is read first. Other threads may not have been read up to here, so their place may be outdated.
  const Origins::Current* owner = state_->origins.find_current(origin);
  const bool may_be_behind = owner != nullptr && owner->thread != this && owner->thread != parent_thread_;
  std::optional<TaskPlace> place = find();
  if ((!place.has_value() || may_be_behind) && origin != 0 && state_->read_others_until) {
    state_->read_others_until(last_ns_);
    place = find();
  }
  return place;
}

/// Lets any new task reuse a strand without open regions: a server may start millions of tasks.
void Replay::offer_strand(std::size_t strand) {
  if (strand != 0 && !std::exchange(strands_[strand].is_offered, true)) {
    offered_strands_.push_back(strand);
  }
}

std::size_t Replay::take_offered_strand() {
  while (!offered_strands_.empty()) {
    const std::size_t strand = offered_strands_.front();
    if (strands_[strand].stack.empty()) {
      return strand;  // stays offered until a region opens in it
    }
    strands_[strand].is_offered = false;
    offered_strands_.pop_front();
  }
  strands_.emplace_back();
  offer_strand(strands_.size() - 1);
  return strands_.size() - 1;
}

std::size_t Replay::find_strand(const base::Event& event) {
  const bool begins = (event.detail & base::kStrandBegins) != 0;
  if (const auto known = strand_of_key_.find(event.word); known != strand_of_key_.end()) {
    const std::size_t strand = known->second;
    if (!begins || strand == 0 || strands_[strand].stack.empty()) {
      return strand;
    }
    strands_[strand].key = kNoTask;  // of an ended task with regions that were never left
    strand_of_key_.erase(known);
  }
  const bool is_task = (event.detail & base::kStrandIsTask) != 0;
  return strands_[0].key == kNoTask && !is_task ? 0 : take_offered_strand();
}

void Replay::select_strand(const base::Event& event) {
  current_ = find_strand(event);
  Strand& strand = strands_[current_];
  if (strand.key == event.word && (event.detail & base::kStrandBegins) == 0) {
    return;
  }
  settle_origin(current_);
  strand_of_key_.erase(strand.key);
  strand_of_key_[event.word] = current_;
  strand.key = event.word;
  strand.number = ++state_->strands_begun;
  strand.is_elsewhere = event.detail == base::kStrandIsTask && event.id == 0;
  strand.place = place_of_origin(event.id);
  if (strand.place.has_value() && strand.place->strand_number == strand.number) {
    strand.place.reset();  // in the strand itself: its regions nested nowhere, and were taken over
  }
  if ((event.detail & base::kStrandBegins) == 0 && strand.place.has_value()) {
    renew_origin(event.id);  // the task continues, but another task reused its strand
  }
}

// -- regions that outlast those around them ---------------------------------------------------------------------------

template <class F>
void Replay::each_task_in(const OpenRegion& region, F&& visit) {
  for (std::size_t task = 0; region.tasks != 0 && task < strands_.size(); ++task) {
    if (strands_[task].around.has_value() && strands_[task].around->region == region.number) {
      visit(task);
    }
  }
}

/// Marks the strand's regions from this depth on, and the tasks inside, as outlasting a surrounding region.
void Replay::outlast(std::size_t strand, std::size_t depth) {
  std::vector<OpenRegion>& stack = strands_[strand].stack;
  for (; depth < stack.size() && !stack[depth].outlasts; ++depth) {
    stack[depth].outlasts = has_outlasting_ = true;
    each_task_in(stack[depth], [this](std::size_t task) { outlast(task, 0); });
  }
}

/// A region ends before others that are open inside it.
void Replay::leave(std::size_t strand, std::size_t depth, int64_t at_ns, bool ends_call) {
  std::vector<OpenRegion>& stack = strands_[strand].stack;
  const OpenRegion& left = stack[depth];
  const bool is_outlasted = left.call == 0 && !left.is_hidden;  // a call may continue
  for (std::size_t above = depth + 1; above < stack.size(); ++above) {
    stack[above].inside = stack[above].inside != 0 || ends_call ? stack[above].inside : left.call;
  }
  if (is_outlasted) {
    outlast(strand, depth + 1);
  }
  if (left.tasks == 0) {
    return;
  }
  const std::optional<OpenPlace> around = shown_below(strand, depth);  // the tasks' surrounding region from now on
  each_task_in(left, [&](std::size_t task) {
    strands_[task].around = around;
    if (is_outlasted) {
      outlast(task, 0);
    }
  });
  if (around.has_value()) {
    find_open(*around)->tasks += left.tasks;
    settle(around->strand, at_ns);
  }
}

/// The region directly around a depth of the current strand, if it outlasts one around it.
std::optional<Replay::OpenPlace> Replay::outlasting_below(std::size_t depth) {
  if (depth > 0) {
    const OpenRegion& region = strands_[current_].stack[depth - 1];
    return region.outlasts ? std::optional(OpenPlace{current_, region.number}) : std::nullopt;
  }
  const std::optional<OpenPlace> outside = open_outside(current_);
  const OpenRegion* region = outside.has_value() ? find_open(*outside) : nullptr;
  return region != nullptr && region->outlasts && region->path == place_outside(current_).path ? outside : std::nullopt;
}

/// The path of GPU work launched in a region, without surrounding regions that were left.
uint32_t Replay::work_path(const OpenPlace& place) {
  const std::vector<OpenRegion>& stack = strands_[place.strand].stack;
  const auto begin = std::find_if(stack.rbegin(), stack.rend(), [&](const OpenRegion& region) {
                       return region.number == place.region;
                     }).base();
  auto inner = begin;
  while (inner != stack.begin() && std::prev(inner)->outlasts) {
    --inner;
  }
  const std::optional<OpenPlace>& around = strands_[place.strand].around;
  uint32_t path = inner != stack.begin() ? std::prev(inner)->path : around.has_value() ? work_path(*around) : kNone;
  for (; inner != begin; ++inner) {
    path = inner->is_hidden ? path : path_of(*inner, path);
  }
  return path;
}

void Replay::settle_strand(std::size_t index, int64_t at_ns, bool all) {
  Strand& strand = strands_[index];
  bool shows = false;
  for (auto region = strand.stack.rbegin(); region != strand.stack.rend(); ++region) {
    if (region->is_hidden) {
      continue;
    }
    region->cover(shows || region->tasks != 0, at_ns);
    if (shows && !all) {
      return;  // the regions further out are covered before and after
    }
    shows = true;
  }
  if (index == 0 || std::exchange(strand.shows, shows) == shows) {
    return;
  }
  if (shows) {
    strand.around = open_outside(index);
  }
  const std::optional<OpenPlace> around = shows ? strand.around : std::exchange(strand.around, std::nullopt);
  if (OpenRegion* region = around.has_value() ? find_open(*around) : nullptr; region != nullptr) {
    region->tasks += shows ? 1 : -1U;
    settle(around->strand, at_ns);
  }
}

}  // namespace gpuscope::attribution
