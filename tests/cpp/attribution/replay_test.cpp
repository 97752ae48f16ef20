// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/replay.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "fakes/cupti.h"
#include "fakes/dictionaries.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/strings.h"

// A test names only the fields that it is about; the others are 0.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::attribution {
namespace {

using base::ExitDetail;
using base::FunctionKind;
using base::Op;
using store::kNone;

// Plays events at ticks 1, 2, 3 ... so many thousands; the window is open from the start unless a test says otherwise.
class Replays : public testing::Test {
 protected:
  Replays() { open(INT64_MIN); }

  void set_up(const Settings& settings) {
    state_ = std::make_unique<DecodeState>(settings);
    open(INT64_MIN);
    main_ = std::make_unique<Replay>(*state_, 0, nullptr, true);
    worker_ = std::make_unique<Replay>(*state_, 1, main_.get(), false);
  }
  void open(int64_t at_ns) { state_->window.open_ns = at_ns; }
  void close(int64_t at_ns) { state_->window.close_ns = at_ns; }

  int64_t ns(uint64_t moment) const { return state_->clock.to_ns(kFirst + moment * 1'000'000); }
  int64_t now() const { return ns(moment_); }

  static uint32_t name(const char* text) { return base::Names::process().intern(text); }
  void say(Replay& replay, Op op, uint32_t id, uint32_t detail = 0) {
    replay.take({kFirst + ++moment_ * 1'000'000, id, static_cast<uint8_t>(op), detail & 0xFFFFFF});
  }
  void enter(const char* text) { enter(*main_, text); }
  void enter(Replay& replay, const char* text) { say(replay, Op::Enter, name(text)); }
  void exit(const char* text) { exit(*main_, text); }
  void exit(Replay& replay, const char* text) { say(replay, Op::Exit, name(text)); }
  void exit_part(const char* text, uint32_t call, uint32_t flags = 0) {
    say(*main_, Op::Exit, name(text), ExitDetail::of_call(part(call)) | flags);
  }
  // Number 7, which is suspended while another region runs. The numbers are moments.
  void call_in_two_parts() {
    say(*main_, Op::Enter, name("call"), part(7));   // 1
    exit_part("call", 7);                            // 2
    enter("other");                                  // 3
    exit("other");                                   // 4
    say(*main_, Op::Enter, name("call"), part(7));   // 5
    exit_part("call", 7, ExitDetail::kByException);  // 6
  }
  void strand(uint64_t key) { main_->take({key, 0, static_cast<uint8_t>(Op::Strand), 0}); }
  // A task that begins, of that origin, and whose own tasks have the origin `own`.
  void begin_task(Replay& replay, uint64_t key, uint32_t origin, uint32_t own) {
    replay.take({key, origin, static_cast<uint8_t>(Op::Strand), base::kStrandBegins | base::kStrandIsTask});
    renew_origin(replay, own);
  }
  void renew_origin(Replay& replay, uint32_t own) { replay.take({0, own, static_cast<uint8_t>(Op::Origin), 0}); }
  // A task begins, may create another of origin 11 in a region, leaves that, and goes on.
  void leave_what_creates_a_task() {
    begin_task(*main_, 1, 0, 11);
    enter("creates");
    renew_origin(*main_, 12);  // before the next event
    exit("creates");
    enter("waits");
  }
  static uint32_t part(uint32_t call) { return base::EnterDetail::make(base::RegionKind::Region, 0, call); }
  std::string parent(uint32_t row) {
    const uint32_t around = rows().region.parent[row];
    return around == kNone ? "" : path(rows().region.path[around]);
  }
  uint32_t call_enter(Replay& replay, uint32_t id = fakes::kLaunchKernel) {
    say(replay, Op::CallEnter, ++correlation_, id);
    return correlation_;
  }
  void call_exit(Replay& replay, uint32_t id = fakes::kLaunchKernel, uint32_t result = 0) {
    say(replay, Op::CallExit, result, id);
  }
  uint32_t launch(Replay& replay) {
    call_enter(replay);
    call_exit(replay);
    return correlation_;
  }
  uint32_t launch() { return launch(*main_); }
  void node(uint64_t id, uint64_t origin = 0) {
    main_->take({id, 0, static_cast<uint8_t>(Op::Node), origin != 0 ? 1U : 0U});
    if (origin != 0) {
      main_->take({origin, 0, static_cast<uint8_t>(Op::NodeOrigin), 0});
    }
  }

  store::Store& rows() { return *state_->store; }
  Counters& counters() { return state_->counters; }
  std::string path(uint32_t row) const {
    std::string text;
    for (; row != kNone; row = static_cast<uint32_t>(state_->dictionaries.path_parent(row))) {
      text = std::string(state_->dictionaries.text(state_->dictionaries.path_name(row))) + (text.empty() ? "" : "/") +
             text;
    }
    return text;
  }
  // The region of a launch, as its path.
  std::string place(uint32_t correlation) {
    const uint32_t value = state_->correlations.find(correlation);
    if (value == Correlations::kUnknown || value == Correlations::kOutside || value == Correlations::kNowhere) {
      return value == Correlations::kUnknown ? "(unknown)" : value == Correlations::kOutside ? "(outside)" : "";
    }
    return path(rows().region.path[Correlations::decode(value)]);
  }

