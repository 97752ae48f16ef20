// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/memory/history.h"
#include "gpuscope/torch/operators.h"

namespace gpuscope::torch {
namespace {

TEST(RangeText, ReadsAnOperatorsParts) {
  const RangeText range =
      parse_range("aten::mm, seq = 41, op_id = 17, sizes = [[4, 8], [8, 2]], input_op_ids = [(16,0), (9,1)]");
  EXPECT_EQ(range.name, "aten::mm");
  EXPECT_EQ(range.sequence, 41);
  EXPECT_EQ(range.op, 17U);
  EXPECT_EQ(range.shapes, "[[4, 8], [8, 2]]");
  EXPECT_EQ(range.producer, 16U);
}

TEST(RangeText, ReadsAnOperatorWithoutNumbersOfAutogradOrShapes) {
  const RangeText range = parse_range("aten::empty, op_id = 2");
  EXPECT_EQ(range.name, "aten::empty");
  EXPECT_EQ(range.sequence, -1);
  EXPECT_EQ(range.op, 2U);
  EXPECT_TRUE(range.shapes.empty());
  EXPECT_EQ(range.producer, 0U);
}

TEST(RangeText, TakesTextOfAnotherFormAsTheName) {
  for (const char* text : {"", "forward", "a, b", ", op_id", "layer, seq = ", "x, sizes = [[1]]", "step 12", "12"}) {
    const RangeText range = parse_range(text);
    EXPECT_EQ(range.name, text);
    EXPECT_EQ(range.sequence, -1);
  }
}

TEST(RangeText, KeepsNumbersAtTheEndOfAName) {
  EXPECT_EQ(parse_range("ReluBackward0, op_id = 3").name, "ReluBackward0");
  EXPECT_EQ(parse_range("AddBackward12, seq = 7, op_id = 3").name, "AddBackward12");
}

TEST(RangeText, SurvivesTextThatIsCutOffAnywhere) {
  const std::string whole = "aten::mm, seq = 41, op_id = 17, sizes = [[4, 8]], input_op_ids = [(16,0)]";
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);  // its own memory, so that a sanitizer sees a read too far
    EXPECT_LE(parse_range(cut).name.size(), cut.size());
  }
}

TEST(RangeText, SurvivesNumbersThatAreTooLarge) {
  const RangeText range = parse_range("f, seq = 99999999999999999999, op_id = 99999999999");
  EXPECT_EQ(range.sequence, -1);
  EXPECT_EQ(range.op, 0U);
}

TEST(RangeText, TellsOperatorsFromWhatAProgramNamed) {
  for (const char* op : {"aten::add_, op_id = 1", "torch::autograd::AccumulateGrad, op_id = 1",
                         "MulBackward0, op_id = 1", "MyFunctionBackward, op_id = 1", "detach, op_id = 1",
                         "Exp, seq = 3, op_id = 1", "autograd::engine::evaluate_function: MulBackward0, op_id = 1"}) {
    const RangeText range = parse_range(op);
    EXPECT_TRUE(names_op(range.name, range.sequence)) << op;
  }
  for (const char* text : {"forward, op_id = 1", "Optimizer.step#SGD.step, op_id = 1", "data transfer, op_id = 1",
                           "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__, op_id = 1"}) {
    const RangeText range = parse_range(text);
    EXPECT_FALSE(names_op(range.name, range.sequence)) << text;
  }
}

}  // namespace

// The shapes of torch's classes, as its headers declare them: a compiler lays out the virtual tables. Not in the
// anonymous namespace, where the compiler would know that nobody overrides them.
struct ProfilerStubs {
  virtual void record(void*, void*, int64_t*) const {}
  virtual float elapsed(const void*, const void*) const { return 0; }
  virtual void mark(const char*) const {}
  virtual void rangePush(const char* name) const { pushed.emplace_back(name); }
  virtual void rangePop() const { ++popped; }
  virtual bool enabled() const { return is_enabled; }
  virtual void onEachDevice(std::function<void(int)>) const {}
  virtual void synchronize() const { ++synchronized; }
  virtual ~ProfilerStubs() = default;

