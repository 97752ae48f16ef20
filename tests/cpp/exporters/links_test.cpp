// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "fakes/stores.h"
#include "gpuscope/exporters/timeline.h"

namespace gpuscope::exporters {
namespace {

using base::RegionKind;
using store::kNone;
using ::testing::ElementsAre;

class Regions : public ::testing::Test {
 protected:
  Regions() {
    make_.thread(1);
    make_.track(7);
    make_.track(8);
    make_.variant("k");
    annotation_ = path("step", RegionKind::Region);
    op_ = path("aten::mm", RegionKind::Op);
    module_ = path("nn.Module: Linear_0", RegionKind::Module);
  }
  uint32_t path(const char* name, RegionKind kind, uint32_t parent = kNone) {
    const uint32_t row = make_.path(name, parent);
    make_.store().path.kind[row] = static_cast<uint32_t>(kind);
    return row;
  }
  fakes::StoreBuilder make_;
  uint32_t annotation_, op_, module_;
};

TEST_F(Regions, OwnerIsTheInnermostOperatorOrTheRegionItself) {
  const uint32_t step = make_.region(annotation_, 0, 100);
  const uint32_t outer = make_.region(op_, 10, 90, step);
  const uint32_t inner = make_.region(op_, 20, 80, outer);
  const uint32_t within = make_.region(annotation_, 30, 70, inner);
  const Links links(make_.store());
  EXPECT_EQ(links.owner(step), step);
  EXPECT_EQ(links.owner(outer), outer);
  EXPECT_EQ(links.owner(within), inner);
}

TEST_F(Regions, ParentsThatStandAfterTheirChildrenAreFound) {
  make_.region(annotation_, 20, 80, 1);  // logged at its end, before its parent
  make_.region(op_, 10, 90, 2);
  make_.region(annotation_, 0, 100);
  const Links links(make_.store());
  EXPECT_EQ(links.owner(0), 1U);
  EXPECT_EQ(links.annotation(1), 2U);
}

TEST_F(Regions, RangesThatNestInNothingAnnotateNothing) {
  const uint32_t range = make_.region(annotation_, 0, 100);
  make_.store().region.flags[range] = store::kAsync;
  EXPECT_EQ(Links(make_.store()).annotation(range), kNone);
}

TEST_F(Regions, KindsOfLaterVersionsReadAsRegions) {
  make_.store().path.kind[annotation_] = 77;
  EXPECT_EQ(Links(make_.store()).path_kind(annotation_), RegionKind::Region);
}

TEST_F(Regions, OuterModuleIsNotTheModuleItself) {
  const uint32_t outer = make_.region(module_, 0, 100);
  const uint32_t op = make_.region(op_, 10, 90, outer);
  const uint32_t inner = make_.region(module_, 20, 80, op);
  const Links links(make_.store());
  EXPECT_EQ(links.outer_module(inner), outer);
  EXPECT_EQ(links.outer_module(outer), kNone);
}

TEST_F(Regions, PayloadsComeInOrderAndReachTheRegionsWithin) {
  const uint32_t outer = make_.region(annotation_, 0, 100);
  const uint32_t inner = make_.region(op_, 10, 90, outer);
  for (uint64_t value : {5, 6, 7}) {
    make_.store().payload.append({value, outer, make_.id("bytes"), 0});
  }
  const Links links(make_.store());
  std::vector<uint32_t> rows;
  links.each_payload(outer, [&](uint32_t row) { rows.push_back(row); });
  EXPECT_THAT(rows, ElementsAre(0, 1, 2));
  EXPECT_EQ(links.payload_owner(inner), outer);
  EXPECT_EQ(links.payload_owner(kNone), kNone);
}

TEST_F(Regions, PayloadsOfOperatorsReachNothingElse) {
  const uint32_t outer = make_.region(annotation_, 0, 100);
  const uint32_t op = make_.region(op_, 10, 90, outer);
  make_.store().payload.append({1, outer, make_.id("bytes"), 0});
  make_.store().payload.append({2, op, make_.id("grid"), 0});
  EXPECT_EQ(Links(make_.store()).payload_owner(op), outer);
}

TEST_F(Regions, AnnotationsSpanTheirWorkOnEachStream) {
  const uint32_t step = make_.region(annotation_, 0, 100);
  const uint32_t inner = make_.region(path("forward", RegionKind::Range, annotation_), 10, 90, step);
  const uint32_t op = make_.region(op_, 20, 80, inner);
  make_.kernel(0, 1000, 1100, 1, step);
  make_.kernel(0, 1200, 1300, 2, op);
  make_.kernel(0, 1250, 1280, 3, inner);
  make_.kernel(0, 5000, 5100, 4, op, 1);
  const GpuAnnotations found = find_gpu_annotations(make_.store(), Links(make_.store()));
  EXPECT_THAT(found.region, ElementsAre(step, inner, step, inner));
  EXPECT_THAT(found.track, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(found.start_ns, ElementsAre(1000, 1200, 5000, 5000));
  EXPECT_THAT(found.duration_ns, ElementsAre(300, 100, 100, 100));
}

TEST_F(Regions, WorkWithoutTimestampsStretchesNoAnnotation) {
  const uint32_t step = make_.region(annotation_, 0, 100);
  make_.kernel(0, 1000, 1100, 1, step);
  make_.kernel(0, 0, 0, 2, step, 0, store::kZeroTime);
  const GpuAnnotations found = find_gpu_annotations(make_.store(), Links(make_.store()));
  EXPECT_THAT(found.start_ns, ElementsAre(1000));
}

TEST_F(Regions, AnnotationsHoldTheirWorkInOneLaneAndOthersGetTheirOwn) {
  const uint32_t first = make_.region(annotation_, 0, 50);
  const uint32_t second = make_.region(annotation_, 60, 100);
  make_.kernel(0, 1000, 1100, 1, first);
  make_.kernel(0, 1200, 1300, 2, second);
  make_.kernel(0, 1400, 1500, 3, first);  // ends after the second began: the two do not nest
  make_.kernel(0, 1600, 1700, 4, second);
  const GpuAnnotations annotations = find_gpu_annotations(make_.store(), Links(make_.store()));
  const Track track = lay_out(make_.store(), annotations).streams.at(0);
  std::vector<uint32_t> lanes;
  for (const Slice& slice : track.slices) {
    if (slice.source == Source::Annotation) {
      lanes.push_back(slice.lane);
    }
  }
  EXPECT_THAT(lanes, ElementsAre(0, 1));
}

}  // namespace
}  // namespace gpuscope::exporters