  // Ahead of now, so that no test depends on when it runs.
  static constexpr uint64_t kFirst = uint64_t{1} << 40;
  std::unique_ptr<DecodeState> state_ = std::make_unique<DecodeState>(Settings{});
  std::unique_ptr<Replay> main_ = std::make_unique<Replay>(*state_, 0, nullptr, true);
  std::unique_ptr<Replay> worker_ = std::make_unique<Replay>(*state_, 1, main_.get(), false);
  uint64_t moment_ = 0;
  uint32_t correlation_ = 0;
};

TEST_F(Replays, NestRegions) {
  enter("a");
  enter("b");
  exit("b");
  enter("c");
  exit("c");
  exit("a");
  ASSERT_EQ(rows().region.size(), 3U);
  EXPECT_EQ(path(rows().region.path[0]), "a");
  EXPECT_EQ(path(rows().region.path[1]), "a/b");
  EXPECT_EQ(path(rows().region.path[2]), "a/c");
  EXPECT_EQ(rows().region.parent[0], kNone);
  EXPECT_EQ(rows().region.parent[1], 0U);
  EXPECT_EQ(rows().region.parent[2], 0U);
}

TEST_F(Replays, TimeRegions) {
  enter("a");
  enter("b");
  exit("b");
  exit("a");
  EXPECT_EQ(rows().region.start_ns[0], ns(1));
  EXPECT_EQ(rows().region.duration_ns[0], ns(4) - ns(1));
  EXPECT_EQ(rows().region.duration_ns[1], ns(3) - ns(2));
  EXPECT_EQ(rows().region.flags[0], 0U);
}

TEST_F(Replays, RecurseIntoTheSameName) {
  enter("f");
  enter("f");
  exit("f");
  const uint32_t outer = launch();
  exit("f");
  EXPECT_EQ(path(rows().region.path[1]), "f/f");
  EXPECT_EQ(place(outer), "f");
  EXPECT_LT(rows().region.duration_ns[1], rows().region.duration_ns[0]);
}

TEST_F(Replays, CloseRegionsOutOfOrder) {
  enter("a");
  enter("b");
  exit("a");
  const uint32_t inside = launch();
  exit("b");
  const uint32_t outside = launch();
  EXPECT_EQ(place(inside), "a/b");
  EXPECT_EQ(place(outside), "");
  EXPECT_EQ(counters().unmatched_exits, 0U);
}

TEST_F(Replays, CountExitsWithoutAnEnter) {
  exit("never entered");
  EXPECT_EQ(counters().unmatched_exits, 1U);
}

TEST_F(Replays, GiveALaunchTheInnermostRegion) {
  const uint32_t before = launch();
  enter("a");
  const uint32_t in_a = launch();
  enter("b");
  const uint32_t in_b = launch();
  exit("b");
  const uint32_t in_a_again = launch();
  exit("a");
  EXPECT_EQ(place(before), "");
  EXPECT_EQ(place(in_a), "a");
  EXPECT_EQ(place(in_b), "a/b");
  EXPECT_EQ(place(in_a_again), "a");
}

TEST_F(Replays, KeepTasksOfAThreadApart) {
  strand(1);
  enter("one");
  strand(2);
  enter("two");
  const uint32_t in_two = launch();
  strand(1);
  exit("one");
  strand(2);
  const uint32_t in_two_again = launch();
  exit("two");
  EXPECT_EQ(place(in_two), "one/two");  // task 1 is what the thread did when task 2 came up
  EXPECT_EQ(place(in_two_again), "one/two");
  EXPECT_EQ(counters().unmatched_exits, 0U);
}

TEST_F(Replays, InterleaveTasksInsideTheThreadsOwnRegion) {
  strand(9);
  enter("loop");
  strand(1);
  enter("one");
  strand(2);
  enter("two");
  strand(1);
  enter("deep");
  const uint32_t first = launch();
  strand(2);
  exit("two");
  strand(1);
  exit("deep");
  const uint32_t second = launch();
  exit("one");
  strand(9);
  exit("loop");
  EXPECT_EQ(place(first), "loop/one/deep");
  EXPECT_EQ(place(second), "loop/one");
}

TEST_F(Replays, CloseARegionFromAnotherTask) {
  strand(1);
  enter("generator");
  strand(2);
  enter("other");
  exit("generator");
  EXPECT_EQ(counters().unmatched_exits, 0U);
  EXPECT_GT(rows().region.duration_ns[0], 0);
}

TEST_F(Replays, DoNotGrowWithTasksThatCameAndWent) {
  strand(1);
  for (uint64_t task = 2; task < 100'000; ++task) {  // quadratic if each one stayed
    strand(task);
    enter("task");
    exit("task");
  }
  EXPECT_EQ(rows().region.size(), 99'998U);
}

TEST_F(Replays, FindATaskAmongManyThatAreUnderWay) {
  constexpr uint64_t kTasks = 50'000;  // quadratic if each switch looked through all
  for (uint64_t task = 1; task <= kTasks; ++task) {
    begin_task(*main_, task, 0, 0);
    enter("task");
  }
  for (uint64_t task = kTasks; task != 0; --task) {
    strand(task);
    enter("in");
    exit("in");
    exit("task");
  }
  EXPECT_EQ(counters().unmatched_exits, 0U);
  EXPECT_EQ(rows().region.parent[kTasks], kTasks - 1);
  EXPECT_EQ(rows().region.parent[2 * kTasks - 1], 0U);
}

TEST_F(Replays, KeepIndependentTasksSideBySide) {
  begin_task(*main_, 1, 0, 11);
  enter("one");
  begin_task(*main_, 2, 0, 12);
  enter("two");
  EXPECT_EQ(parent(1), "");
}

TEST_F(Replays, PutATaskWhereItWasCreatedThoughThatWasLeft) {
  leave_what_creates_a_task();
  begin_task(*main_, 2, 11, 13);
  enter("task");
  EXPECT_EQ(parent(2), "creates");
}

TEST_F(Replays, PutATaskWhereItsCreatorStillIs) {
  begin_task(*main_, 1, 0, 11);
  enter("creates");
  begin_task(*main_, 2, 11, 12);
  enter("task");
  EXPECT_EQ(parent(1), "creates");
}

TEST_F(Replays, SettleAnOriginWhenTheNextOneBegins) {
  leave_what_creates_a_task();
  begin_task(*worker_, 2, 11, 13);
  enter(*worker_, "on a thread");
  EXPECT_EQ(parent(2), "creates");
}

TEST_F(Replays, TellATaskFromOneThatEndedInItsPlaceWithRegionsOpen) {
  begin_task(*main_, 1, 0, 11);
  enter("never left");
  begin_task(*main_, 1, 0, 12);
  enter("another");
  EXPECT_EQ(parent(1), "");
}

TEST_F(Replays, GoOnWithACallAroundWhatWasOpenWithinIt) {
  say(*main_, Op::Enter, name("call"), part(7));
  enter("block");
  exit_part("call", 7);
  say(*main_, Op::Enter, name("call"), part(7));
  enter("inner");
  EXPECT_EQ(parent(2), "");
  EXPECT_EQ(parent(3), "call/block");
}

TEST_F(Replays, JoinThePartsOfACall) {
  call_in_two_parts();
  say(*main_, Op::Enter, name("call"), part(7));  // a later call of the number
  ASSERT_EQ(rows().resumption.size(), 3U);
  EXPECT_EQ(rows().resumption.suspended_ns[0], ns(5) - ns(2));
  EXPECT_EQ(rows().resumption.first[1], 0U);
  EXPECT_EQ(rows().resumption.suspended_ns[1], 0);
  EXPECT_EQ(rows().resumption.first[2], 3U);
}

TEST_F(Replays, TellACallFromARegionOfItsNameWithinIt) {
  say(*main_, Op::Enter, name("call"), part(7));   // 1
  enter("call");                                   // 2
  exit_part("call", 7);                            // 3
  say(*main_, Op::Enter, name("call"), part(7));   // 4
  exit("call");                                    // 5
  exit_part("call", 7, ExitDetail::kByException);  // 6
  ASSERT_EQ(rows().resumption.size(), 2U);
  EXPECT_EQ(rows().resumption.suspended_ns[0], ns(4) - ns(3));
  ASSERT_EQ(rows().region.size(), 3U);
  EXPECT_EQ(rows().region.duration_ns[0], ns(3) - ns(1));
  EXPECT_EQ(rows().region.duration_ns[1], ns(5) - ns(2));
  EXPECT_EQ(rows().region.duration_ns[2], ns(6) - ns(4));
}

TEST_F(Replays, ShowMarksInTheirRegion) {
  enter("a");
  say(*main_, Op::Mark, name("here"));
  ASSERT_EQ(rows().mark.size(), 1U);
  EXPECT_EQ(rows().mark.start_ns[0], now());
  EXPECT_EQ(rows().mark.region[0], 0U);
  EXPECT_EQ(state_->dictionaries.text(rows().mark.name[0]), "here");
}

TEST_F(Replays, LendRegionsToThreadsWithoutTheirOwn) {
  enter("main");
  const uint32_t inherited = launch(*worker_);
  enter(*worker_, "own");
  const uint32_t own = launch(*worker_);
  exit(*worker_, "own");
  exit("main");
  const uint32_t nothing = launch(*worker_);
  EXPECT_EQ(place(inherited), "main");
  EXPECT_EQ(place(own), "own");
  EXPECT_EQ(place(nothing), "");
}

TEST_F(Replays, LendTheRegionOfTheMomentNotTheNewest) {
  enter("early");
  const uint64_t moment = ++moment_;
  exit("early");
  enter("late");
  worker_->take({kFirst + moment * 1'000'000, 77, static_cast<uint8_t>(Op::CallEnter), fakes::kLaunchKernel});
  EXPECT_EQ(place(77), "early");
}

TEST_F(Replays, LendARegionThatWasOpenBeforeTheWindow) {
  open(INT64_MAX);
  enter("before");
  moment_ += 10;
  open(now());
  const uint32_t inherited = launch(*worker_);
  EXPECT_EQ(place(inherited), "before");
}

TEST_F(Replays, RecordACall) {
  enter("a");
  const uint32_t correlation = launch();
  ASSERT_EQ(rows().api.size(), 1U);
  EXPECT_EQ(rows().api.correlation[0], correlation);
  EXPECT_EQ(rows().api.start_ns[0], ns(2));
  EXPECT_EQ(rows().api.duration_ns[0], ns(3) - ns(2));
  EXPECT_EQ(rows().api.region[0], 0U);
  EXPECT_EQ(counters().launches, 1U);
}

TEST_F(Replays, CountLaunchesCopiesAndGraphsApart) {
  for (const uint32_t id : {fakes::kLaunchKernel, fakes::kMemcpyAsync, fakes::kGraphLaunch, fakes::kCtxSynchronize}) {
    call_enter(*main_, id);
    call_exit(*main_, id);
  }
  EXPECT_EQ(counters().launches, 1U);
  EXPECT_EQ(counters().copies, 1U);
  EXPECT_EQ(counters().graph_launches, 1U);
  EXPECT_EQ(counters().callbacks, 4U);
}

TEST_F(Replays, AwaitNothingFromAFailedCall) {
  const uint32_t correlation = call_enter(*main_);
  call_exit(*main_, fakes::kLaunchKernel, 700);
  EXPECT_EQ(counters().launches, 0U);
  EXPECT_EQ(state_->correlations.take(correlation).awaited, Correlations::Awaits::Nothing);
  const store::Store store = fakes::copy_of(state_->dictionaries);
  EXPECT_EQ(store.call.result[rows().api.call[0]], 700);
}

TEST_F(Replays, AwaitNothingFromACallIntoACapture) {
  const uint32_t correlation = call_enter(*main_);
  node(42);
  call_exit(*main_);
  EXPECT_EQ(counters().launches, 0U);
  EXPECT_EQ(state_->correlations.take(correlation).awaited, Correlations::Awaits::Nothing);
  const store::Store store = fakes::copy_of(state_->dictionaries);
  EXPECT_EQ(store.call.flags[rows().api.call[0]], store::kCaptured);
}

TEST_F(Replays, IgnoreTheEndOfACallWhoseBeginWasNotSeen) {
  call_exit(*main_);
  EXPECT_EQ(counters().launches, 0U);
  EXPECT_EQ(rows().api.size(), 0U);
}

TEST_F(Replays, NestCalls) {
  call_enter(*main_, fakes::kMemcpyAsync);
  launch();
  call_exit(*main_, fakes::kMemcpyAsync);
  ASSERT_EQ(rows().api.size(), 2U);
  EXPECT_GT(rows().api.duration_ns[0], rows().api.duration_ns[1]);
}

TEST_F(Replays, RememberWhereANodeWasCaptured) {
  enter("capture");
  call_enter(*main_);
  node(42);
  call_exit(*main_);
  exit("capture");
  ASSERT_NE(state_->node_paths.find(42), nullptr);
  EXPECT_EQ(path(*state_->node_paths.find(42)), "capture");
}

TEST_F(Replays, KeepBothTableOfNodesInBounds) {
  node(1);
  for (uint64_t clone = 2; clone < (uint64_t{3} << 20); ++clone) {
    node(clone, 1);
  }
  EXPECT_LE(state_->node_paths.size() + state_->node_origins.size(), std::size_t{1} << 20);
}

TEST_F(Replays, LeaveOutWhatLiesOutsideTheWindow) {
  open(INT64_MAX);
  enter("before");
  exit("before");
  const uint32_t before = launch();
  open(now() + 1);
  enter("inside");
  const uint32_t inside = launch();
  exit("inside");
  close(now() + 1);
  enter("after");
  const uint32_t after = launch();
  say(*main_, Op::Mark, name("after"));
  EXPECT_EQ(rows().region.size(), 1U);
  EXPECT_EQ(rows().api.size(), 1U);
  EXPECT_EQ(rows().mark.size(), 0U);
  EXPECT_EQ(place(before), "(outside)");
  EXPECT_EQ(place(inside), "inside");
  EXPECT_EQ(place(after), "(outside)");
  EXPECT_EQ(counters().launches, 1U);
}

TEST_F(Replays, ClipARegionThatWasOpenBeforeTheWindow) {
  open(INT64_MAX);
  enter("a");
  enter("b");
  moment_ += 5;
  open(now());
  const uint32_t inside = launch();
  exit("b");
  exit("a");
  ASSERT_EQ(rows().region.size(), 2U);
  EXPECT_EQ(rows().region.start_ns[0], ns(7));
  EXPECT_EQ(rows().region.duration_ns[0], now() - ns(7));
  EXPECT_EQ(rows().region.parent[1], 0U);
  EXPECT_EQ(rows().region.flags[0], store::kClipped);
  EXPECT_EQ(place(inside), "a/b");
}

TEST_F(Replays, EndOpenRegionsWithTheWindow) {
  enter("a");
  launch();
  moment_ += 5;
  close(now());
  main_->close_window(now());
  EXPECT_EQ(rows().region.duration_ns[0], ns(8) - ns(1));
  EXPECT_EQ(rows().region.flags[0], store::kOpen);
}

TEST_F(Replays, EndRegionsThatCloseAfterTheWindowWithIt) {
  enter("a");
  close(ns(2));
  moment_ = 5;
  exit("a");
  main_->close_window(ns(2));
  EXPECT_EQ(rows().region.duration_ns[0], ns(2) - ns(1));
}

TEST_F(Replays, EndOpenCallsWithTheWindow) {
  call_enter(*main_);
  moment_ += 5;
  close(now());
  main_->close_window(now());
  EXPECT_EQ(rows().api.duration_ns[0], ns(6) - ns(1));
  call_exit(*main_);
  EXPECT_EQ(counters().launches, 1U);
}

TEST_F(Replays, CarryOpenRegionsIntoTheNextWindow) {
  enter("a");
  launch();
  close(now());
  main_->close_window(now());
  rows().region.drop_front(1);
  rows().api.drop_front(1);
  open(now() + 1);
  close(INT64_MAX);
  const uint32_t second = launch();
  ASSERT_EQ(rows().region.size(), 1U);
  EXPECT_EQ(place(second), "a");
  EXPECT_EQ(rows().region.flags[0], store::kClipped | store::kOpen);
}

TEST_F(Replays, EndWhatAThreadLeftOpenWithItsLastEvent) {
  enter(*worker_, "left open");
  launch(*worker_);
  moment_ += 100;
  worker_->end_thread();
  EXPECT_EQ(rows().region.duration_ns[0], ns(3) - ns(1));
}

TEST_F(Replays, TieAGpuTimeToItsRegion) {
  enter("a");
  enter("b");
  main_->take({5, name("a"), static_cast<uint8_t>(Op::GpuTime), 0});
  ASSERT_EQ(state_->gpu_spans.size(), 1U);
  EXPECT_EQ(state_->gpu_spans[0].pair, 5U);
  EXPECT_EQ(state_->gpu_spans[0].region, 0U);
}

TEST_F(Replays, KeepAGpuTimeOutsideTheWindowVoidButGivenBack) {
  open(INT64_MAX);
  enter("a");
  main_->take({5, name("a"), static_cast<uint8_t>(Op::GpuTime), 0});
  ASSERT_EQ(state_->gpu_spans.size(), 1U);
  EXPECT_EQ(state_->gpu_spans[0].path, kNone);
}

TEST_F(Replays, LeaveOutLaunchesWhileTheGpuIsSwitchedOff) {
  enter("step");
  const uint32_t before = launch();
  state_->window.gpu.turn(false, now() + 1);
  const uint32_t meanwhile = launch();
  state_->window.gpu.turn(true, now() + 1);
  const uint32_t after = launch();
  exit("step");
  EXPECT_EQ(place(before), "step");
  EXPECT_EQ(place(meanwhile), "(outside)");
  EXPECT_EQ(place(after), "step");
  EXPECT_EQ(rows().api.size(), 2U);
  EXPECT_EQ(counters().launches, 2U);
}

TEST_F(Replays, KeepACallThatBeganBeforeTheGpuWasSwitchedOff) {
  const uint32_t call = call_enter(*main_);
  state_->window.gpu.turn(false, now() + 1);
  call_exit(*main_);
  EXPECT_EQ(place(call), "");
  EXPECT_EQ(counters().launches, 1U);
}

TEST_F(Replays, LeaveOutRegionsWhileTheyAreSwitchedOff) {
  enter("step");
  state_->window.regions.turn(false, now() + 1);
  enter("hidden");
  const uint32_t inside = launch();
  state_->window.regions.turn(true, now() + 1);
  enter("seen");
  const uint32_t seen = launch();
  exit("seen");
  exit("hidden");
  exit("step");
  EXPECT_EQ(place(inside), "step");
  EXPECT_EQ(place(seen), "step/seen");
  ASSERT_EQ(rows().region.size(), 2U);
  EXPECT_EQ(rows().region.parent[1], 0U);
  EXPECT_EQ(rows().region.duration_ns[0], ns(moment_) - ns(1));
  EXPECT_EQ(rows().region.flags[0], 0);
  EXPECT_EQ(counters().unmatched_exits, 0U);
}

TEST_F(Replays, LeaveOutMarksAndRangesWhileRegionsAreSwitchedOff) {
  state_->window.regions.turn(false, now() + 1);
  say(*main_, Op::Mark, name("epoch"));
  say(*main_, Op::RangeStart, name("range"));
  say(*main_, Op::RangeEnd, 0);
  EXPECT_EQ(rows().mark.size(), 0U);
  EXPECT_EQ(rows().region.size(), 0U);
}

TEST_F(Replays, ShowARegionThatWasHiddenInTheNextWindow) {
  enter("step");
  state_->window.regions.turn(false, now() + 1);
  enter("hidden");
  state_->window.regions.turn(true, now() + 1);
  enter("inner");
  main_->close_window(now());
  state_->window.regions.reset();
  state_->store = std::make_unique<store::Store>();
  const uint32_t inside = launch();
  EXPECT_EQ(place(inside), "step/hidden/inner");
}

TEST_F(Replays, RefuseRowsOnceTheCapIsReached) {
  enter("before");
  state_->full = true;
  enter("refused");
  launch();
  say(*main_, Op::Mark, name("refused"));
  exit("refused");
  exit("before");
  EXPECT_EQ(rows().region.size(), 1U);
  EXPECT_GT(rows().region.duration_ns[0], 0);
  EXPECT_EQ(rows().api.size(), 0U);
  EXPECT_EQ(counters().refused, 3U);
  EXPECT_EQ(counters().launches, 1U);
}

class Aggregates : public Replays {
 protected:
  Aggregates() { set_up({.mode = Mode::Aggregate}); }

  store::RegionTotals::Row total(const std::string& wanted) {
    store::Store store;
    state_->totals.move_into(store);
    for (std::size_t row = 0; row < store.region_total.size(); ++row) {
      if (path(store.region_total.path[row]) == wanted) {
        return store.region_total[row];
      }
    }
    return {};
  }
  std::map<std::string, int64_t> self_times() {
    store::Store store;
    state_->totals.move_into(store);
    std::map<std::string, int64_t> self;
    for (std::size_t row = 0; row < store.region_total.size(); ++row) {
      const auto region = store.region_total[row];
      self[path(region.path)] = region.total_ns - region.child_ns;
    }
    return self;
  }
  std::string work_path(uint32_t correlation) {
    return path(Correlations::decode(state_->correlations.find(correlation)));
  }
};

TEST_F(Aggregates, KeepNoRows) {
  enter("a");
  launch();
  say(*main_, Op::Mark, name("m"));
  exit("a");
  EXPECT_EQ(rows().region.size() + rows().api.size() + rows().mark.size(), 0U);
}

TEST_F(Aggregates, CountACallOnceWithWhatItRanAndHowLongItWasSuspended) {
  call_in_two_parts();
  const auto row = total("call");
  EXPECT_EQ(row.count, 1U);
  EXPECT_EQ(row.total_ns, ns(6) - ns(5) + ns(2) - ns(1));
  EXPECT_EQ(row.suspended_ns, ns(5) - ns(2));
}

TEST_F(Aggregates, CountTimeInCallsAndInnerRegionsAsTheirs) {
  enter("a");  // 1
  enter("b");  // 2
  exit("b");   // 3
  launch();    // 4 to 5
  exit("a");   // 6
  const auto row = total("a");
  EXPECT_EQ(row.total_ns, ns(6) - ns(1));
  EXPECT_EQ(row.child_ns, (ns(3) - ns(2)) + (ns(5) - ns(4)));
}

TEST_F(Aggregates, CountOnlyTheTimeInsideTheWindow) {
  open(INT64_MAX);
  enter("a");      // 1
  launch();        // 2 to 3
  enter("inner");  // 4
  open(ns(5));
  moment_ = 5;
  exit("inner");  // 6
  close(ns(8));
  call_enter(*main_);  // 7
  moment_ = 9;
  call_exit(*main_);  // 10
  main_->close_window(ns(8));
  const auto row = total("a");
  EXPECT_EQ(row.count, 1U);
  EXPECT_EQ(row.total_ns, ns(8) - ns(5));
  EXPECT_EQ(row.child_ns, (ns(6) - ns(5)) + (ns(8) - ns(7)));
}

TEST_F(Aggregates, GiveTheTimeInsideAHiddenRegionToTheOneAround) {
  enter("step");
  state_->window.regions.turn(false, now() + 1);
  enter("hidden");
  state_->window.regions.turn(true, now() + 1);
  enter("inner");
  exit("inner");
  exit("hidden");
  exit("step");
  state_->totals.move_into(rows());
  ASSERT_EQ(rows().region_total.size(), 2U);
  for (std::size_t row = 0; row < 2; ++row) {
    const bool is_step = path(rows().region_total.path[row]) == "step";
    EXPECT_EQ(path(rows().region_total.path[row]), is_step ? "step" : "step/inner");
    EXPECT_EQ(rows().region_total.child_ns[row], is_step ? ns(4) - ns(3) : 0);
  }
}

TEST_F(Aggregates, GiveEachMomentToTheRegionEnteredLastThatIsStillOpen) {
  enter("a");  // 1
  enter("b");  // 2
  enter("c");  // 3
  exit("a");   // 4
  exit("b");   // 5
  launch();    // 6 to 7
  exit("c");   // 8
  const auto self = self_times();
  EXPECT_EQ(self.at("a"), ns(2) - ns(1));
  EXPECT_EQ(self.at("a/b"), ns(3) - ns(2));
  EXPECT_EQ(self.at("a/b/c"), ns(6) - ns(3) + ns(8) - ns(7));
}

TEST_F(Aggregates, CountTimeOnceInWhichTasksHaveRegionsInsideOne) {
  begin_task(*main_, 1, 0, 11);
  enter("creates");  // 1
  begin_task(*main_, 2, 11, 12);
  enter("one");  // 2
  begin_task(*main_, 3, 11, 13);
  enter("other");  // 3
  strand(2);
  exit("one");  // 4
  strand(3);
  exit("other");  // 5
  strand(1);
  exit("creates");  // 6
  const auto self = self_times();
  EXPECT_EQ(self.at("creates"), ns(2) - ns(1) + ns(6) - ns(5));
  EXPECT_EQ(self.at("creates/one"), ns(4) - ns(2));
  EXPECT_EQ(self.at("creates/other"), ns(5) - ns(3));
}

TEST_F(Aggregates, GiveTheTimeOfATaskThatGoesOnToWhatIsStillOpenAroundIt) {
  begin_task(*main_, 1, 0, 11);
  enter("around");   // 1
  enter("creates");  // 2
  begin_task(*main_, 2, 11, 12);
  enter("task");  // 3
  strand(1);
  exit("creates");  // 4
  strand(2);
  exit("task");  // 5
  strand(1);
  exit("around");  // 6
  const auto self = self_times();
  EXPECT_EQ(self.at("around"), ns(2) - ns(1) + ns(6) - ns(5));
  EXPECT_EQ(self.at("around/creates"), ns(3) - ns(2));
}

TEST_F(Aggregates, GiveAPartOfACallNoTimeOfWhatIsOpenWithinIt) {
  say(*main_, Op::Enter, name("call"), part(7));   // 1
  enter("block");                                  // 2
  exit_part("call", 7);                            // 3
  say(*main_, Op::Enter, name("call"), part(7));   // 4
  exit("block");                                   // 5
  exit_part("call", 7, ExitDetail::kByException);  // 6
  EXPECT_EQ(self_times().at("call"), ns(2) - ns(1) + ns(6) - ns(5));
}

TEST_F(Aggregates, CountWorkOnThePathOfTheRegionsThatAreStillOpen) {
  enter("around");
  enter("left");
  enter("goes on");
  const uint32_t before = launch();
  exit("left");
  const uint32_t after = launch();
  enter("inner");
  const uint32_t inside = launch();
  exit("goes on");
  const uint32_t last = launch();
  EXPECT_EQ(work_path(before), "around/left/goes on");
  EXPECT_EQ(work_path(after), "around/goes on");
  EXPECT_EQ(work_path(inside), "around/goes on/inner");
  EXPECT_EQ(work_path(last), "around/inner");
}

TEST_F(Aggregates, CountWorkOfATaskWithoutTheRegionThatItOutlasts) {
  begin_task(*main_, 1, 0, 11);
  enter("creates");
  begin_task(*main_, 2, 11, 12);
  enter("task");
  strand(1);
  exit("creates");
  strand(2);
  EXPECT_EQ(work_path(launch()), "task");
}

TEST_F(Aggregates, CountWorkOfACallThatGoesOnAsItsOwn) {
  say(*main_, Op::Enter, name("call"), part(7));
  enter("block");
  exit_part("call", 7);
  say(*main_, Op::Enter, name("call"), part(7));
  EXPECT_EQ(work_path(launch()), "call/block");
}

TEST_F(Aggregates, NeverGiveARegionMoreChildTimeThanTime) {
  enter("root");
  for (const char* child : {"a", "b", "c"}) {
    enter(child);
  }
  for (const char* child : {"a", "b", "c"}) {  // each of them is its parent's for most of the time
    exit(child);
  }
  exit("root");
  const auto row = total("root");
  EXPECT_LE(row.child_ns, row.total_ns);
}

TEST_F(Aggregates, LeaveOutRegionsThatEndedBeforeTheWindow) {
  open(INT64_MAX);
  enter("before");
  exit("before");
  open(now());
  launch();
  main_->close_window(now());
  EXPECT_EQ(total("before").count, 0U);
}

TEST(IsBackwardOf, ComparesAsAutogradNames) {
  EXPECT_TRUE(is_backward_of("AddmmBackward0", "aten::addmm"));
  EXPECT_TRUE(is_backward_of("NativeBatchNormBackward0", "aten::native_batch_norm"));
  EXPECT_TRUE(is_backward_of("ReluBackward1", "aten::relu_"));
  EXPECT_FALSE(is_backward_of("AddBackward0", "aten::addmm"));
  EXPECT_FALSE(is_backward_of("AddmmBackward0", "aten::add"));
  EXPECT_FALSE(is_backward_of("", ""));
  EXPECT_FALSE(is_backward_of("Backward", "aten::"));
}

// -- functions of Python: each frame has an address
// --------------------------------------------------------------------

class Functions : public Replays {
 protected:
  static uint32_t detail(uintptr_t frame, FunctionKind kind) { return base::FunctionDetail::make(kind, frame); }
  void call(const char* text, uintptr_t frame, FunctionKind kind = FunctionKind::Python) {
    say(*main_, Op::FunctionEnter, name(text), detail(frame, kind));
  }
  void leave(uintptr_t frame, FunctionKind kind = FunctionKind::Python) {
    say(*main_, Op::FunctionExit, 0, detail(frame, kind));
  }
  void argument(base::Argument what, uint64_t value, uint32_t second) {
    main_->take({value, second, static_cast<uint8_t>(Op::Argument), static_cast<uint32_t>(what)});
  }
  store::PythonFunctions& functions() { return rows().python_function; }
};

TEST_F(Functions, NestByTheirFrames) {
  call("f", 0x1000);
  call("g", 0x2000);
  leave(0x2000);
  leave(0x1000);
  ASSERT_EQ(functions().size(), 2U);
  EXPECT_EQ(functions().parent[0], kNone);
  EXPECT_EQ(functions().parent[1], 0U);
  EXPECT_EQ(functions().duration_ns[0], ns(4) - ns(1));
  EXPECT_EQ(functions().duration_ns[1], ns(3) - ns(2));
  EXPECT_EQ(functions().flags[1], 0U);
}

TEST_F(Functions, EndWhereAnotherTakesTheirFrameIfEventsWereLost) {
  main_->lose_events();
  call("main", 0x1000);
  for (int turn = 0; turn < 3; ++turn) {
    call("f", 0x2000);
    call("g", 0x3000);  // no end is seen
  }
  leave(0x1000);
  ASSERT_EQ(functions().size(), 7U);
  for (uint32_t turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(functions().parent[1 + 2 * turn], 0U);
    EXPECT_EQ(functions().parent[2 + 2 * turn], 1 + 2 * turn);
    EXPECT_EQ(functions().start_ns[1 + 2 * turn] + functions().duration_ns[1 + 2 * turn],
              ns(4 + 2 * static_cast<int>(turn)));
  }
}

TEST_F(Functions, EndWithTheirCallerWhereTheirOwnEndIsMissing) {
  call("f", 0x1000);
  call("lost", 0x2000);
  call("len", 0x2000, FunctionKind::BuiltIn);
  leave(0x1000);
  for (uint32_t row = 0; row < 3; ++row) {
    EXPECT_EQ(functions().start_ns[row] + functions().duration_ns[row], ns(4));
    EXPECT_EQ(functions().flags[row], 0U);
  }
}

TEST_F(Functions, IgnoreAReturnWithoutACall) {
  call("f", 0x1000);
  leave(0x3000);
  leave(0x1000, FunctionKind::BuiltIn);
  EXPECT_EQ(functions().flags[0], store::kOpen);
  EXPECT_EQ(counters().unmatched_exits, 0U);
}

TEST_F(Functions, AreNoRegionsAndLeaveThoseAsTheyAre) {
  call("f", 0x1000);
  enter("a");
  call("g", 0x2000);
  const uint32_t launched = launch();
  exit("a");
  leave(0x2000);
  ASSERT_EQ(rows().region.size(), 1U);
  EXPECT_EQ(place(launched), "a");
  EXPECT_EQ(counters().region_events, 2U);
}

TEST_F(Functions, KeepTheArgumentsOfTheRegionThatComesNext) {
  argument(base::Argument::Operator, 7, 0);
  call("f", 0x1000);
  say(*main_, Op::Enter, name("a"), static_cast<uint32_t>(base::RegionKind::Op));
  ASSERT_EQ(rows().detail.size(), 1U);
  EXPECT_EQ(rows().detail.sequence[0], 7);
}

TEST_F(Functions, KnowWhichModuleOfItsClassIsCalled) {
  argument(base::Argument::Module, 0, 3);
  call("nn.Module: Linear_2", 0x1000);
  call("forward", 0x2000);
  EXPECT_EQ(functions().module[0], 2U);
  EXPECT_EQ(functions().module[1], kNone);
}

TEST_F(Functions, ThatRanBeforeBeginWithTheWindow) {
  open(ns(1));
  moment_ = 4;
  say(*main_, Op::FunctionEnter, name("main"), detail(0x1000, FunctionKind::Python) | base::FunctionDetail::kRunning);
  leave(0x1000);
  EXPECT_EQ(functions().start_ns[0], ns(1));
  EXPECT_EQ(functions().duration_ns[0], ns(6) - ns(1));
  EXPECT_EQ(functions().flags[0], store::kClipped);
}

TEST_F(Functions, EndWithTheWindowAndDoNotReachIntoTheNext) {
  call("f", 0x1000);
  close(ns(2));
  main_->close_window(ns(2));
  EXPECT_EQ(functions().duration_ns[0], ns(2) - ns(1));
  EXPECT_EQ(functions().flags[0], store::kOpen);
  close(INT64_MAX);
  call("g", 0x2000);
  EXPECT_EQ(functions().parent[1], kNone);
}

TEST_F(Functions, AreLeftOutWhileRegionsAreSwitchedOff) {
  state_->window.regions.turn(false, ns(0));
  call("f", 0x1000);
  EXPECT_EQ(functions().size(), 0U);
}

}  // namespace

}  // namespace gpuscope::attribution