  bool is_enabled = true;
  mutable std::vector<std::string> pushed;
  mutable int popped = 0;
  static inline int synchronized = 0;  // torch's class has no members: it is called on our object
};

struct MemoryReporter {
  virtual ~MemoryReporter() = default;
  virtual void reportMemoryUsage(void*, int64_t, size_t, size_t, uint16_t) { ++reported; }
  virtual void reportOutOfMemory(int64_t, size_t, size_t, uint16_t) {}
  virtual bool memoryProfilingEnabled() const { return false; }
  virtual int profilerType() const { return kNvtx; }

  static constexpr int kNvtx = 3;
  int reported = 0;
};

namespace {

using base::EnterDetail;
using base::Event;
using base::EventLogs;
using base::Op;

ProfilerStubs* registered = nullptr;
MemoryReporter* state = nullptr;

driver::Torch fake_torch() {
  driver::Torch torch;
  torch.register_cuda_methods = [](void* stubs) { registered = static_cast<ProfilerStubs*>(stubs); };
  torch.cuda_stubs = []() -> void* { return registered; };
  torch.debug_info = [](void*) -> void* { return state; };
  return torch;
}

std::vector<Event> take_events() {
  std::vector<Event> events;
  base::EventLog* log = EventLogs::current();
  log->read(log->end(), [&](const Event& event) { events.push_back(event); });
  return events;
}

// The compiler sees which object it made: without this it would call its functions directly.
ProfilerStubs* laundered() {
  ProfilerStubs* volatile opaque = registered;
  return opaque;
}

class OperatorRangesTest : public testing::Test {
 protected:
  void SetUp() override {
    theirs().pushed.clear();
    if (registered == nullptr) {
      registered = &theirs();
    }
    ASSERT_TRUE(OperatorRanges::process().install(fake_torch()));
    base::listening = base::kListenRegions;
    take_events();
  }
  void TearDown() override {
    base::listening = 0;
    OperatorRanges::process().want(OperatorRanges::kNothing);
    take_events();
  }
  // Registered once a process, as torch's is.
  static ProfilerStubs& theirs() {
    static auto* stubs = new ProfilerStubs;
    return *stubs;
  }
};

TEST_F(OperatorRangesTest, WritesARangeWithWhatItsTextSays) {
  OperatorRanges::process().want(OperatorRanges::kRanges | OperatorRanges::kOperands);
  laundered()->rangePush("aten::relu, seq = 2, op_id = 7, sizes = [[3]], input_op_ids = [(5,0)]");
  laundered()->rangePop();
  const std::vector<Event> events = take_events();
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].word, 2U);
  EXPECT_EQ(base::Names::process().text(events[0].id), "[[3]]");
  EXPECT_EQ(events[1].word, 7U);
  EXPECT_EQ(events[1].id, 5U);
  EXPECT_EQ(static_cast<Op>(events[2].op), Op::Enter);
  EXPECT_EQ(base::Names::process().text(events[2].id), "aten::relu");
  EXPECT_EQ(EnterDetail::kind(events[2].detail), base::RegionKind::Op);
  EXPECT_EQ(static_cast<Op>(events[3].op), Op::Pop);
  EXPECT_EQ(events[3].detail, EnterDetail::source(events[2].detail));
  EXPECT_TRUE(theirs().pushed.empty());
}

TEST_F(OperatorRangesTest, PassesRangesOnWhileNothingIsWanted) {
  const int before = theirs().popped;
  laundered()->rangePush("theirs");
  laundered()->rangePop();
  EXPECT_EQ(theirs().pushed, std::vector<std::string>{"theirs"});
  EXPECT_EQ(theirs().popped, before + 1);
  EXPECT_TRUE(take_events().empty());
}

