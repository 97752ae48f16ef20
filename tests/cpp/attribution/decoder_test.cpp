// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "fakes/program.h"
#include "gpuscope/base/event_logs.h"

namespace gpuscope::attribution {
namespace {

using fakes::Program;
using store::kNone;
using store::Store;

constexpr int kSteps = 1500;

std::string path_text(const Store& store, uint32_t path) {
  std::string text;
  for (; path != kNone; path = store.path.parent[path]) {
    text.insert(0, store.strings[store.path.name[path]]);
    text.insert(text.begin(), '/');
  }
  return text;
}

std::string region_text(const Store& store, uint32_t region) {
  return region == kNone ? "" : path_text(store, store.region.path[region]);
}

// Every row of GPU work: its launch, duration and region; graph nodes in a table of their own.
struct Row {
  uint32_t correlation;
  int64_t start_ns;
  int64_t duration_ns;
  uint32_t region;
  uint32_t event;
  uint16_t flags;
  uint32_t kind;
};

std::vector<Row> work_rows(const Store& store) {
  std::vector<Row> rows;
  const auto add = [&](const auto& table, uint32_t kind) {
    for (uint32_t row = 0; row < table.size(); ++row) {
      rows.push_back({table.correlation[row], table.start_ns[row], table.duration_ns[row], table.region[row], row,
                      table.flags[row], kind});
    }
  };
  add(store.kernel, activity::kConcurrentKernel);
  add(store.memcpy, activity::kMemcpy);
  add(store.memset, activity::kMemset);
  return rows;
}

// Equal, or the first few differences.
template <class Set>
testing::AssertionResult same(const Set& found, const Set& expected) {
  std::vector<typename Set::value_type> missing;
  std::vector<typename Set::value_type> surplus;
  std::set_difference(expected.begin(), expected.end(), found.begin(), found.end(), std::back_inserter(missing));
  std::set_difference(found.begin(), found.end(), expected.begin(), expected.end(), std::back_inserter(surplus));
  if (missing.empty() && surplus.empty()) {
    return testing::AssertionSuccess();
  }
  const auto few = [](auto& values) {
    const std::size_t all = values.size();
    values.resize(std::min<std::size_t>(values.size(), 5));
    return std::to_string(all) + ": " + testing::PrintToString(values);
  };
  return testing::AssertionFailure() << "missing " << few(missing) << "\nsurplus " << few(surplus) << "\n";
}

// The moment that the ring counts back from.
int64_t newest(const Store& store) {
  int64_t newest_ns = INT64_MIN;
  const auto look = [&](const auto& table) {
    for (std::size_t row = 0; row < table.size(); ++row) {
      newest_ns = std::max(newest_ns, table.start_ns[row]);
    }
  };
  look(store.kernel);
  look(store.memcpy);
  look(store.memset);
  look(store.api);
  look(store.region);
  look(store.mark);
  return newest_ns;
}

struct Case {
  uint32_t seed;
  bool by_time;
};
void PrintTo(const Case& value, std::ostream* out) {
  *out << "seed " << value.seed << (value.by_time ? " by time" : "");
}

class RandomProgram : public testing::TestWithParam<Case> {
 protected:
  Program::Options options(Mode mode) const {
    Program::Options options;
    options.settings.mode = mode;
    options.settings.by_time = GetParam().by_time;
    options.seed = GetParam().seed;
    options.first_correlation = GetParam().seed % 2 == 0 ? UINT32_MAX - 300 : 1;  // over the edge and not
    return options;
  }
};

std::multiset<std::tuple<uint32_t, int64_t, std::string>> expected_rows(const Program& program) {
  std::multiset<std::tuple<uint32_t, int64_t, std::string>> rows;
  for (const auto& [correlation, works] : program.works) {
    for (const Program::Work& work : works) {
      if (work.delivered && program.launched_inside(work.launched_ns)) {
        rows.insert({correlation, work.duration_ns, work.path});
      }
    }
  }
  return rows;
}

std::multiset<std::tuple<uint32_t, int64_t, std::string>> found_rows(const Store& store) {
  std::multiset<std::tuple<uint32_t, int64_t, std::string>> rows;
  for (const Row& row : work_rows(store)) {
    rows.insert({row.correlation, row.duration_ns, region_text(store, row.region)});
  }
  return rows;
}

TEST_P(RandomProgram, HasEveryRecordInItsRegionInEveryWindow) {
  Program program(options(Mode::Full));
  for (int window = 0; window < 3; ++window) {
    program.run(kSteps / 10);
    program.open();
    program.run(kSteps / 3);
    const auto store = program.cut(window == 1 ? 50 : 0);
    EXPECT_TRUE(same(found_rows(*store), expected_rows(program))) << "window " << window;
    program.open_ns = program.close_ns = INT64_MAX;
    program.forget_window();
  }
}

TEST_P(RandomProgram, HasTheVeryRegionNotJustItsPath) {
  Program program(options(Mode::Full));
  program.run(100);
  program.open();
  program.run(kSteps);
  const auto store = program.cut(0);
  for (const Row& row : work_rows(*store)) {
    const auto& works = program.works[row.correlation];
    ASSERT_FALSE(works.empty());
    if (works[0].region < 0) {
      EXPECT_EQ(row.region, kNone);
    } else {
      ASSERT_NE(row.region, kNone);
      const int64_t start_ns = program.regions[static_cast<std::size_t>(works[0].region)].start_ns;
      EXPECT_EQ(store->region.start_ns[row.region], std::max(start_ns, program.open_ns));
    }
  }
}

TEST_P(RandomProgram, HasEveryRegionOfTheWindow) {
  Program program(options(Mode::Full));
  program.run(100);
  program.open();
  program.run(kSteps);
  const auto store = program.cut(0);
  std::map<std::pair<int64_t, std::string>, std::size_t> rows;
  for (std::size_t row = 0; row < store->region.size(); ++row) {
    rows[{store->region.start_ns[row], path_text(*store, store->region.path[row])}] = row;
  }
  for (const Program::Region& region : program.regions) {
    if (!program.launched_inside(region.start_ns)) {
      continue;
    }
    const auto row = rows.find({region.start_ns, region.path});
    ASSERT_NE(row, rows.end()) << region.path;
    EXPECT_EQ(store->region.duration_ns[row->second], std::min(region.end_ns, program.close_ns) - region.start_ns);
    EXPECT_EQ(store->region.flags[row->second], region.end_ns == INT64_MAX ? store::kOpen : 0);
    const uint32_t parent = store->region.parent[row->second];
    EXPECT_EQ(region_text(*store, parent),
              region.parent < 0 ? "" : program.regions[static_cast<std::size_t>(region.parent)].path);
  }
}

TEST_P(RandomProgram, HasEveryCallInItsRegion) {
  Program program(options(Mode::Full));
  program.run(100);
  program.open();
  program.run(kSteps);
  const auto store = program.cut(0);
  std::multiset<std::tuple<int64_t, std::string, std::string>> expected;
  std::multiset<std::tuple<int64_t, std::string, std::string>> found;
  for (const Program::Call& call : program.calls) {
    expected.insert({call.start_ns, call.name, call.path});
  }
  for (std::size_t row = 0; row < store->api.size(); ++row) {
    found.insert({store->api.start_ns[row], std::string(store->strings[store->call.name[store->api.call[row]]]),
                  region_text(*store, store->api.region[row])});
  }
  if (!GetParam().by_time) {  // there the runtime's call may stand for the driver's
    EXPECT_TRUE(same(found, expected));
  } else {
    EXPECT_EQ(found.size(), expected.size());
  }
}

TEST_P(RandomProgram, HasTheCapturePathOfEveryNode) {
  Program program(options(Mode::Full));
  program.open();
  program.run(kSteps);
  const auto store = program.cut(0);
  std::multiset<std::tuple<uint32_t, int64_t, std::string>> expected;
  std::multiset<std::tuple<uint32_t, int64_t, std::string>> found;
  for (const auto& [correlation, works] : program.works) {
    for (const Program::Work& work : works) {
      if (work.in_graph && program.launched_inside(work.launched_ns)) {
        expected.insert({correlation, work.duration_ns, work.capture});
      }
    }
  }
  for (std::size_t row = 0; row < store->graph_node.size(); ++row) {
    const uint32_t event = store->graph_node.event[row];
    found.insert({store->kernel.correlation[event], store->kernel.duration_ns[event],
                  path_text(*store, store->graph_node.path[row])});
  }
  EXPECT_TRUE(same(found, expected));
}

TEST_P(RandomProgram, CountsWhatWasLaunchedAndWhatCame) {
  Program program(options(Mode::Full));
  program.open();
  program.run(kSteps);
  constexpr std::size_t kLate = 40;
  program.cut(kLate);
  uint64_t launches = 0, matched = 0, copies = 0, matched_copies = 0, graphs = 0, nodes = 0;
  for (const auto& [correlation, works] : program.works) {
    if (works[0].in_graph) {
      ++graphs;
      nodes += static_cast<uint64_t>(
          std::count_if(works.begin(), works.end(), [](const Program::Work& work) { return work.delivered; }));
    } else if (works[0].kind == activity::kConcurrentKernel) {
      ++launches;
      matched += works[0].delivered;
    } else {
      ++copies;
      matched_copies += works[0].delivered;
    }
  }
  EXPECT_EQ(program.counters.matched, matched);
  EXPECT_EQ(program.counters.matched_copies, matched_copies);
  EXPECT_EQ(program.counters.graph_nodes, nodes);
  EXPECT_EQ(program.counters.unattributed, 0U);
  EXPECT_EQ(program.counters.unmatched_exits, 0U);
  EXPECT_EQ(program.counters.unread_bytes, 0U);
  if (!GetParam().by_time) {  // there records of calls may be late, too
    EXPECT_EQ(program.counters.launches, launches);
    EXPECT_EQ(program.counters.copies, copies);
    EXPECT_EQ(program.counters.graph_launches, graphs);
  }
}

TEST_P(RandomProgram, KeepsItsRegionsInTheRing) {
  Program::Options with = options(Mode::Ring);
  with.settings.ring_ns = 3'000'000;
  Program program(with);
  program.open();
  program.run(2 * kSteps);
  const auto store = program.cut(0);
  EXPECT_GT(program.counters.evicted, 0U);
  const int64_t newest_ns = newest(*store);
  for (const Row& row : work_rows(*store)) {
    const auto& works = program.works[row.correlation];
    ASSERT_FALSE(works.empty());
    if (row.region != kNone) {
      ASSERT_LT(row.region, store->region.size());
      EXPECT_EQ(region_text(*store, row.region), works[0].path);
    } else if (works[0].region >= 0) {
      const int64_t end_ns = program.regions[static_cast<std::size_t>(works[0].region)].end_ns;
      EXPECT_LE(end_ns, newest_ns - with.settings.ring_ns) << "its region lies in the ring";
    }
  }
  for (std::size_t row = 0; row < store->region.size(); ++row) {
    const uint32_t parent = store->region.parent[row];
    ASSERT_TRUE(parent == kNone || parent < store->region.size());
    EXPECT_GE(store->region.duration_ns[row], 0);
  }
  for (std::size_t row = 0; row < store->graph_node.size(); ++row) {
    const uint32_t event = store->graph_node.event[row];
    ASSERT_LT(event, store->kernel.size());
    const auto& works = program.works[store->kernel.correlation[event]];
    EXPECT_TRUE(std::any_of(works.begin(), works.end(), [&](const Program::Work& work) {
      return work.capture == path_text(*store, store->graph_node.path[row]);
    }));
  }
}

TEST_P(RandomProgram, LosesNothingOfTheLastSecondsInTheRing) {
  Program::Options with = options(Mode::Ring);
  with.settings.ring_ns = 3'000'000;
  Program program(with);
  program.open();
  program.run(2 * kSteps);
  const auto store = program.cut(0);
  std::multiset<uint32_t> kept;
  const int64_t newest_ns = newest(*store);
  for (const Row& row : work_rows(*store)) {
    kept.insert(row.correlation);
  }
  for (const auto& [correlation, works] : program.works) {
    if (works[0].launched_ns >= newest_ns - with.settings.ring_ns) {
      EXPECT_EQ(kept.count(correlation), works.size());
    }
  }
}

struct Sum {
  uint64_t count = 0;
  int64_t total_ns = 0;
  uint64_t bytes = 0;
  bool operator==(const Sum&) const = default;
};
void PrintTo(const Sum& sum, std::ostream* out) { *out << sum.count << "x " << sum.total_ns << " ns " << sum.bytes; }

TEST_P(RandomProgram, AddsUpToTheSameTotals) {
  Program program(options(Mode::Aggregate));
  program.run(100);
  program.open();
  program.run(kSteps);
  const auto store = program.cut(0);
  std::map<std::pair<std::string, std::string>, Sum> expected;
  std::map<std::pair<std::string, std::string>, Sum> found;
  for (const auto& [correlation, works] : program.works) {
    for (const Program::Work& work : works) {
      if (program.launched_inside(work.launched_ns)) {
        Sum& sum = expected[{program.work_path(work.region, work.launched_ns), work.name}];
        ++sum.count;
        sum.total_ns += work.duration_ns;
        sum.bytes += work.bytes;
      }
    }
  }
  if (!GetParam().by_time) {
    for (const Program::Call& call : program.calls) {
      Sum& sum = expected[{call.path, call.name}];
      ++sum.count;
      sum.total_ns += call.end_ns - call.start_ns;
    }
  }
  for (std::size_t row = 0; row < store->work_total.size(); ++row) {
    const auto total = store->work_total[row];
    if (GetParam().by_time && total.kind == static_cast<uint32_t>(store::Work::Call)) {
      continue;
    }
    Sum& sum = found[{path_text(*store, total.path), std::string(store->strings[total.name])}];
    sum.count += total.count;
    sum.total_ns += total.total_ns;
    sum.bytes += total.bytes;
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(store->kernel.size() + store->api.size() + store->region.size() + store->graph_node.size(), 0U);
}

TEST_P(RandomProgram, AddsUpRegionsAndWhatLiesInThem) {
  Program program(options(Mode::Aggregate));
  program.run(100);
  program.open();
  program.run(kSteps);
  const auto store = program.cut(0);
  struct Time {
    uint64_t count = 0;
    int64_t total_ns = 0;
    int64_t child_ns = 0;
  };
  std::map<std::string, Time> expected;
  // Of each region, when something inside it was open on its thread: it may outlast it, and tasks overlap.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> inside(program.regions.size());
  const auto lies_inside = [&](int region, std::size_t thread, int64_t start_ns, int64_t end_ns) {
    while (region >= 0 && program.regions[static_cast<std::size_t>(region)].thread == thread) {
      inside[static_cast<std::size_t>(region)].emplace_back(start_ns, end_ns);
      region = program.regions[static_cast<std::size_t>(region)].parent;
    }
  };
  for (const Program::Region& region : program.regions) {
    lies_inside(region.parent, region.thread, region.start_ns, region.end_ns);
  }
  for (const Program::Call& call : program.calls) {
    lies_inside(call.region, call.thread, call.start_ns, call.end_ns);
  }
  for (std::size_t row = 0; row < program.regions.size(); ++row) {
    const Program::Region& region = program.regions[row];
    int64_t until_ns = std::max(region.start_ns, program.open_ns);
    const int64_t end_ns = std::min(region.end_ns, program.close_ns);
    if (region.end_ns <= program.open_ns || until_ns >= program.close_ns || !program.logged_inside(region.thread)) {
      continue;
    }
    Time& time = expected[region.path];
    ++time.count;
    time.total_ns += end_ns - until_ns;
    std::ranges::sort(inside[row]);
    for (const auto& [from_ns, to_ns] : inside[row]) {
      time.child_ns += std::max<int64_t>(0, std::min(to_ns, end_ns) - std::max(from_ns, until_ns));
      until_ns = std::max(until_ns, to_ns);
    }
  }
  ASSERT_EQ(store->region_total.size(), expected.size());
  for (std::size_t row = 0; row < store->region_total.size(); ++row) {
    const auto total = store->region_total[row];
    const std::string path = path_text(*store, total.path);
    EXPECT_EQ(total.count, expected[path].count) << path;
    EXPECT_EQ(total.total_ns, expected[path].total_ns) << path;
    if (!GetParam().by_time) {
      EXPECT_EQ(total.child_ns, expected[path].child_ns) << path;
    }
  }
}

TEST(Decoder, EndsWhatAThreadLeftOpenWithItsLastEvent) {
  Decoder decoder({}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  activity::BufferPool pool;
  decoder.window().open_ns = INT64_MIN;
  const auto say = [](base::Op op) {
    const uint64_t ticks = base::ticks();
    base::EventLogs::current()->append(ticks, base::Names::process().intern("left open"), op);
    return base::Clock::process().to_ns(ticks);
  };
  int64_t first_ns = 0;
  int64_t last_ns = 0;
  std::thread([&] {
    first_ns = say(base::Op::Enter);
    last_ns = say(base::Op::Mark);
  }).join();
  decoder.decode(pool);
  // Enough threads at a time to need every log again.
  std::vector<std::unique_ptr<fakes::Puppet>> others;
  base::EventLogs::process().each([&](base::EventLog&) { others.push_back(std::make_unique<fakes::Puppet>()); });
  for (const auto& other : others) {
    other->run([&] { say(base::Op::Mark); });
  }
  decoder.decode(pool);
  const auto store = decoder.finish(base::Clock::process().now_ns());
  ASSERT_EQ(store->region.size(), 1U);
  EXPECT_EQ(store->region.duration_ns[0], last_ns - first_ns);
}

TEST(Decoder, FindsWhereAYoungerThreadCreatedATaskOfAnOlderOne) {
  Decoder decoder({}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  activity::BufferPool pool;
  decoder.window().open_ns = INT64_MIN;
  const auto say = [](base::Op op, const char* name, uint32_t detail = 0) {
    base::EventLogs::current()->append(base::ticks(), base::Names::process().intern(name), op, detail);
  };
  constexpr uint32_t kOrigin = 4'000'000'001;
  fakes::Puppet older;
  fakes::Puppet younger;
  older.run([&] { say(base::Op::Mark, "first"); });
  younger.run([&] {
    say(base::Op::Mark, "second");
    base::EventLogs::current()->append(0, kOrigin, base::Op::Origin);
    say(base::Op::Enter, "creates");
  });
  older.run([&] {
    base::EventLogs::current()->append(0x10, kOrigin, base::Op::Strand, base::kStrandBegins | base::kStrandIsTask);
    say(base::Op::Enter, "runs");
    say(base::Op::Exit, "runs");
  });
  younger.run([&] { say(base::Op::Exit, "creates"); });
  decoder.decode(pool);
  const auto store = decoder.finish(base::Clock::process().now_ns());
  ASSERT_EQ(store->region.size(), 2U);
  const auto path = store->strings[store->path.name[store->region.path[0]]] == "runs" ? 0U : 1U;
  ASSERT_LT(store->region.parent[path], 2U);
  EXPECT_EQ(store->strings[store->path.name[store->region.path[store->region.parent[path]]]], "creates");
  EXPECT_EQ(store->region.duration_ns[1 - path] > store->region.duration_ns[path], true);
}

/// Regions of a thread that another one ends, and what the first thread opens after each.
class EndsElsewhere : public testing::Test {
 protected:
  void SetUp() override {
    decoder_.discard_logs();
    decoder_.window().open_ns = INT64_MIN;
    for (fakes::Puppet* thread : {&older_, &younger_}) {
      thread->run([] { say(base::Op::Mark, "first"); });
    }
  }
  static uint64_t say(base::Op op, const char* name, uint32_t detail = 0) {
    const uint64_t ticks = base::ticks();
    base::EventLogs::current()->append(ticks, base::Names::process().intern(name), op, detail);
    return ticks;
  }
  static void run_task(uint64_t key) {
    base::EventLogs::current()->append(key, 0, base::Op::Strand, base::kStrandIsTask);
  }
  void enter(const char* name) {
    older_.run([&] {
      run_task(kTask);
      say(base::Op::Enter, name);
    });
  }
  int64_t end_elsewhere(const char* name) {
    uint64_t ticks = 0;
    younger_.run([&] {
      run_task(kTask);
      ticks = say(base::Op::Exit, name, base::ExitDetail::kElsewhere);
      base::EndsElsewhere::process().add(ticks);
    });
    return base::Clock::process().to_ns(ticks);
  }
  std::unique_ptr<store::Store> finish() {
    decoder_.decode(pool_);
    return decoder_.finish(base::Clock::process().now_ns());
  }

  static constexpr uint64_t kTask = 0x1000;
  Decoder decoder_{{}, fakes::Cupti::instance().table(), 0};
  activity::BufferPool pool_;
  fakes::Puppet older_;
  fakes::Puppet younger_;
};

TEST_F(EndsElsewhere, AreOfTheRegionThatWasOpenThen) {
  std::array<int64_t, 3> ended_ns{};
  for (int64_t& each : ended_ns) {
    enter("request");
    each = end_elsewhere("request");
  }
  const auto store = finish();
  ASSERT_EQ(store->region.size(), 3U);
  for (std::size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(store->region.parent[row], store::kNone);
    EXPECT_EQ(store->region.start_ns[row] + store->region.duration_ns[row], ended_ns[row]);
  }
}

TEST_F(EndsElsewhere, LeaveTheirOwnThreadsRegionOfThatNameAlone) {
  enter("request");
  younger_.run([] {
    run_task(kTask);
    say(base::Op::Enter, "request");
  });
  const int64_t ended_ns = end_elsewhere("request");
  const auto store = finish();
  ASSERT_EQ(store->region.size(), 2U);
  const std::size_t first = store->region.start_ns[0] < store->region.start_ns[1] ? 0 : 1;
  EXPECT_EQ(store->region.start_ns[first] + store->region.duration_ns[first], ended_ns);
  EXPECT_EQ(store->region.flags[1 - first] & store::kOpen, store::kOpen);
}

TEST_F(EndsElsewhere, OfWhichTooManyWaitComeWhenTheyAreRead) {
  for (int count = 0; count < 5'000; ++count) {
    enter("request");
    end_elsewhere("request");
  }
  const auto store = finish();
  ASSERT_EQ(store->region.size(), 5'000U);
  for (std::size_t row = 0; row < 4'000; ++row) {
    ASSERT_EQ(store->region.parent[row], store::kNone);
  }
  EXPECT_EQ(std::ranges::count(store->region.flags, store::kOpen), 0);
}

class LogsThatAreTakenOver : public testing::TestWithParam<bool> {};

TEST_P(LogsThatAreTakenOver, AreReadMeanwhile) {
  Decoder decoder({.by_time = GetParam()}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  activity::BufferPool pool;
  decoder.window().open_ns = INT64_MIN;
  const uint32_t name = base::Names::process().intern("short-lived");
  const auto live = [name] {
    base::EventLogs::current()->append(base::ticks(), name, base::Op::Enter);
    base::EventLogs::current()->append(base::ticks(), name, base::Op::Exit);
  };
  {
    std::vector<std::unique_ptr<fakes::Puppet>> many;  // so that there are many logs to take over
    for (int thread = 0; thread < 64; ++thread) {
      many.push_back(std::make_unique<fakes::Puppet>());
      many.back()->run(live);
    }
  }
  constexpr int kThreads = 2000;
  std::atomic<bool> done{false};
  std::thread starter([&] {
    for (int thread = 0; thread < kThreads; ++thread) {
      std::thread(live).join();
    }
    done = true;
  });
  while (!done) {
    decoder.decode(pool);
  }
  starter.join();
  decoder.decode(pool);
  const auto store = decoder.finish(base::Clock::process().now_ns());
  EXPECT_EQ(store->region.size(), kThreads + 64U);
  EXPECT_EQ(decoder.state().counters.log_dropped, 0U);
}

INSTANTIATE_TEST_SUITE_P(ByTimeOrNot, LogsThatAreTakenOver, testing::Bool());

TEST(Decoder, KeepsTheRingWithinItsBoundsHoweverMuchItReadsAtOnce) {
  constexpr uint64_t kBytes = uint64_t{1} << 16;
  Decoder decoder({.mode = Mode::Ring, .max_bytes = kBytes}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  activity::BufferPool pool;
  decoder.window().open_ns = INT64_MIN;
  const uint32_t name = base::Names::process().intern("much");
  const auto burst = [name] {
    for (int region = 0; region < 50'000; ++region) {
      base::EventLogs::current()->append(base::ticks(), name, base::Op::Enter);
      base::EventLogs::current()->append(base::ticks(), name, base::Op::Exit);
    }
  };
  fakes::Puppet first;
  fakes::Puppet second;
  first.run(burst);
  second.run(burst);
  int64_t newest_ns = base::Clock::process().now_ns();
  decoder.decode(pool);
  const auto store = decoder.finish(newest_ns);
  EXPECT_LE(event_bytes(*store), kBytes);
  EXPECT_GE(event_bytes(*store), kBytes / 2);
  const std::set<uint16_t> threads(store->region.thread.begin(), store->region.thread.end());
  EXPECT_EQ(threads.size(), 1U) << "the newest rows are those of the thread that was last";
}

/// A thread that enters and leaves regions whose names it makes up.
struct NamesAtWill {
  fakes::Puppet thread;
  activity::BufferPool pool;

  void enter(const std::string& name) {
    thread.run([&] { say(name, base::Op::Enter); });
  }
  void run(const std::string& name) {
    thread.run([&] {
      say(name, base::Op::Enter);
      say(name, base::Op::Exit);
    });
  }

 private:
  static void say(const std::string& name, base::Op op) {
    base::EventLogs::current()->append(base::ticks(), base::Names::process().intern_for_period(name), op);
  }
};

TEST(Decoder, GivesUpNamesWithTheirWindow) {
  Decoder decoder({}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  NamesAtWill program;
  std::size_t strings = 0;
  for (int window = 0; window < 4; ++window) {
    decoder.window().open_ns = INT64_MIN;
    for (int number = 0; number < 2000; ++number) {
      program.run("a name that comes once, " + std::to_string(window) + " " + std::to_string(number));
    }
    decoder.decode(program.pool);
    const auto store = decoder.finish(base::Clock::process().now_ns());
    ASSERT_EQ(store->region.size(), 2000U);
    EXPECT_EQ(region_text(*store, 1999), "/a name that comes once, " + std::to_string(window) + " 1999");
    strings = strings == 0 ? store->strings.size() : strings;
    EXPECT_EQ(store->strings.size(), strings);
  }
  EXPECT_LT(base::Names::process().bytes(), 1'000'000U);
}

TEST(Decoder, EndsARegionWhoseNameWasGivenUpMeanwhile) {
  Decoder decoder({}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  NamesAtWill program;
  decoder.window().open_ns = INT64_MIN;
  const uint32_t outer = base::Names::process().intern_for_period("outer");
  const auto say = [&](base::Op op) {
    program.thread.run([&] { base::EventLogs::current()->append(base::ticks(), outer, op); });
  };
  say(base::Op::Enter);
  for (int period = 0; period < 4; ++period) {
    program.run("inner");
    decoder.decode(program.pool);
    base::Names::process().begin_period();
  }
  say(base::Op::Exit);
  program.run("after");
  decoder.decode(program.pool);
  EXPECT_EQ(decoder.state().counters.unmatched_exits, 0U);
  const auto store = decoder.finish(base::Clock::process().now_ns());
  EXPECT_EQ(region_text(*store, 1), "/outer/inner");
  EXPECT_EQ(region_text(*store, 5), "/after");
}

TEST(Decoder, KeepsTheNamesOfTheRowsInTheRingAlone) {
  constexpr uint64_t kBytes = uint64_t{1} << 20;
  Decoder decoder({.mode = Mode::Ring, .max_bytes = kBytes}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  NamesAtWill program;
  decoder.window().open_ns = INT64_MIN;
  program.enter("around");
  int number = 0;
  for (int round = 0; round < 40; ++round) {
    for (int region = 0; region < 1500; ++region) {
      program.run("a name that comes once, " + std::to_string(number++));
    }
    decoder.decode(program.pool);
    ASSERT_LE(event_bytes(*decoder.state().store) + decoder.state().dictionaries.bytes(), kBytes);
  }
  EXPECT_EQ(decoder.state().counters.unnamed, 0U);
  const auto store = decoder.finish(base::Clock::process().now_ns());
  const std::size_t rows = store->region.size();
  ASSERT_GT(rows, 2000U);
  EXPECT_EQ(region_text(*store, 0), "/around");
  for (std::size_t row = 1; row < rows; ++row) {
    const auto expected = static_cast<std::size_t>(number) - (rows - row);
    ASSERT_EQ(region_text(*store, static_cast<uint32_t>(row)),
              "/around/a name that comes once, " + std::to_string(expected));
  }
  EXPECT_LT(store->strings.size(), rows * 2);
}

TEST(Decoder, CountsRowsForWhoseNamesThereIsNoRoom) {
  Decoder decoder({.mode = Mode::Ring, .max_bytes = uint64_t{1} << 20}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  NamesAtWill program;
  decoder.window().open_ns = INT64_MIN;
  for (int number = 0; number < 10'000; ++number) {  // while nothing is read
    program.run("a name that comes once, " + std::to_string(number));
  }
  decoder.decode(program.pool);
  const uint64_t unnamed = decoder.state().counters.unnamed;
  const auto store = decoder.finish(base::Clock::process().now_ns());
  EXPECT_GT(unnamed, 5'000U);
  EXPECT_EQ(region_text(*store, static_cast<uint32_t>(store->region.size() - 1)), "/(more names)");
}

TEST(Decoder, CountsEachRegionThatAggregateModeRefusesOnce) {
  Decoder decoder({.mode = Mode::Aggregate, .max_bytes = uint64_t{1} << 20}, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  NamesAtWill program;
  decoder.window().open_ns = INT64_MIN;
  for (int round = 0; round < 20; ++round) {
    for (int number = 0; number < 1000; ++number) {
      program.run("a name that comes once, " + std::to_string(round) + " " + std::to_string(number));
    }
    decoder.decode(program.pool);
  }
  const Counters counters = decoder.state().counters;
  const auto store = decoder.finish(base::Clock::process().now_ns());
  uint64_t kept = 0;
  for (std::size_t row = 0; row < store->region_total.size(); ++row) {
    kept += store->region_total.count[row];
  }
  EXPECT_GT(kept, 1000U);
  EXPECT_GT(counters.refused, 1000U);
  EXPECT_EQ(kept + counters.refused, 20'000U);
}

TEST(Decoder, ForgetsThreadsThatEnded) {
  Settings by_time;
  by_time.by_time = true;
  Decoder decoder(by_time, fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  activity::BufferPool pool;
  decoder.window().open_ns = INT64_MIN;
  for (uint32_t thread = 1; thread <= 20'000; ++thread) {  // quadratic if each one stayed
    uint8_t* data = pool.take();
    const fakes::Record record = fakes::api_record(activity::kDriver, fakes::kLaunchKernel,
                                                   {.correlation = thread, .start = 1, .end = 2}, 1'000'000 + thread);
    std::memcpy(data, record.bytes, record.size);
    pool.complete(nullptr, 0, data, record.size);
    decoder.decode(pool);
  }
  EXPECT_EQ(decoder.finish(INT64_MAX - 1)->api.size(), 20'000U);
}

TEST(Decoder, KeepsTheThreadsOfTheRowsInTheRingAlone) {
  Decoder decoder({.mode = Mode::Ring, .max_bytes = uint64_t{1} << 30, .ring_ns = 1'000'000},
                  fakes::Cupti::instance().table(), 0);
  decoder.discard_logs();
  NamesAtWill program;
  decoder.window().open_ns = INT64_MIN;
  for (uint64_t thread = 0; thread < 70'000; ++thread) {
    decoder.state().dictionaries.thread(thread, "ended");
    if (thread % 10'000 == 0) {
      program.run("region");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      program.run("region");
      decoder.decode(program.pool);
    }
  }
  EXPECT_LT(decoder.finish(base::Clock::process().now_ns())->thread.size(), 50'000U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomProgram,
                         testing::Values(Case{1, false}, Case{2, false}, Case{3, false}, Case{4, false}, Case{1, true},
                                         Case{2, true}, Case{3, true}, Case{4, true}));

}  // namespace
}  // namespace gpuscope::attribution
