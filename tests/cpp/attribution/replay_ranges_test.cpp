// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <string_view>

#include "gpuscope/attribution/replay.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/strings.h"

// A test names only the fields that it is about; the others are 0.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::attribution {
namespace {

using base::Argument;
using base::EnterDetail;
using base::Op;
using base::RegionKind;
using store::kNone;

constexpr uint32_t kOp = EnterDetail::make(RegionKind::Op, EnterDetail::kPopped | EnterDetail::kTorch);

uint32_t range_of(const char* domain) {
  return EnterDetail::make(RegionKind::Range, EnterDetail::kPopped, base::Names::process().intern(domain));
}

// Two threads whose events come at ticks 1, 2, 3 ... so many thousands.
class ReplayRanges : public testing::Test {
 protected:
  ReplayRanges() { state_.window.open_ns = INT64_MIN; }

  static uint32_t name(std::string_view text) { return base::Names::process().intern(text); }
  void say(Replay& replay, Op op, uint32_t id = 0, uint32_t detail = 0) {
    replay.take({kFirst + ++moment_ * 1'000'000, id, static_cast<uint8_t>(op), detail & 0xFFFFFF});
  }
  void add_argument(Replay& replay, Argument what, uint64_t value, uint32_t second = 0) {
    replay.take({value, second, static_cast<uint8_t>(Op::Argument), static_cast<uint8_t>(what)});
  }
  void push(Replay& replay, const char* text, uint32_t detail = kOp) { say(replay, Op::Enter, name(text), detail); }
  void pop(Replay& replay, uint32_t detail = kOp) { say(replay, Op::Pop, 0, EnterDetail::source(detail)); }
  void start(uint64_t id, const char* text) {
    add_argument(main_, Argument::RangeId, id);
    say(main_, Op::RangeStart, name(text), EnterDetail::make(RegionKind::Range));
  }
  void end(uint64_t id) {
    add_argument(engine_, Argument::RangeId, id);
    say(engine_, Op::RangeEnd);
  }
  int64_t ns(uint64_t moment) const { return state_.clock.to_ns(kFirst + moment * 1'000'000); }
  void op(Replay& replay, const char* text, int64_t sequence) {
    add_argument(replay, Argument::Operator, std::bit_cast<uint64_t>(sequence));
    push(replay, text);
  }

  const store::Store& store() const { return *state_.store; }
  const store::Regions& regions() const { return store().region; }
  std::string region(std::size_t row) const {
    return std::string(state_.dictionaries.text(state_.dictionaries.path_name(regions().path[row])));
  }
  bool open(std::size_t row) const { return (regions().flags[row] & store::kOpen) != 0; }

