// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "fakes/stores.h"
#include "gpuscope/store/store.h"

namespace gpuscope::store {
namespace {

struct Fault {
  const char* name;
  std::function<void(Store&)> make;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class References : public ::testing::TestWithParam<Fault> {};

TEST_P(References, FaultIsFound) {
  const auto store = fakes::make_small_store();
  ASSERT_EQ(find_bad_reference(*store), "");
  GetParam().make(*store);
  EXPECT_NE(find_bad_reference(*store), "");
}

INSTANTIATE_TEST_SUITE_P(
    Each, References,
    ::testing::Values(Fault{"KernelVariant", [](Store& s) { s.kernel.variant[0] = 7; }},
                      Fault{"KernelVariantNone", [](Store& s) { s.kernel.variant[0] = kNone; }},
                      Fault{"KernelTrack", [](Store& s) { s.kernel.track[0] = 2; }},
                      Fault{"KernelRegion", [](Store& s) { s.kernel.region[0] = 2; }},
                      Fault{"ApiCall", [](Store& s) { s.api.call[0] = 9; }},
                      Fault{"ApiThread", [](Store& s) { s.api.thread[0] = 9; }},
                      Fault{"RegionPathNone", [](Store& s) { s.region.path[0] = kNone; }},
                      Fault{"RegionIsItsOwnParent", [](Store& s) { s.region.parent[1] = 1; }},
                      Fault{"RegionsAreEachOthersParents", [](Store& s) { s.region.parent[0] = 1; }},
                      Fault{"PathParentStandsBehind", [](Store& s) { s.path.parent[0] = 1; }},
                      Fault{"PathDepth", [](Store& s) { s.path.depth[1] = 5; }},
                      Fault{"MarkName", [](Store& s) { s.mark.name[0] = 100'000; }},
                      Fault{"InfoKey", [](Store& s) { s.info.key[0] = 100'000; }},
                      Fault{"GraphNodeEvent", [](Store& s) { s.graph_node.event[0] = 1; }},
                      Fault{"GraphNodeKind", [](Store& s) { s.graph_node.kind[0] = 4; }},
                      Fault{"HistogramBin", [](Store& s) { s.histogram.bin[0] = 1'000'000; }},
                      Fault{"NegativeStart", [](Store& s) { s.kernel.start_ns[0] = -1; }},
                      Fault{"EndlessDuration", [](Store& s) { s.api.duration_ns[0] = INT64_MAX; }},
                      Fault{"DurationsThatCannotBeAdded",
                            [](Store& s) { s.api.duration_ns[0] = s.kernel.duration_ns[0] = (int64_t{1} << 62) - 1; }},
                      Fault{"EndlessCounterSample",
                            [](Store& s) {
                              s.counter_sample.append({1, INT64_MAX, 0});
                            }},
                      Fault{"SizeOfACopy", [](Store& s) { s.memcpy.bytes[0] = UINT64_MAX - 4096; }},
                      Fault{"SizeOfAnAllocation", [](Store& s) { s.allocation.bytes[0] = INT64_MIN; }},
                      Fault{"NegativeTotal", [](Store& s) { s.region_total.total_ns[0] = -1; }},
                      Fault{"EndlessSuspension", [](Store& s) { s.resumption.suspended_ns[0] = INT64_MAX; }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(References, RegionMayStandBeforeItsParent) {
  fakes::StoreBuilder make;
  make.thread(1);
  const uint32_t outer = make.path("outer");
  make.region(make.path("inner", outer), 1, 2, 1);
  make.region(outer, 0, 3);
  EXPECT_EQ(find_bad_reference(make.store()), "");
}

}  // namespace
}  // namespace gpuscope::store