TEST_F(OperatorRangesTest, PassesEverythingElseOn) {
  OperatorRanges::process().want(OperatorRanges::kRanges);
  const int before = ProfilerStubs::synchronized;
  laundered()->synchronize();
  EXPECT_EQ(ProfilerStubs::synchronized, before + 1);
}

TEST_F(OperatorRangesTest, CountsAndLogsNothingWhenProbed) {
  OperatorRanges::process().take_counts();
  OperatorRanges::process().probe(true);
  laundered()->rangePush("aten::empty, op_id = 1");
  laundered()->rangePop();
  OperatorRanges::process().probe(false);
  const OperatorRanges::Counts counts = OperatorRanges::process().take_counts();
  EXPECT_EQ(counts.pushes, 1U);
  EXPECT_EQ(counts.pops, 1U);
  EXPECT_TRUE(take_events().empty());
}

TEST_F(OperatorRangesTest, WritesAllocationsOfTheWatchedState) {
  auto reporter = std::make_unique<MemoryReporter>();
  state = reporter.get();
  OperatorRanges::process().want(OperatorRanges::kMemory);
  ASSERT_TRUE(OperatorRanges::process().watch_memory(fake_torch()));
  MemoryReporter* volatile opaque = state;
  EXPECT_TRUE(opaque->memoryProfilingEnabled());
  opaque->reportMemoryUsage(reinterpret_cast<void*>(0x1000), -512, 2048, 4096, 0x0301);
  const std::vector<Event> events = take_events();
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0].word, 0x1000U);
  EXPECT_EQ(static_cast<int64_t>(events[1].word), -512);
  EXPECT_EQ(events[1].id, 3U);
  EXPECT_EQ(events[2].word, 2048U);
  EXPECT_EQ(events[3].word, 4096U);
  EXPECT_EQ(static_cast<Op>(events[4].op), Op::Allocation);
  EXPECT_EQ(reporter->reported, 0);
  state = nullptr;
}

TEST_F(OperatorRangesTest, WritesAllocationsThatFailed) {
  auto reporter = std::make_unique<MemoryReporter>();
  state = reporter.get();
  OperatorRanges::process().want(OperatorRanges::kMemory);
  ASSERT_TRUE(OperatorRanges::process().watch_memory(fake_torch()));
  MemoryReporter* volatile opaque = state;
  opaque->reportOutOfMemory(512, 2048, 4096, 0x0301);
  const std::vector<Event> events = take_events();
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[1].word, 512U);
  EXPECT_EQ(events[1].id, 3U);
  EXPECT_EQ(events[2].word, 2048U);
  EXPECT_EQ(events[3].word, 4096U);
  EXPECT_EQ(static_cast<Op>(events[4].op), Op::Allocation);
  EXPECT_EQ(events[4].detail, 1U);
  state = nullptr;
}

class WatchedReports : public OperatorRangesTest {
 protected:
  void SetUp() override {
    OperatorRangesTest::SetUp();
    state = &reporter_;
    ASSERT_TRUE(OperatorRanges::process().watch_memory(fake_torch()));
  }
  void TearDown() override {
    memory::History::process().stop();
    state = nullptr;
    OperatorRangesTest::TearDown();
  }
  static MemoryReporter* watched() {
    MemoryReporter* volatile opaque = state;
    return opaque;
  }
  MemoryReporter reporter_;
};

TEST_F(WatchedReports, GoToTheHistoryWhateverTheSessionWants) {
  EXPECT_FALSE(watched()->memoryProfilingEnabled());
  memory::History::process().start(4, false);
  OperatorRanges::process().want(OperatorRanges::kNothing);
  EXPECT_TRUE(watched()->memoryProfilingEnabled());
  watched()->reportMemoryUsage(reinterpret_cast<void*>(0x1000), 512, 2048, 4096, 0x0301);
  watched()->reportMemoryUsage(reinterpret_cast<void*>(0x2000), 64, 64, 0, 0xFF00);
  const memory::HistoryColumns columns = memory::History::process().read();
  EXPECT_EQ(columns.address, (std::vector<uint64_t>{0x1000, 0x2000}));
  EXPECT_EQ(columns.bytes, (std::vector<int64_t>{512, 64}));
  EXPECT_EQ(columns.allocated, (std::vector<int64_t>{2048, 64}));
  EXPECT_EQ(columns.reserved, (std::vector<int64_t>{4096, 0}));
  EXPECT_EQ(columns.device, (std::vector<int32_t>{3, memory::kHost}));
  EXPECT_TRUE(take_events().empty());
}

