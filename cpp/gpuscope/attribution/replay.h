// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/activity/calls.h"
#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/base/events.h"

namespace gpuscope::attribution {

/// Whether autograd's `backward` (such as "AddmmBackward0") belongs to the operator `forward` (such as "aten::addmm").
bool is_backward_of(std::string_view backward, std::string_view forward) noexcept;

/// Replays one thread's events: opening and closing regions, with driver calls inside them. Only for the decode thread.
class Replay {
 public:
  /// `parent_thread`: the thread whose regions this one inherits while it has no open regions, or null.
  Replay(DecodeState& state, uint16_t thread, Replay* parent_thread, bool keeps_timeline)
      : state_(&state), parent_thread_(parent_thread), keeps_timeline_(keeps_timeline), thread_(thread) {
    strands_[0].number = ++state.strands_begun;
  }

  void take(const base::Event& event);
  /// A whole driver call, if calls come as records instead of callbacks.
  void take_call(const activity::DriverCall& what, int64_t start_ns, int64_t end_ns, uint32_t correlation,
                 uint32_t result);
  /// Whether a launch or copy of the window is in progress.
  bool has_open_launches() const;
  /// Some of the thread's events found no room in its log. Ends may be missing from now on.
  void lose_events() noexcept { has_lost_events_ = true; }

  /// Adds rows for regions that were open before the window.
  void open_window();
  /// Ends the rows of open regions and calls at `close_ns`. The regions themselves stay open.
  void close_window(int64_t close_ns);
  /// Sets the durations of open regions, calls and functions so far. Adds the rows of the calls to `calls`.
  void measure_open(int64_t at_ns, std::vector<uint32_t>& calls);
  /// Renumbers the rows of open regions and calls.
  void apply(const Eviction& eviction);
  /// Calls `visit(store::Target, id)` for each reference to a dictionary.
  template <class F>
  void each_reference(F&& visit);
  /// Ends a region of the task with this key that was entered on this thread. False if none is open.
  bool exit_of(uint64_t task, int64_t at_ns, uint32_t name, uint32_t detail);
  /// The thread has ended: its open regions end at its last event.
  void end_thread();

  struct Place {
    Reference reference;
    uint32_t path;
  };
  /// The thread's place at `at_ns`. Exact for the newest moment, from the timeline for earlier ones.
  Place place_at(int64_t at_ns) const;
  uint16_t thread() const noexcept { return thread_; }
  /// The innermost open region that is no operator of a framework: its name (a string) and start time.
  struct Innermost {
    bool is_open = false;  // a region is open
    uint32_t name = 0;
    int64_t start_ns = 0;
  };
  Innermost innermost_region() const noexcept;

 private:
  struct OpenRegion {
    uint32_t name;      // a string
    uint32_t names_id;  // base::Names id at its enter
    uint32_t path;
    uint32_t row;
    int64_t start_ns;
    int64_t child_ns;         // time covered by inner regions; while one is open, minus its start
    uint32_t detail;          // base::EnterDetail, without the call
    uint32_t call = 0;        // the call that it is a part of; 0 for none
    uint32_t inside = 0;      // suspended call inside which it was open, to be moved around it; 0 for none
    uint32_t tasks = 0;       // tasks with open regions whose innermost surrounding region this is
    uint64_t number = 0;      // increases with each opened region
    bool is_hidden = false;   // entered while regions were switched off: uses its parent's path and row
    bool outlasts = false;    // it, or a region around it, outlived a surrounding region
    bool is_covered = false;  // a region inside it is open

    void cover(bool with, int64_t at_ns) noexcept {
      if (with != is_covered) {
        child_ns += with ? -at_ns : at_ns;
        is_covered = with;
      }
    }
  };
  /// The attributes logged before their event.
  struct Arguments {
    struct Value {
      uint64_t word = 0;
      uint32_t id = 0;
    };
    struct Payload {
      uint64_t value;
      uint32_t name;
      base::Argument type;
    };
    std::array<Value, base::kArguments> values{};
    std::vector<Payload> payloads;

