// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "fakes/rows.h"
#include "gpuscope/analysis/summary.h"
#include "gpuscope/base/events.h"

namespace gpuscope::analysis {
namespace {

using fakes::Rows;
using store::kNone;

uint32_t operator_path(Rows& rows, const std::string& name, uint32_t parent = kNone) {
  const uint32_t path = rows.path(name, parent);
  rows.store.path.kind[path] = static_cast<uint16_t>(base::RegionKind::Op);
  return path;
}

void add_detail(Rows& rows, uint32_t region, const std::string& shapes, uint32_t stack = kNone,
                uint32_t forward = kNone) {
  rows.store.detail.append({.sequence = -1,
                            .region = region,
                            .types = kNone,
                            .results = kNone,
                            .shapes = shapes.empty() ? kNone : rows.store.strings.intern(shapes),
                            .forward = forward,
                            .op = 0,
                            .producer = 0,
                            .stack = stack});
}

std::vector<uint64_t> counts(const Rows& rows, const RegionKeys& keys) {
  const Summary summary = summarize(rows.store);
  std::vector<uint64_t> counts;
  for (const NameStat& total : group_regions(rows.store, summary.instances, summary.path_names, keys).totals) {
    counts.push_back(total.durations.count);
  }
  return counts;
}

TEST(RegionGroups, ShapesAreToldApartBySizesOfTensorsAlone) {
  Rows rows;
  const uint32_t path = operator_path(rows, "aten::cat");
  for (const char* shapes :
       {"[[2, 3], []]", "[[2,3], [[4], [5]]]", "[[2, 3], [[4]]]", "[[2, 3]]", "", "[]", "[[2, 3"}) {
    add_detail(rows, rows.region(path, 10), shapes);
  }
  EXPECT_EQ(counts(rows, {}), (std::vector<uint64_t>{7}));
  EXPECT_EQ(counts(rows, {.shapes = true}), (std::vector<uint64_t>{3, 1, 3}));
}

TEST(RegionGroups, OverloadsAreToldApartBesideShapes) {
  Rows rows;
  const uint32_t path = operator_path(rows, "aten::add");
  for (const auto& [overload, shapes] : {std::pair{"Tensor", "[[2]]"}, {"Tensor", "[[3]]"}, {"out", "[[2]]"}}) {
    add_detail(rows, rows.region(path, 10), shapes);
    store::Details& detail = rows.store.detail;
    detail.overload[detail.size() - 1] = rows.store.strings.intern(overload);
  }
  EXPECT_EQ(counts(rows, {.overloads = true}), (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(counts(rows, {.shapes = true, .overloads = true}), (std::vector<uint64_t>{1, 1, 1}));
}

TEST(RegionGroups, StacksAreToldApartByTheirInnermostFrames) {
  Rows rows;
  store::Store& store = rows.store;
  const uint32_t file = store.strings.intern("train.py");
  const auto frame = [&](const char* function, uint32_t line, uint32_t caller = kNone) {
    return store.stack.append({.parent = caller,
                               .function = store.strings.intern(function),
                               .file = file,
                               .line = line,
                               .instruction = kNone});
  };
  const uint32_t stacks[] = {frame("layer", 9, frame("main", 1)), frame("layer", 9, frame("main", 2)), kNone};
  const uint32_t path = operator_path(rows, "aten::mm");
  for (const uint32_t stack : stacks) {
    add_detail(rows, rows.region(path, 10), "", stack);
  }
  EXPECT_EQ(counts(rows, {.stack_frames = 1}), (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(counts(rows, {.stack_frames = 2}), (std::vector<uint64_t>{1, 1, 1}));
}

TEST(RegionGroups, BackwardOperatorsHaveTheStackOfTheirForwardOne) {
  Rows rows;
  const uint32_t forward = rows.region(operator_path(rows, "aten::mm"), 10);
  add_detail(rows, forward, "", 5);
  const uint32_t outer = operator_path(rows, "MmBackward0");
  const uint32_t backward = rows.region(outer, 20);
  add_detail(rows, backward, "", 7, forward);
  rows.region(operator_path(rows, "aten::t", outer), 5, backward);
  EXPECT_EQ(measure_instances(rows.store).stack, (std::vector<uint32_t>{5, 5, 5}));
  EXPECT_EQ(measure_instances(rows.store).forward, (std::vector<uint32_t>{kNone, forward, forward}));
}

TEST(RegionGroups, AnOperatorThatOnlyCallsAnotherOverloadCountsOnce) {
  Rows rows;
  const uint32_t outer = operator_path(rows, "aten::sum");
  const uint32_t inner = operator_path(rows, "aten::sum", outer);
  rows.region(inner, 6, rows.region(outer, 10));
  const uint32_t busy = rows.region(outer, 10);
  rows.region(inner, 6, busy);
  rows.call("cuLaunchKernel", 1, busy);
  const Summary summary = summarize(rows.store);
  ASSERT_EQ(summary.regions.totals.size(), 1U);
  EXPECT_EQ(summary.regions.totals[0].durations.count, 3U);
  EXPECT_EQ(summary.regions.totals[0].cpu_ns, 20);
  EXPECT_EQ(summary.regions.totals[0].self_cpu_ns, 19);
  EXPECT_EQ(summary.regions.group_of_row, (std::vector<uint32_t>{0, 0, 0, 0}));
}

TEST(RegionGroups, TimesAreInclusiveOfTheOutermostOfEachGroup) {
  Rows rows;
  const uint32_t outer = operator_path(rows, "aten::eye");
  const uint32_t inner = operator_path(rows, "aten::eye", outer);
  const uint32_t around = rows.region(outer, 100);
  const uint32_t other = rows.region(inner, 30, around);
  const uint32_t same = rows.region(inner, 20, around);
  for (const auto& [row, shapes] : {std::pair{around, "[[]]"}, {other, "[[2]]"}, {same, "[[]]"}}) {
    add_detail(rows, row, shapes);
  }
  const Summary summary = summarize(rows.store);
  const RegionGroups groups = group_regions(rows.store, summary.instances, summary.path_names, {.shapes = true});
  ASSERT_EQ(groups.totals.size(), 2U);
  EXPECT_EQ(groups.totals[0].cpu_ns, 100);
  EXPECT_EQ(groups.totals[1].cpu_ns, 30);
  EXPECT_EQ(summary.regions.totals[0].cpu_ns, 100);
}

TEST(RegionGroups, RegionsWithoutAPathAreInNoGroup) {
  Rows rows;
  rows.region(77, 10);
  rows.region(rows.path("step"), 10);
  const Summary summary = summarize(rows.store);
  EXPECT_EQ(summary.regions.group_of_row, (std::vector<uint32_t>{kNone, 0}));
}

}  // namespace
}  // namespace gpuscope::analysis