TEST_F(WatchedReports, GoToThePeaksWithoutAHistory) {
  const memory::PeakMemory peak(3);
  EXPECT_TRUE(watched()->memoryProfilingEnabled());
  watched()->reportMemoryUsage(reinterpret_cast<void*>(0x1000), 512, 2048, 4096, 0x0301);
  EXPECT_EQ(peak.bytes(), 2048);
}

TEST_F(WatchedReports, GoToTheHistoryAndTheSessionAtOnce) {
  memory::History::process().start(4, false);
  OperatorRanges::process().want(OperatorRanges::kMemory);
  watched()->reportMemoryUsage(reinterpret_cast<void*>(0x1000), 512, 2048, 4096, 0x0301);
  EXPECT_EQ(memory::History::process().read().address.size(), 1U);
  EXPECT_EQ(take_events().size(), 5U);
}

TEST_F(OperatorRangesTest, HasAStateSayThatItIsKinetosAndReportAsBefore) {
  constexpr int kKineto = 2;
  MemoryReporter reporter;
  state = &reporter;
  MemoryReporter* volatile opaque = state;
  ASSERT_TRUE(OperatorRanges::process().name_kineto(fake_torch(), true));
  EXPECT_EQ(opaque->profilerType(), kKineto);
  opaque->reportMemoryUsage(nullptr, 1, 1, 1, 0);
  EXPECT_EQ(reporter.reported, 1);
  ASSERT_TRUE(OperatorRanges::process().name_kineto(fake_torch(), false));
  EXPECT_EQ(opaque->profilerType(), MemoryReporter::kNvtx);
  state = nullptr;
}

TEST_F(WatchedReports, ComeFromAStateThatSaysItIsKinetos) {
  ASSERT_TRUE(OperatorRanges::process().name_kineto(fake_torch(), true));
  memory::History::process().start(4, false);
  watched()->reportMemoryUsage(reinterpret_cast<void*>(0x1000), 512, 2048, 4096, 0x0301);
  EXPECT_EQ(watched()->profilerType(), 2);
  EXPECT_EQ(memory::History::process().read().address.size(), 1U);
  ASSERT_TRUE(OperatorRanges::process().name_kineto(fake_torch(), false));
  EXPECT_EQ(watched()->profilerType(), MemoryReporter::kNvtx);
}

TEST_F(OperatorRangesTest, SaysThatRangesMayBeSwitchedOnWhileItIsUsed) {
  theirs().is_enabled = false;
  EXPECT_FALSE(laundered()->enabled());
  OperatorRanges::process().use(true);
  EXPECT_TRUE(laundered()->enabled());
  OperatorRanges::process().use(false);
  theirs().is_enabled = true;
}

TEST_F(OperatorRangesTest, SaysWhenThereIsNoStateToWatch) {
  state = nullptr;
  EXPECT_FALSE(OperatorRanges::process().watch_memory(fake_torch()));
}

TEST_F(OperatorRangesTest, SaysWhenRangesCannotBeDropped) {
  EXPECT_FALSE(OperatorRanges::process().drop_ranges(driver::Torch{}));
}

TEST_F(OperatorRangesTest, RefusesALibtorchThatLacksThePlace) {
  EXPECT_FALSE(OperatorRanges::process().install(driver::Torch{}));
}

}  // namespace

}  // namespace gpuscope::torch