  static constexpr uint64_t kFirst = 1'000'000'000;
  uint64_t moment_ = 0;
  DecodeState state_{Settings{}};
  Replay main_{state_, 0, nullptr, true};
  Replay engine_{state_, 1, &main_, false};
};

TEST_F(ReplayRanges, NestsOperatorsInTheRegionsAroundThem) {
  say(main_, Op::Enter, name("forward"));
  push(main_, "aten::linear");
  push(main_, "aten::addmm");
  pop(main_);
  pop(main_);
  say(main_, Op::Exit, name("forward"));
  ASSERT_EQ(regions().size(), 3U);
  EXPECT_EQ(region(2), "aten::addmm");
  EXPECT_EQ(regions().parent[2], 1U);
  EXPECT_EQ(regions().parent[1], 0U);
  EXPECT_FALSE(open(0) || open(1) || open(2));
  EXPECT_LT(regions().duration_ns[2], regions().duration_ns[1]);
}

TEST_F(ReplayRanges, TellsAnOperatorFromARegionOfItsName) {
  say(main_, Op::Enter, name("x"));
  push(main_, "x");
  pop(main_);
  say(main_, Op::Exit, name("x"));
  EXPECT_NE(regions().path[0], regions().path[1]);
  const store::Store copy = fakes::copy_of(state_.dictionaries);
  EXPECT_EQ(copy.path.kind[regions().path[0]], static_cast<uint32_t>(RegionKind::Region));
  EXPECT_EQ(copy.path.kind[regions().path[1]], static_cast<uint32_t>(RegionKind::Op));
}

TEST_F(ReplayRanges, PopsTheLastRangeOfTheSameSource) {
  push(main_, "a", range_of("first"));
  push(main_, "b", range_of("second"));
  pop(main_, range_of("first"));  // out of turn: b stays open
  EXPECT_FALSE(open(0));
  EXPECT_TRUE(open(1));
  pop(main_, range_of("second"));
  EXPECT_FALSE(open(1));
  EXPECT_EQ(state_.counters.unmatched_exits, 0U);
}

TEST_F(ReplayRanges, LeavesARegionOpenWhenARangeOfItsNameIsPopped) {
  say(main_, Op::Enter, name("x"));
  pop(main_, range_of(""));
  EXPECT_TRUE(open(0));
  EXPECT_EQ(state_.counters.unmatched_exits, 1U);
}

TEST_F(ReplayRanges, LeavesARangeOpenWhenARegionOfItsNameIsLeft) {
  push(main_, "x", range_of(""));
  say(main_, Op::Exit, name("x"));
  EXPECT_TRUE(open(0));
}

TEST_F(ReplayRanges, KeepsWhatARangeWasGivenAlong) {
  add_argument(main_, Argument::Operator, 5, name("[[2, 3]]"));
  add_argument(main_, Argument::Operands, 17, 9);
  add_argument(main_, Argument::Unsigned, 4096, name("bytes"));
  add_argument(main_, Argument::Text, name("sum"), name("operation"));
  push(main_, "aten::mm");
  push(main_, "plain");
  ASSERT_EQ(store().detail.size(), 1U);
  const auto detail = store().detail[0];
  EXPECT_EQ(detail.region, 0U);
  EXPECT_EQ(detail.sequence, 5);
  EXPECT_EQ(state_.dictionaries.text(detail.shapes), "[[2, 3]]");
  EXPECT_EQ(detail.op, 17U);
  EXPECT_EQ(detail.producer, 9U);
  ASSERT_EQ(store().payload.size(), 2U);
  EXPECT_EQ(store().payload.value[0], 4096U);
  EXPECT_EQ(state_.dictionaries.text(static_cast<uint32_t>(store().payload.value[1])), "sum");
}

TEST_F(ReplayRanges, JoinsABackwardOperatorToTheNewestForwardOneOfItsNumber) {
  op(main_, "aten::linear", 3);
  op(main_, "aten::t", 3);
  pop(main_);
  pop(main_);
  push(engine_, "autograd::engine::evaluate_function: TBackward0");
  op(engine_, "TBackward0", 3);
  ASSERT_EQ(store().detail.size(), 3U);
  EXPECT_EQ(region(store().detail.forward[2]), "aten::t");
}

TEST_F(ReplayRanges, PutsOperatorsOfAThreadWithoutRegionsIntoTheRegionItWorksFor) {
  say(main_, Op::Enter, name("backward"));
  push(engine_, "AddmmBackward0");
  push(engine_, "aten::mm");
  pop(engine_);
  pop(engine_);
  say(main_, Op::Exit, name("backward"));
  push(engine_, "alone");
  EXPECT_EQ(regions().parent[1], 0U);
  EXPECT_EQ(regions().parent[2], 1U);
  EXPECT_EQ(regions().parent[3], kNone);
  EXPECT_EQ(regions().thread[1], 1U);
}

TEST_F(ReplayRanges, PutsOperatorsOfAThreadBesideThoseThatRunOnTheMainThreadMeanwhile) {
  say(main_, Op::Enter, name("step"));
  op(main_, "aten::linear", 3);
  op(main_, "aten::addmm", 3);
  op(engine_, "aten::mm", 4);
  EXPECT_EQ(regions().parent[2], 1U);
  EXPECT_EQ(regions().parent[3], 0U);
  EXPECT_EQ(state_.dictionaries.path_parent(regions().path[3]), regions().path[0]);
}

TEST_F(ReplayRanges, PutsOperatorsOfAThreadIntoNothingWhereTheMainThreadHasOperatorsAlone) {
  op(main_, "aten::mm", 3);
  op(engine_, "aten::mm", 4);
  EXPECT_EQ(regions().parent[1], kNone);
}

TEST_F(ReplayRanges, LeavesTheProgramsOwnRegionsOfAnotherThreadAlone) {
  say(main_, Op::Enter, name("serve"));
  say(engine_, Op::Enter, name("request"));
  EXPECT_EQ(regions().parent[1], kNone);
}

TEST_F(ReplayRanges, TellsForwardOperatorsOfSeveralThreadsApartByName) {
  op(main_, "aten::addmm", 3);
  pop(main_);
  op(engine_, "aten::relu", 3);  // a recomputation, which the engine's thread numbers for itself
  pop(engine_);
  push(engine_, "autograd::engine::evaluate_function: AddmmBackward0");
  op(engine_, "AddmmBackward0", 3);
  EXPECT_EQ(region(store().detail.forward[2]), "aten::addmm");
}

TEST_F(ReplayRanges, JoinsNothingWhenSeveralForwardOperatorsFit) {
  op(main_, "aten::addmm", 3);
  pop(main_);
  op(engine_, "aten::addmm", 3);
  pop(engine_);
  push(engine_, "autograd::engine::evaluate_function: AddmmBackward0");
  op(engine_, "AddmmBackward0", 3);
  EXPECT_EQ(store().detail.forward[2], kNone);
}

TEST_F(ReplayRanges, EndsAStartedRangeOnAnyThread) {
  add_argument(main_, Argument::RangeId, 77);
  say(main_, Op::RangeStart, name("request"), EnterDetail::make(RegionKind::Range));
  push(main_, "inside");
  add_argument(engine_, Argument::RangeId, 77);
  say(engine_, Op::RangeEnd);
  EXPECT_FALSE(open(0));
  EXPECT_NE(regions().flags[0] & store::kAsync, 0);
  EXPECT_EQ(regions().parent[1], kNone);  // nothing nests in it
  EXPECT_GT(regions().duration_ns[0], 0);
}

TEST_F(ReplayRanges, EndsAStartedRangeWhoseEndIsReadFirst) {
  moment_ = 10;
  add_argument(engine_, Argument::RangeId, 78);
  say(engine_, Op::RangeEnd);
  moment_ = 0;
  add_argument(main_, Argument::RangeId, 78);
  say(main_, Op::RangeStart, name("request"), EnterDetail::make(RegionKind::Range));
  EXPECT_FALSE(open(0));
  EXPECT_GT(regions().duration_ns[0], 0);
}

TEST_F(ReplayRanges, EndsAStartedRangeAroundManyThatCameAndWent) {
  start(77, "request");
  for (uint64_t id = 100; id < 70'100; ++id) {
    start(id, "short");
    end(id);
  }
  end(77);
  EXPECT_FALSE(open(0));
  EXPECT_EQ(regions().duration_ns[0], ns(140'002) - ns(1));
}

TEST_F(ReplayRanges, GivesUpRangesOnlyWhereTooManyAreStarted) {
  for (uint64_t id = 0; id < 70'000; ++id) {
    start(id, "never ended");
  }
  EXPECT_LE(state_.started_ranges.size(), 65'536U);
}

TEST_F(ReplayRanges, ClipsAStartedRangeToEachWindow) {
  state_.window.open_ns = ns(2);
  start(77, "request");  // 1
  start(78, "endless");  // 2
  start(79, "before");   // 3
  moment_ = 0;
  end(79);  // 1
  moment_ = 3;
  end(77);  // 4
  state_.close_ranges(ns(6));
  ASSERT_EQ(regions().size(), 3U);
  EXPECT_EQ(regions().duration_ns[0], ns(6) - ns(2));
  EXPECT_EQ(regions().flags[0], store::kAsync | store::kOpen);
  EXPECT_EQ(region(2), "request");
  EXPECT_EQ(regions().start_ns[2], ns(2));
  EXPECT_EQ(regions().duration_ns[2], ns(4) - ns(2));
  EXPECT_EQ(regions().flags[2], store::kAsync | store::kClipped);

  state_.window.open_ns = ns(8);
  state_.close_ranges(ns(9));
  ASSERT_EQ(regions().size(), 4U);
  EXPECT_EQ(region(3), "endless");
  EXPECT_EQ(regions().start_ns[3], ns(8));
  EXPECT_EQ(regions().duration_ns[3], ns(9) - ns(8));
  EXPECT_EQ(regions().flags[3], store::kAsync | store::kClipped | store::kOpen);
}

TEST_F(ReplayRanges, AddsUpWhatAStartedRangeTookOfTheWindow) {
  state_.settings.mode = Mode::Aggregate;
  state_.window.open_ns = ns(2);
  start(77, "request");  // 1
  start(78, "request");  // 2
  end(77);               // 3
  state_.close_ranges(ns(6));
  store::Store totals;
  state_.totals.move_into(totals);
  ASSERT_EQ(totals.region_total.size(), 1U);
  EXPECT_EQ(totals.region_total.total_ns[0], (ns(3) - ns(2)) + (ns(6) - ns(2)));
}

TEST_F(ReplayRanges, ShortensAStartedRangeToTheRing) {
  start(77, "request");  // 1
  state_.store->region.start_ns[0] = ns(2);
  end(77);  // 2
  EXPECT_EQ(regions().duration_ns[0], 0);
}

TEST_F(ReplayRanges, KeepsAllocationsInTheRegionOfTheirMoment) {
  push(main_, "aten::empty");
  add_argument(main_, Argument::Address, 0x1000);
  add_argument(main_, Argument::Bytes, std::bit_cast<uint64_t>(int64_t{-64}), 2);
  add_argument(main_, Argument::Allocated, 128);
  add_argument(main_, Argument::Reserved, 256);
  say(main_, Op::Allocation);
  pop(main_);
  ASSERT_EQ(store().allocation.size(), 1U);
  const auto allocation = store().allocation[0];
  EXPECT_EQ(allocation.bytes, -64);
  EXPECT_EQ(allocation.ordinal, 2U);
  EXPECT_EQ(allocation.allocated_bytes, 128U);
  EXPECT_EQ(allocation.region, 0U);
}

TEST_F(ReplayRanges, KeepsAllocationsThatFailedApart) {
  push(main_, "aten::empty");
  add_argument(main_, Argument::Bytes, uint64_t{1} << 40, 2);
  add_argument(main_, Argument::Allocated, 128);
  add_argument(main_, Argument::Reserved, 256);
  say(main_, Op::Allocation, 0, 1);
  pop(main_);
  EXPECT_EQ(store().allocation.size(), 0U);
  ASSERT_EQ(store().failed_allocation.size(), 1U);
  const auto failed = store().failed_allocation[0];
  EXPECT_EQ(failed.bytes, int64_t{1} << 40);
  EXPECT_EQ(failed.ordinal, 2U);
  EXPECT_EQ(failed.reserved_bytes, 256U);
  EXPECT_EQ(failed.region, 0U);
}

TEST_F(ReplayRanges, KeepsTheStacksOfRegionsWithTheirCallers) {
  base::Stacks& stacks = base::Stacks::process();
  const uint32_t outer = stacks.intern({0, name("main"), name("train.py"), 10});
  const uint32_t inner = stacks.intern({outer, name("step"), name("train.py"), 4});
  add_argument(main_, Argument::Stack, inner);
  say(main_, Op::Enter, name("forward"));
  const store::Store copy = fakes::copy_of(state_.dictionaries);
  const uint32_t row = store().detail.stack[0];
  EXPECT_EQ(copy.strings[copy.stack.function[row]], "step");
  EXPECT_EQ(copy.stack.line[copy.stack.parent[row]], 10U);
  EXPECT_EQ(copy.stack.parent[copy.stack.parent[row]], kNone);
}

}  // namespace
}  // namespace gpuscope::attribution