    Arguments() { clear(); }
    void clear() noexcept {
      payloads.clear();
      values = {};
      (*this)[base::Argument::Operator].word = UINT64_MAX;  // no sequence number
    }
    Value& operator[](base::Argument what) noexcept { return values[static_cast<std::size_t>(what)]; }
    const Value& operator[](base::Argument what) const noexcept { return values[static_cast<std::size_t>(what)]; }
    int64_t sequence() const noexcept { return static_cast<int64_t>((*this)[base::Argument::Operator].word); }
    uint32_t shapes() const noexcept { return (*this)[base::Argument::Operator].id; }
    uint32_t stack() const noexcept { return static_cast<uint32_t>((*this)[base::Argument::Stack].word); }
    uint32_t text(base::Argument what) const noexcept { return static_cast<uint32_t>((*this)[what].word); }
  };
  /// A task, or the thread's own code: the first strand.
  static constexpr uint64_t kNoTask = 0;  // its key was given to another
  /// The position of an open region. It may have closed or moved by now.
  struct OpenPlace {
    std::size_t strand;
    uint64_t region;  // its number
  };
  struct Strand {
    uint64_t key = kNoTask;
    std::vector<OpenRegion> stack;
    uint64_t number = 0;                             // of DecodeState::strands_begun
    uint32_t origin = 0;                             // of the tasks that it creates: base::Op::Origin; 0 for none
    std::optional<TaskPlace> place = std::nullopt;   // where it was created, if known: its regions nest there
    bool is_elsewhere = false;                       // belongs to another thread, and only ends regions here
    bool is_offered = false;                         // in offered_strands_
    bool shows = false;                              // has an open region that is not hidden
    std::optional<OpenPlace> around = std::nullopt;  // surrounding region that counts it in `tasks`, if any
  };
  /// The name in an exit. Compared as a string if the ids are of different periods.
  struct ExitName {
    uint32_t names_id;
    uint32_t name;
    bool matches(const OpenRegion& region) const noexcept { return region.names_id == names_id || region.name == name; }
    /// `detail`: base::ExitDetail.
    bool ends(const OpenRegion& region, uint32_t detail) const noexcept {
      return matches(region) && region.call == base::ExitDetail::call(detail) &&
             (region.detail & base::EnterDetail::kPopped) == 0;
    }
  };
  struct OpenCall {
    uint32_t callback;
    uint32_t correlation;
    uint32_t row;
    uint32_t path;
    int64_t start_ns;
    bool in_window;
    bool captured;
  };
  struct OpenFunction {
    uint32_t row;
    uint32_t detail;  // base::FunctionDetail, of an exit
    int64_t start_ns;
  };
  struct Moment {
    int64_t at_ns;
    Reference reference;
    uint32_t path;
  };

  void enter(int64_t at_ns, uint32_t name, uint32_t detail);
  void exit(int64_t at_ns, uint32_t name, uint32_t detail);
  void mark(int64_t at_ns, uint32_t name);
  void gpu_time(uint32_t pair, uint32_t name);
  void count(Correlations::Awaits awaited, int calls);
  void call_enter(int64_t at_ns, uint32_t correlation, uint32_t callback);
  void call_exit(int64_t at_ns, uint32_t result, uint32_t callback);
  void select_strand(const base::Event& event);
  std::size_t find_strand(const base::Event& event);
  void offer_strand(std::size_t strand);
  std::size_t take_offered_strand();
  std::vector<std::size_t> strands_by_age() const;
  TaskPlace place_in(std::size_t strand) const;
  std::optional<TaskPlace> place_of_origin(uint32_t origin) const;
  void settle_origin(std::size_t strand);
  void renew_origin(uint32_t origin);
  void node(uint64_t id, bool cloned);
  void play(const base::Event& event);
  void argument(const base::Event& event);
  void pop(int64_t at_ns, uint32_t source);
  void range_start(int64_t at_ns, uint32_t name, uint32_t detail);
  void range_end(int64_t at_ns);
  void allocation(int64_t at_ns, bool has_failed);
  void function_enter(int64_t at_ns, uint32_t name, uint32_t detail);
  void function_exit(int64_t at_ns, uint32_t detail);
  /// Ends the functions from this depth on. close_functions: cuts them at the end of the window.
  void end_functions(std::size_t depth, int64_t end_ns);
  void close_functions(std::size_t depth, int64_t end_ns);
  void add_results(uint32_t row);
  void note_collective(int64_t at_ns, uint32_t name, uint32_t row);
  void add_details(uint32_t row, const OpenRegion& region, uint32_t parent_path);

