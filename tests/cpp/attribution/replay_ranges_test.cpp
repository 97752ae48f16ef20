// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <string_view>

#include "gpuscope/attribution/replay.h"
#include "gpuscope/base/stacks.h"
#include "gpuscope/base/strings.h"

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
  store::Store copy;
  state_.dictionaries.copy_into(copy);
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

TEST_F(ReplayRanges, KeepsTheStacksOfRegionsWithTheirCallers) {
  base::Stacks& stacks = base::Stacks::process();
  const uint32_t outer = stacks.intern({0, name("main"), name("train.py"), 10});
  const uint32_t inner = stacks.intern({outer, name("step"), name("train.py"), 4});
  add_argument(main_, Argument::Stack, inner);
  say(main_, Op::Enter, name("forward"));
  store::Store copy;
  state_.dictionaries.copy_into(copy);
  const uint32_t row = store().detail.stack[0];
  EXPECT_EQ(copy.strings[copy.stack.function[row]], "step");
  EXPECT_EQ(copy.stack.line[copy.stack.parent[row]], 10U);
  EXPECT_EQ(copy.stack.parent[copy.stack.parent[row]], kNone);
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

}  // namespace
}  // namespace gpuscope::attribution
