// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "fakes/stores.h"
#include "gpuscope/base/errors.h"

namespace gpuscope::exporters {
namespace {

using ::testing::ElementsAre;

std::vector<uint32_t> lanes(const Track& track) {
  std::vector<uint32_t> result(track.slices.size());
  for (const Slice& slice : track.slices) {
    result[slice.row] = slice.lane;
  }
  return result;
}

class TimelineLanes : public ::testing::Test {
 protected:
  TimelineLanes() {
    make_.thread(1);
    make_.track(7);
    make_.variant("k");
    call_ = make_.call("cuLaunchKernel");
    path_ = make_.path("task");
    inner_path_ = make_.path("inner", path_);
  }
  fakes::StoreBuilder make_;
  uint16_t call_;
  uint32_t path_, inner_path_;
};

TEST_F(TimelineLanes, KernelsInTurnShareALane) {
  make_.kernel(0, 10, 20);
  make_.kernel(0, 20, 30);
  make_.kernel(0, 30, 30);
  EXPECT_THAT(lanes(lay_out(make_.store()).streams.at(0)), ElementsAre(0, 0, 0));
}

TEST_F(TimelineLanes, KernelsThatOverlapGetLanes) {
  make_.kernel(0, 10, 30);
  make_.kernel(0, 20, 40);
  make_.kernel(0, 25, 26);
  make_.kernel(0, 30, 50);
  EXPECT_THAT(lanes(lay_out(make_.store()).streams.at(0)), ElementsAre(0, 1, 2, 0));
}

TEST_F(TimelineLanes, KernelsOutOfOrderAreSorted) {
  make_.kernel(0, 30, 40);
  make_.kernel(0, 10, 20);
  const Track track = lay_out(make_.store()).streams.at(0);
  EXPECT_EQ(track.slices[0].start_ns, 10);
  EXPECT_EQ(track.lanes, 1U);
}

TEST_F(TimelineLanes, StreamsOfTwoContextsWithOneNumberShareATrack) {
  const uint16_t second = make_.track(7, 2);
  make_.kernel(0, 10, 30);
  make_.kernel(0, 20, 40, 0, store::kNone, second);
  const Timeline timeline = lay_out(make_.store());
  ASSERT_EQ(timeline.streams.size(), 1U);
  EXPECT_THAT(lanes(timeline.streams[0]), ElementsAre(0, 1));
}

TEST_F(TimelineLanes, NestedRegionsShareALane) {
  const uint32_t outer = make_.region(path_, 0, 100);
  make_.region(inner_path_, 0, 50, outer);
  make_.region(inner_path_, 50, 100, outer);
  EXPECT_THAT(lanes(lay_out(make_.store()).threads.at(0)), ElementsAre(0, 0, 0));
}

TEST_F(TimelineLanes, TasksThatTakeTurnsGetLanesAndKeepTheirChildren) {
  const uint32_t first = make_.region(path_, 0, 100);
  const uint32_t second = make_.region(path_, 10, 60);  // lies within the first, and is no child of it
  make_.region(inner_path_, 20, 30, second);
  make_.region(inner_path_, 25, 35, first);
  EXPECT_THAT(lanes(lay_out(make_.store()).threads.at(0)), ElementsAre(0, 1, 1, 0));
}

TEST_F(TimelineLanes, SiblingWithinTheTimeOfAnotherIsNotDrawnAsItsChild) {
  const uint32_t outer = make_.region(path_, 0, 100);
  make_.region(inner_path_, 10, 60, outer);
  make_.region(inner_path_, 20, 50, outer);
  EXPECT_THAT(lanes(lay_out(make_.store()).threads.at(0)), ElementsAre(0, 0, 1));
}

TEST_F(TimelineLanes, RegionThatOutlivesItsParentGetsALane) {
  const uint32_t outer = make_.region(path_, 0, 50);
  make_.region(inner_path_, 10, 60, outer);
  EXPECT_THAT(lanes(lay_out(make_.store()).threads.at(0)), ElementsAre(0, 1));
}

TEST_F(TimelineLanes, CallsLieInTheLaneOfTheirRegion) {
  make_.region(path_, 0, 100);
  const uint32_t second = make_.region(path_, 10, 60);
  make_.api(call_, 20, 30, 1, second);
  make_.api(call_, 70, 80, 2, 0);
  const Track track = lay_out(make_.store()).threads.at(0);
  std::vector<uint32_t> calls(2);
  for (const Slice& slice : track.slices) {
    if (slice.source == Source::Api) {
      calls[slice.row] = slice.lane;
    }
  }
  EXPECT_THAT(calls, ElementsAre(1, 0));
}

TEST_F(TimelineLanes, RegionComesBeforeWhatItHoldsWhenTimesAreEqual) {
  make_.region(inner_path_, 10, 20, 1);  // logged at its end, before its parent
  make_.region(path_, 10, 20);
  make_.api(call_, 10, 20, 1, 0);
  const Track track = lay_out(make_.store()).threads.at(0);
  EXPECT_EQ(track.slices[0].row, 1U);
  EXPECT_EQ(track.slices[1].source, Source::Region);
  EXPECT_EQ(track.slices[2].source, Source::Api);
  // Equal ends: once the parent is there, both fit below it.
  EXPECT_EQ(track.lanes, 1U);
}

// What took the square of their number of steps did not end within the time of a test.
constexpr uint32_t kMany = 100'000;

TEST_F(TimelineLanes, TasksThatAllOverlapGetALaneEach) {
  for (uint32_t task = 0; task < kMany; ++task) {
    make_.region(path_, task, 2 * kMany + task);
  }
  EXPECT_EQ(lay_out(make_.store()).threads.at(0).lanes, kMany);
}

TEST_F(TimelineLanes, KernelsThatAllOverlapGetALaneEach) {
  for (uint32_t kernel = 0; kernel < kMany; ++kernel) {
    make_.kernel(0, kernel, 2 * kMany + kernel);
  }
  EXPECT_EQ(lay_out(make_.store()).streams.at(0).lanes, kMany);
}

TEST_F(TimelineLanes, AnnotationsInEachOtherLastAsLongAsTheWorkInThem) {
  for (uint32_t inner = 0; inner < kMany; ++inner) {
    make_.region(path_, inner, 3 * kMany - inner, inner == 0 ? store::kNone : inner - 1);
    make_.kernel(0, 3 * kMany + inner, 3 * kMany + inner + 1, inner + 1, inner);
  }
  const GpuAnnotations found = find_gpu_annotations(make_.store(), Links(make_.store()));
  ASSERT_EQ(found.size(), kMany);
  EXPECT_EQ(found.region[1], 1U);
  EXPECT_EQ(found.start_ns[1], 3 * kMany + 1);
  EXPECT_EQ(found.start_ns[1] + found.duration_ns[1], 4 * kMany);
}

TEST_F(TimelineLanes, LaneThatIsFreeAgainIsTheFirstToBeTaken) {
  make_.kernel(0, 0, 10);
  make_.kernel(0, 1, 5);
  make_.kernel(0, 2, 20);
  make_.kernel(0, 6, 30);
  make_.kernel(0, 12, 30);
  EXPECT_THAT(lanes(lay_out(make_.store()).streams.at(0)), ElementsAre(0, 1, 2, 1, 0));
}

class FunctionLanes : public TimelineLanes {
 protected:
  void function(int64_t start_ns, int64_t end_ns) {
    make_.store().python_function.append({start_ns, end_ns - start_ns, 0, store::kNone, store::kNone, 0, 0, 0});
  }
  std::vector<uint32_t> lanes_of(Source source) {
    std::vector<uint32_t> result;
    const Track track = lay_out(make_.store()).threads.at(0);
    for (const Slice& slice : track.slices) {
      if (slice.source == source) {
        result.push_back(slice.lane);
      }
    }
    return result;
  }
};

TEST_F(FunctionLanes, AroundAndInsideRegionsTheyShareTheLane) {
  function(0, 100);
  make_.region(path_, 10, 90);
  function(20, 30);
  function(20, 25);
  EXPECT_THAT(lanes_of(Source::PythonFunction), ElementsAre(0, 0, 0));
  EXPECT_THAT(lanes_of(Source::Region), ElementsAre(0));
}

TEST_F(FunctionLanes, ThatBeginARegionOrEndOneGetALaneAndTheRegionKeepsItsOwn) {
  function(0, 20);  // __enter__
  make_.region(path_, 10, 90);
  function(50, 60);
  function(80, 100);  // __exit__
  EXPECT_THAT(lanes_of(Source::PythonFunction), ElementsAre(1, 0, 1));
  EXPECT_THAT(lanes_of(Source::Region), ElementsAre(0));
}

TEST_F(FunctionLanes, ThatOutlastThoseInWhichTheyBeginGetLanes) {
  function(1000, 11'000);
  function(6000, 16'000);
  function(7000, 20'000);
  function(8000, 9000);  // in the first
  EXPECT_THAT(lanes_of(Source::PythonFunction), ElementsAre(0, 1, 2, 0));
}

TEST_F(FunctionLanes, ThatOutlastOthersTakeTheFirstLaneThatIsFreeAgain) {
  function(0, 20);
  function(10, 30);
  function(15, 60);
  function(40, 70);
  function(50, 80);
  EXPECT_THAT(lanes_of(Source::PythonFunction), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_EQ(lay_out(make_.store()).threads.at(0).lanes, 3U);
}

TEST_F(FunctionLanes, StandOutsideWhatTakesTheSameTime) {
  make_.region(path_, 10, 20);
  function(10, 20);
  EXPECT_EQ(lay_out(make_.store()).threads.at(0).slices.at(0).source, Source::PythonFunction);
}

TEST_F(TimelineLanes, WorkWithoutTimestampsStandsAtTheBeginning) {
  make_.kernel(0, 1000, 2000);
  make_.kernel(0, 0, 0, 0, store::kNone, 0, store::kZeroTime);
  const Timeline timeline = lay_out(make_.store());
  EXPECT_EQ(timeline.base_ns, 1000);
  EXPECT_EQ(timeline.streams.at(0).slices.at(0).start_ns, 1000);
  EXPECT_EQ(timeline.streams.at(0).slices.at(1).start_ns, 1000);
}

TEST_F(TimelineLanes, ThreadsWithOneSystemIdShareATrack) {
  const uint16_t again = make_.thread(1);
  make_.region(path_, 0, 10);
  make_.region(path_, 20, 30, store::kNone, again);
  EXPECT_EQ(lay_out(make_.store()).threads.size(), 1U);
}

TEST_F(TimelineLanes, AggregateRecordingIsRefused) {
  make_.store().set_info("session.mode", "aggregate");
  EXPECT_THROW(lay_out(make_.store()), base::InvalidArgument);
}

}  // namespace
}  // namespace gpuscope::exporters