  /// The row and path of the region around one that is entered at `at_ns`.
  struct Parent {
    uint32_t row;
    uint32_t path;
  };
  Parent parent_at(int64_t at_ns, uint32_t detail, std::size_t depth);
  bool has_strand(const TaskPlace& place) const noexcept;
  OpenRegion* find_open(const OpenPlace& place);
  OpenRegion* find_open(const TaskPlace& place);
  std::optional<OpenPlace> open_outside(std::size_t strand) const;
  std::optional<OpenPlace> outlasting_below(std::size_t depth);
  uint32_t work_path(const OpenPlace& place);
  std::optional<OpenPlace> shown_below(std::size_t strand, std::size_t depth) const;
  /// After a change in a strand: updates which regions have something inside them. `all`: also regions further out.
  void settle(std::size_t strand, int64_t at_ns, bool all = false) {
    if (strand == 0 && !state_->aggregates()) {
      return;  // where rows are kept, only tasks are tracked
    }
    at_ns = std::min(at_ns, state_->window.close_ns.load(std::memory_order_relaxed));
    std::vector<OpenRegion>& stack = strands_[strand].stack;
    const std::size_t depth = stack.size();
    if (depth < 2 || all || stack[depth - 1].is_hidden || stack[depth - 2].is_hidden) [[unlikely]] {
      return settle_strand(strand, at_ns, all);
    }
    stack[depth - 1].cover(stack[depth - 1].tasks != 0, at_ns);
    stack[depth - 2].cover(true, at_ns);  // the regions further out are covered before and after
  }
  void settle_strand(std::size_t index, int64_t at_ns, bool all);
  Parent place_outside(std::size_t strand);
  Parent parent_in(std::size_t strand, std::size_t depth);
  Parent own_parent() { return parent_in(current_, strands_[current_].stack.size()); }
  std::size_t depth_of(uint32_t call);
  void begin_part(OpenRegion& region);
  void end_part(const OpenRegion& region, int64_t end_ns, int64_t duration_ns, int64_t child_ns, bool ends_call);
  void close(OpenRegion& region, int64_t end_ns, bool ends_call);
  template <class F>
  void each_task_in(const OpenRegion& region, F&& visit);
  void outlast(std::size_t strand, std::size_t depth);
  void leave(std::size_t strand, std::size_t depth, int64_t at_ns, bool ends_call);
  template <class F>
  bool close_in(std::size_t strand, int64_t at_ns, bool ends_call, F&& matches);
  /// Closes the innermost matching region, first in the current strand.
  template <class F>
  void close_innermost(int64_t at_ns, bool ends_call, F&& matches);
  void close_at(std::size_t strand, std::size_t depth, int64_t at_ns, bool ends_call);
  uint32_t add_row(const OpenRegion& region, uint32_t parent_row);
  uint32_t path_of(const OpenRegion& region, uint32_t parent_path);
  void note_moment(int64_t at_ns);
  Place own_place() const;
  template <class F>
  void each_open(F&& visit);
  void count_unnamed(uint32_t string) noexcept;

  DecodeState* state_;
  Replay* parent_thread_;
  bool keeps_timeline_;
  bool window_seen_ = false;
  uint16_t thread_;
  std::size_t current_ = 0;
  std::optional<base::Event> next_strand_;
  std::optional<uint32_t> next_origin_;
  uint64_t regions_opened_ = 0;
  bool has_outlasting_ = false;  // some region outlived one around it
  std::vector<Strand> strands_ = std::vector<Strand>(1);
  std::unordered_map<uint64_t, std::size_t> strand_of_key_;
  std::deque<std::size_t> offered_strands_;  // strands without open regions, and some that were reused since
  std::vector<OpenCall> calls_;
  std::vector<OpenFunction> functions_;  // Python functions: no regions, not part of paths
  bool has_lost_events_ = false;
  std::deque<Moment> timeline_;
  Arguments arguments_;
  bool has_arguments_ = false;
  uint64_t last_node_ = 0;
  int64_t last_ns_ = INT64_MIN;  // of the newest event
  static constexpr std::size_t kMaxTimeline = 1 << 18;
};

template <class F>
void Replay::each_reference(F&& visit) {
  using store::Target;
  visit(Target::Threads, thread_);
  for (Strand& strand : strands_) {
    for (OpenRegion& region : strand.stack) {
      visit(Target::Strings, region.name);
      visit(Target::Paths, region.path);
    }
    if (strand.place.has_value()) {
      visit(Target::Paths, strand.place->path);
    }
  }
  for (OpenCall& call : calls_) {
    visit(Target::Paths, call.path);
  }
  for (Moment& moment : timeline_) {
    visit(Target::Paths, moment.path);
  }
}

}  // namespace gpuscope::attribution
