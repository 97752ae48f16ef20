// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/queue_model.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "fakes/rows.h"
#include "gpuscope/store/values.h"

namespace gpuscope::analysis {
namespace {

using Values = std::vector<int64_t>;

constexpr int64_t kStart = 1'700'000'000'000'000'000;

/// A thread that launches kernels and waits for them. Times in ns after kStart.
struct Program {
  store::Store store;
  uint32_t correlation = 0;

  Program() {
    add_function("cuLaunchKernel", store::CallKind::Launch);
    add_function("cuStreamSynchronize", store::CallKind::Sync);
    store.track.append({.device = 0, .context = 1, .stream = 7});
    store.track.append({.device = 0, .context = 1, .stream = 8});
  }

  void add_function(std::string_view name, store::CallKind kind) {
    store.call.append({.name = store.strings.intern(name), .kind = static_cast<uint16_t>(kind)});
  }
  void launch(int64_t start, int64_t end, const std::vector<std::pair<int64_t, int64_t>>& kernels, uint16_t track = 0) {
    call(start, end, 0);
    for (const auto& [begin, finish] : kernels) {
      store.kernel.append({.start_ns = kStart + begin,
                           .duration_ns = finish - begin,
                           .correlation = correlation,
                           .region = store::kNone,
                           .track = track});
    }
  }
  void wait(int64_t start, int64_t end) { call(start, end, 1); }
  void call(int64_t start, int64_t end, uint16_t function) {
    store.api.append({.start_ns = kStart + start,
                      .duration_ns = end - start,
                      .correlation = ++correlation,
                      .region = store::kNone,
                      .call = function});
  }
};

/// How long it takes from the first call to `moment`.
int64_t passed(const QueueModel& model, int64_t moment, const QueueEdits& edits = {}) {
  const Values moments = {kStart, kStart + moment};
  const Values times = model.replayed(moments, uint16_t{0}, edits);
  return times.back() - times.front();
}

Program two_waits() {
  Program program;
  program.launch(0, 4'000, {{6'000, 56'000}});
  program.wait(5'000, 60'000);
  program.launch(80'000, 84'000, {{86'000, 136'000}});
  program.wait(85'000, 140'000);
  return program;
}

TEST(QueueModel, ReplaysWhatWasRecorded) {
  const QueueModel model(two_waits().store);
  EXPECT_EQ(model.recorded(Values{kStart, kStart + 150'000}, uint16_t{0}), (Values{0, 150'000}));
  EXPECT_EQ(passed(model, 150'000), 150'000);
}

TEST(QueueModel, WorkWithoutANumberOfItsCallWasLaunchedByNone) {
  Program program = two_waits();
  for (std::size_t row = 0; row < 2; ++row) {
    program.store.kernel.correlation[row] = program.store.api.correlation[2 * row] = 0;
  }
  EXPECT_EQ(QueueModel(program.store).unlaunched(), 2U);
}

TEST(QueueModel, ShortensWorkAndWhatWaitedForIt) {
  const QueueModel model(two_waits().store);
  const Values rows = {0, 1};
  const std::vector<double> factors = {0.5, 0.5};
  EXPECT_EQ(passed(model, 150'000, {.kernels = rows, .kernel_factors = factors}), 100'000);
}

TEST(QueueModel, LeavesOutWaitsAndCalls) {
  const QueueModel model(two_waits().store);
  const Values first = {1};
  // The wait then takes as long as a launch, 51 us less, and the second launch comes as much earlier; its
  // kernel begins when the first has ended.
  EXPECT_EQ(passed(model, 150'000, {.unwaited = first}), 150'000 - (86'000 - 57'000));
  const Values launch = {0};
  EXPECT_LT(passed(model, 150'000, {.removed_calls = launch}), 150'000 - 50'000);
}

TEST(QueueModel, TakesTimeOfAThreadOnce) {
  const QueueModel model(two_waits().store);
  QueueEdits edits;
  const std::vector<int64_t> spans = {0, kStart + 60'000, kStart + 70'000, 0, kStart + 65'000, kStart + 75'000, 1,
                                      0, INT64_MAX};
  edits.host_spans = spans;
  EXPECT_EQ(passed(model, 150'000, edits), 135'000);
}

TEST(QueueModel, TakesOutWhatRecordingCostTheHost) {
  const Program program = two_waits();
  QueueModel model(program.store);
  // The first call has no time before it; the second launch has 20 us and itself 4. Waits take none of their own.
  model.take_out(program.store, {.launch = 2'400});
  EXPECT_NEAR(static_cast<double>(passed(model, 150'000)), 150'000 - 2 * 2'400, 200);
  EXPECT_EQ(model.recorded(Values{kStart, kStart + 150'000}, uint16_t{0}), (Values{0, 150'000}));
}

TEST(QueueModel, TakesOutWhatCopiesCostApartFromLaunches) {
  Program program = two_waits();
  program.call(70'000, 78'000, 0);
  program.store.memcpy.append({.start_ns = kStart + 78'500, .duration_ns = 500, .correlation = program.correlation});
  QueueModel model(program.store);
  model.take_out(program.store, {.copy = 3'000});
  EXPECT_NEAR(static_cast<double>(passed(model, 150'000)), 150'000 - 3'000, 100);
}

TEST(QueueModel, TakesOutWhatRegionsCostOfTheTimeBeforeTheNextCall) {
  Program program = two_waits();
  for (const int64_t start : {62'000, 61'000, 64'000, 1'000'000}) {  // not in order; the last is followed by no call
    program.store.region.append({.start_ns = kStart + start, .duration_ns = 100, .parent = store::kNone});
  }
  program.store.region.append({.start_ns = kStart + 65'000, .duration_ns = 100, .parent = store::kNone, .thread = 1});
  QueueModel model(program.store);
  model.take_out(program.store, {.region = 800});
  EXPECT_NEAR(static_cast<double>(passed(model, 150'000)), 150'000 - 3 * 800, 100);
}

TEST(QueueModel, LeavesAQuarterOfWhatRecordingIsToldToHaveCost) {
  const Program program = two_waits();
  QueueModel model(program.store);
  model.take_out(program.store, {.launch = INT64_MAX, .call = INT64_MIN});
  EXPECT_GT(passed(model, 150'000), 100'000);
}

TEST(QueueModel, KeepsWhatRanBesideOtherWorkOfItsStream) {
  Program program;
  for (int64_t at = 0; at < 1'000'000; at += 200'000) {
    const auto node = [&](int64_t begin, int64_t end) { return std::pair{at + begin, at + end}; };
    program.launch(at, at + 4'000,
                   {node(6'000, 106'000), node(8'000, 28'000), node(29'000, 49'000), node(107'000, 137'000)});
    program.wait(at + 5'000, at + 140'000);
  }
  const QueueModel model(program.store);
  const auto with = [&](int64_t row, double factor) {
    const Values rows = {row};
    const std::vector<double> factors = {factor};
    return passed(model, 200'000, {.kernels = rows, .kernel_factors = factors});
  };
  EXPECT_EQ(passed(model, 200'000), 200'000);
  EXPECT_EQ(with(0, 0.5), 150'000);  // the last follows the long one
  EXPECT_EQ(with(1, 0.5), 200'000);  // the short ones ran beside it
  EXPECT_EQ(with(3, 0.5), 185'000);
}

TEST(QueueModel, LetsAKernelBeginBeforeTheEndOfTheOneBefore) {
  Program program;
  std::vector<std::pair<int64_t, int64_t>> kernels;
  kernels.reserve(10);
  for (int64_t at = 0; at < 10; ++at) {
    kernels.emplace_back(6'000 + at * 9'000, 16'000 + at * 9'000);
  }
  program.launch(0, 4'000, kernels);
  program.wait(5'000, 100'000);
  const QueueModel model(program.store);
  EXPECT_EQ(passed(model, 100'000), 100'000);
  const Values rows = {0, 1, 2};
  const std::vector<double> factors = {0.8, 0.8, 0.8};
  EXPECT_EQ(passed(model, 100'000, {.kernels = rows, .kernel_factors = factors}), 94'000);
}

TEST(QueueModel, IsWithoutWorkWhoseCallIsNotKnown) {
  Program program = two_waits();
  program.store.kernel.append({.start_ns = kStart, .duration_ns = 5, .correlation = 77});
  const QueueModel model(program.store);
  EXPECT_EQ(model.works(), 2U);
  EXPECT_EQ(model.unlaunched(), 1U);
}

TEST(QueueModel, OfNothingIsEmpty) {
  const store::Store store;
  const QueueModel model(store);
  EXPECT_EQ(model.replayed(Values{1, 2}, std::nullopt, {}).size(), 2U);
  EXPECT_TRUE(model.replayed({}, std::nullopt, {}).empty());
}

TEST(QueueModel, SurvivesDamagedRecordings) {
  std::mt19937_64 random(1);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  const auto time = [&] {
    const std::array<int64_t, 6> extremes = {INT64_MIN, INT64_MAX, 0, -1, kStart, int64_t{1} << 61};
    return below(3) == 0 ? extremes[below(extremes.size())] : kStart + static_cast<int64_t>(below(1'000'000));
  };
  for (int round = 0; round < 300; ++round) {
    Program program;
    program.add_function("cuCtxSynchronize", store::CallKind::Sync);
    program.add_function("cuEventSynchronize", store::CallKind::Sync);
    program.add_function("cuMemcpyHtoDAsync", store::CallKind::Memcpy);
    program.add_function("cuStreamWaitEvent", store::CallKind::Sync);
    program.add_function("cuMemFree", store::CallKind::Free);
    const auto small = [&](uint64_t limit) {
      return static_cast<uint16_t>(below(20) == 0 ? below(UINT16_MAX + 1U) : below(limit));
    };
    for (uint64_t row = below(60); row > 0; --row) {
      program.store.api.append({.start_ns = time(),
                                .duration_ns = below(4) == 0 ? time() : static_cast<int64_t>(below(100'000)),
                                .correlation = static_cast<uint32_t>(below(50)),
                                .call = small(8),
                                .thread = small(3)});
      program.store.region.append({.start_ns = time(), .parent = store::kNone, .thread = small(3)});
      program.store.kernel.append({.start_ns = time(),
                                   .duration_ns = below(4) == 0 ? time() : static_cast<int64_t>(below(100'000)),
                                   .correlation = static_cast<uint32_t>(below(50)),
                                   .track = small(3),
                                   .flags = small(32)});
      program.store.memcpy.append({.start_ns = time(),
                                   .duration_ns = static_cast<int64_t>(below(1'000)),
                                   .correlation = static_cast<uint32_t>(below(50)),
                                   .track = small(3),
                                   .source = static_cast<uint8_t>(below(4))});
      program.store.sync.append({.correlation = static_cast<uint32_t>(below(50)), .track = small(3), .kind = small(5)});
    }
    QueueModel model(program.store);
    if (round % 2 == 0) {
      model.take_out(program.store, {.launch = time(), .copy = time(), .call = time(), .region = time()});
    }
    const Values rows = {0, 1, 2, 3, -1, INT64_MAX, INT64_MIN};
    const std::vector<double> factors = {0.5, 0.0, 1e300, -1.0, 0.5, 0.5, 0.5};
    const Values spans = {0, INT64_MIN, INT64_MAX, 1, time(), time(), -1, 0, 1, 7};
    const QueueEdits edits = {.unwaited = rows,
                              .removed_calls = std::span(rows).subspan(2),
                              .host_spans = spans,
                              .kernels = rows,
                              .kernel_factors = factors,
                              .copies = rows,
                              .copy_factors = factors};
    const Values moments = {time(), time(), time()};
    EXPECT_EQ(model.replayed(moments, small(3), edits).size(), 3U);
    EXPECT_EQ(model.replayed(moments, std::nullopt, {}).size(), 3U);
    EXPECT_EQ(model.recorded(moments, std::nullopt).size(), 3U);
  }
}

}  // namespace
}  // namespace gpuscope::analysis
