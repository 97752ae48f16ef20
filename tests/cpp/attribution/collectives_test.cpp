// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/collectives.h"

#include <gtest/gtest.h>
#include <nvtx3/nvToolsExtPayload.h>

#include <cstddef>
#include <vector>

#include "fakes/window.h"

// A test names only the fields that it is about.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::attribution {
namespace {

using store::CollectiveKind;
using store::kNone;

// Calls of NCCL, as it tells them NVTX.
class NcclCalls : public testing::Test {
 protected:
  struct Created {
    uint64_t communicator;
    int ranks;
    int rank;
  };
  struct Called {
    uint64_t communicator;
    std::size_t bytes;
  };

  uint64_t schema(const std::vector<nvtxPayloadSchemaEntry_t>& entries, std::size_t size) const {
    nvtxPayloadSchemaAttr_t attributes{};
    attributes.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                           NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE;
    attributes.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
    attributes.entries = entries.data();
    attributes.numEntries = entries.size();
    attributes.payloadStaticSize = size;
    return nvtxPayloadSchemaRegister(domain_, &attributes);
  }
  static nvtxEventAttributes_t event(const char* name) {
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = name;
    return event;
  }
  void call(const char* function, uint64_t communicator, std::size_t bytes = 64) const {
    const Called values{communicator, bytes};
    nvtxEventAttributes_t called = event(function);
    NVTX_PAYLOAD_EVTATTR_SET(&called, called_, &values, sizeof(values));
    nvtxDomainRangePushEx(domain_, &called);
    nvtxDomainRangePop(domain_);
  }
  void create(uint64_t communicator, int ranks, int rank) const {
    const nvtxEventAttributes_t created = event("ncclCommInitRank");
    nvtxDomainRangePushEx(domain_, &created);
    const Created values{communicator, ranks, rank};
    const nvtxPayloadData_t data{created_, sizeof(values), &values};
    nvtxRangePopPayload(domain_, &data, 1);
  }

  nvtxDomainHandle_t domain_ = nvtxDomainCreateA("NCCL");
  uint64_t called_ = schema({{0, NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "NCCL communicator ID"},
                             {0, NVTX_PAYLOAD_ENTRY_TYPE_SIZE, "Message size [bytes]"}},
                            sizeof(Called));
  uint64_t created_ = schema({{0, NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "NCCL communicator ID"},
                              {0, NVTX_PAYLOAD_ENTRY_TYPE_INT, "No. of ranks"},
                              {0, NVTX_PAYLOAD_ENTRY_TYPE_INT, "Rank"}},
                             sizeof(Created));
};

TEST_F(NcclCalls, AreNumberedOnTheirCommunicator) {
  fakes::Window window;
  call("ncclAllReduce", 7, 4096);
  call("ncclAllGather", 9);
  call("ncclReduceScatter", 7);
  const store::Collectives& found = window.close().collective;
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ((std::vector<uint64_t>(found.sequence.begin(), found.sequence.end())), (std::vector<uint64_t>{0, 0, 1}));
  EXPECT_EQ((std::vector<uint64_t>(found.communicator.begin(), found.communicator.end())),
            (std::vector<uint64_t>{7, 9, 7}));
  EXPECT_EQ(found.bytes[0], 4096U);
  EXPECT_EQ(found.kind[2], static_cast<uint16_t>(CollectiveKind::ReduceScatter));
}

TEST_F(NcclCalls, HaveTheirRegion) {
  fakes::Window window;
  call("ncclBroadcast", 7);
  call("ncclSend", 7);
  const store::Store& store = window.close();
  EXPECT_EQ(store.collective.region[1], 1U);
  EXPECT_EQ(store.collective.start_ns[1], store.region.start_ns[1]);
}

TEST_F(NcclCalls, ThatAreNoCollectivesAreNotCounted) {
  fakes::Window window;
  call("ncclCommDestroy", 7);
  call("ncclGroupStart", 7);
  EXPECT_EQ(window.close().collective.size(), 0U);
}

TEST_F(NcclCalls, OfACommunicatorThatIsCreatedHaveItsSizeAndRank) {
  fakes::Window window;
  create(7, 8, 3);
  call("ncclAllReduce", 7);
  const store::Communicators& found = window.close().communicator;
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.id[0], 7U);
  EXPECT_EQ(found.ranks[0], 8U);
  EXPECT_EQ(found.rank[0], 3U);
  EXPECT_EQ(found.calls[0], 1U);
}

TEST_F(NcclCalls, OfACommunicatorCreatedBeforeHaveNeither) {
  fakes::Window window;
  call("ncclAllReduce", 7);
  const store::Communicators& found = window.close().communicator;
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.ranks[0], 0U);
  EXPECT_EQ(found.rank[0], kNone);
}

TEST_F(NcclCalls, BeginAnewOnACommunicatorThatIsCreatedAgainUnderItsId) {
  fakes::Window window;
  create(7, 8, 3);
  call("ncclAllReduce", 7);
  create(7, 4, 1);
  call("ncclAllReduce", 7);
  const store::Store& store = window.close();
  ASSERT_EQ(store.communicator.size(), 2U);
  EXPECT_EQ(store.communicator.ranks[0], 8U);
  EXPECT_EQ(store.communicator.ranks[1], 4U);
  EXPECT_EQ(store.collective.epoch[1], 1U);
  EXPECT_EQ(store.collective.sequence[1], 0U);
}

TEST_F(NcclCalls, OutsideTheWindowCount) {
  Collectives collectives;
  const Collectives::Payload payload{.communicator = 7};
  collectives.call("ncclAllReduce", payload, 10);
  const auto second = collectives.call("ncclAllReduce", payload, 20);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->sequence, 1U);
}

}  // namespace
}  // namespace gpuscope::attribution
