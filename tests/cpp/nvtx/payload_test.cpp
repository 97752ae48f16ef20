// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExtPayload.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "fakes/window.h"

// A test names only the fields that it is about.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::nvtx {
namespace {

using fakes::Window;
using testing::ElementsAre;
using Values = std::map<std::string, std::string>;

class NvtxPayloads : public testing::Test {
 protected:
  // `id` 0: the tool makes one up.
  uint64_t schema(const std::vector<nvtxPayloadSchemaEntry_t>& entries, std::size_t size, uint64_t id = 0,
                  const char* name = nullptr) {
    nvtxPayloadSchemaAttr_t attributes{};
    attributes.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                           NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE |
                           (id != 0 ? NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID : 0) |
                           (name != nullptr ? NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME : 0);
    attributes.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
    attributes.entries = entries.data();
    attributes.numEntries = entries.size();
    attributes.payloadStaticSize = size;
    attributes.schemaId = id;
    attributes.name = name;
    return nvtxPayloadSchemaRegister(domain_, &attributes);
  }
  uint64_t enumeration(const std::vector<nvtxPayloadEnum_t>& entries, std::size_t size, uint64_t id) {
    nvtxPayloadEnumAttr_t attributes{};
    attributes.fieldMask = NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES |
                           NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE | NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID;
    attributes.entries = entries.data();
    attributes.numEntries = entries.size();
    attributes.sizeOfEnum = size;
    attributes.schemaId = id;
    return nvtxPayloadEnumRegister(domain_, &attributes);
  }
  // A range with one blob; what was recorded of it.
  Values record(uint64_t schema, const void* data, std::size_t size) {
    Window window;
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = "range";
    NVTX_PAYLOAD_EVTATTR_SET(&event, schema, data, size);
    nvtxDomainRangePushEx(domain_, &event);
    nvtxDomainRangePop(domain_);
    window.close();
    names_ = window.regions();
    return window.payload();
  }

  nvtxDomainHandle_t domain_ = nvtxDomainCreateA("library");
  std::vector<std::string> names_;
};

// As NCCL describes its collectives.
TEST_F(NvtxPayloads, FieldsHaveTheNamesOfTheirSchema) {
  struct AllReduce {
    uint64_t communicator;
    size_t bytes;
    int reduction;
  };
  const uint64_t reduction = enumeration({{"Sum", 0}, {"Max", 2}, {"None", uint64_t(-1)}}, sizeof(int), 1 << 24);
  EXPECT_EQ(reduction, uint64_t{1} << 24);
  const uint64_t id = schema(
      {
          {0, NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "NCCL communicator ID", nullptr, 0, offsetof(AllReduce, communicator)},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_SIZE, "Message size [bytes]", nullptr, 0, offsetof(AllReduce, bytes)},
          {0, reduction, "Reduction operation", nullptr, 0, offsetof(AllReduce, reduction)},
      },
      sizeof(AllReduce), (1 << 24) + 1);
  AllReduce values{0xABC, 4096, 2};
  EXPECT_EQ(
      record(id, &values, sizeof(values)),
      (Values{{"NCCL communicator ID", "2748"}, {"Message size [bytes]", "4096"}, {"Reduction operation", "'Max'"}}));
  EXPECT_THAT(names_, ElementsAre("library:range"));
  values.reduction = -1;
  EXPECT_EQ(record(id, &values, sizeof(values))["Reduction operation"], "'None'");
  values.reduction = 9;
  EXPECT_EQ(record(id, &values, SIZE_MAX)["Reduction operation"], "9");
}

TEST_F(NvtxPayloads, OffsetsThatAreLeftOutFollowFromTheTypes) {
  struct Mixed {
    char small;
    double real;
    int16_t half;
    float single;
    int8_t array[3];
    int64_t last;
  };
  const uint64_t id = schema(
      {
          {0, NVTX_PAYLOAD_ENTRY_TYPE_CHAR, "small"},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE, "real"},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_INT16, "half"},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_FLOAT, "single"},
          {NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, NVTX_PAYLOAD_ENTRY_TYPE_INT8, "array", nullptr, 3},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_INT64, "last"},
      },
      sizeof(Mixed));
  EXPECT_GE(id, uint64_t{1} << 32);
  const Mixed values{'A', 2.5, -7, 0.25F, {1, 2, 3}, -9};
  EXPECT_EQ(record(id, &values, sizeof(values)),
            (Values{{"small", "65"}, {"real", "2.500000"}, {"half", "-7"}, {"single", "0.250000"}, {"last", "-9"}}));
}

TEST_F(NvtxPayloads, TextsAreReadWhereTheyAre) {
  struct Texts {
    const char* pointer;
    char within[6];
    char full[2];
    char characters[4];
    const char* null;
    nvtxStringHandle_t registered;
  };
  constexpr uint64_t kText = NVTX_PAYLOAD_ENTRY_TYPE_CSTRING;
  const uint64_t id = schema(
      {
          {0, kText, "pointer", nullptr, 0, offsetof(Texts, pointer)},
          {0, kText, "within", nullptr, 6, offsetof(Texts, within)},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8, "full", nullptr, 2, offsetof(Texts, full)},
          {NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, NVTX_PAYLOAD_ENTRY_TYPE_CHAR, "characters", nullptr, 4,
           offsetof(Texts, characters)},
          {0, kText, "null", nullptr, 0, offsetof(Texts, null)},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE, "registered", nullptr, 0,
           offsetof(Texts, registered)},
      },
      sizeof(Texts));
  const Texts values{"pointed to",       "in",    {'a', 'b'},
                     {'c', 'd', 0, 'e'}, nullptr, nvtxDomainRegisterStringA(domain_, "known")};
  EXPECT_EQ(record(id, &values, sizeof(values)), (Values{{"pointer", "'pointed to'"},
                                                         {"within", "'in'"},
                                                         {"full", "'ab'"},
                                                         {"characters", "'cd'"},
                                                         {"registered", "'known'"}}));
  const char16_t wide[] = u"\u00E9\U0001F600";
  EXPECT_EQ(record(NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF16, wide, sizeof(wide))["payload"], "'\u00E9\U0001F600'");
}

TEST_F(NvtxPayloads, SchemasMayContainSchemas) {
  struct Inner {
    int x;
    int y;
  };
  struct Outer {
    char first;
    Inner inner;
    int last;
  };
  const uint64_t inner =
      schema({{0, NVTX_PAYLOAD_ENTRY_TYPE_INT, "x"}, {0, NVTX_PAYLOAD_ENTRY_TYPE_INT, "y"}}, sizeof(Inner));
  const uint64_t outer = schema(
      {{0, NVTX_PAYLOAD_ENTRY_TYPE_CHAR, "first"}, {0, inner, "inner"}, {0, NVTX_PAYLOAD_ENTRY_TYPE_INT, "last"}},
      sizeof(Outer));
  const Outer values{1, {2, 3}, 4};
  EXPECT_EQ(record(outer, &values, sizeof(values)), (Values{{"first", "1"}, {"x", "2"}, {"y", "3"}, {"last", "4"}}));
}

TEST_F(NvtxPayloads, ValueInASchemaOfItsOwnHasTheNameOfItsField) {
  const uint64_t value = schema({{0, NVTX_PAYLOAD_ENTRY_TYPE_INT, "int32"}}, sizeof(int));
  const uint64_t outer = schema({{0, value, "rows"}, {0, value, "columns"}}, 2 * sizeof(int));
  const int values[] = {2, 3};
  EXPECT_EQ(record(outer, values, sizeof(values)), (Values{{"rows", "2"}, {"columns", "3"}}));
}

TEST_F(NvtxPayloads, SchemaThatContainsItselfComesToAnEnd) {
  constexpr uint64_t kSelf = (1 << 24) + 99;
  const uint64_t id = schema({{0, NVTX_PAYLOAD_ENTRY_TYPE_INT, "number"}, {0, kSelf, "self"}}, 0, kSelf);
  const int values[64] = {5};
  EXPECT_EQ(record(id, values, sizeof(values))["number"], "5");
}

TEST_F(NvtxPayloads, SchemaThatContainsItselfManyTimesComesToAnEnd) {
  constexpr uint64_t kSelf = (1 << 24) + 98;
  std::vector<nvtxPayloadSchemaEntry_t> entries{{0, NVTX_PAYLOAD_ENTRY_TYPE_UINT8, "number"}};
  for (uint64_t field = 1; field < 1000; ++field) {  // to the fifth power
    entries.push_back({0, kSelf, "self", nullptr, 0, field});
  }
  const uint64_t id = schema(entries, 1000, kSelf);
  const std::vector<uint8_t> data(1000, 5);
  EXPECT_EQ(record(id, data.data(), data.size())["number"], "5");
}

TEST_F(NvtxPayloads, NothingIsReadPastTheEndOfABlob) {
  const uint64_t id = schema(
      {
          {0, NVTX_PAYLOAD_ENTRY_TYPE_INT32, "inside"},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_INT64, "cut", nullptr, 0, 4},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_INT32, "beyond", nullptr, 0, 4096},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, "text", nullptr, 1 << 20, 4},
      },
      0);
  const auto data = std::make_unique<char[]>(8);  // the sanitizer watches its ends
  data[4] = 'x', data[5] = data[6] = data[7] = 'y';
  EXPECT_EQ(record(id, data.get(), 8), (Values{{"inside", "0"}, {"text", "'xyyy'"}}));
  EXPECT_EQ(record(id, nullptr, 8), Values{});
  EXPECT_EQ(record(id, data.get(), 0), Values{});
  EXPECT_EQ(record(12345678901, data.get(), 8), Values{});
  EXPECT_EQ(record(NVTX_PAYLOAD_ENTRY_TYPE_INT32, data.get(), 8), Values{});
  EXPECT_EQ(record(NVTX_PAYLOAD_ENTRY_TYPE_INT64, data.get(), 8).size(), 1U);
}

TEST_F(NvtxPayloads, BadDescriptionsAreRefused) {
  EXPECT_EQ(nvtxPayloadSchemaRegister(domain_, nullptr), 0U);
  EXPECT_EQ(nvtxPayloadEnumRegister(domain_, nullptr), 0U);
  nvtxPayloadSchemaAttr_t empty{};
  EXPECT_EQ(nvtxPayloadSchemaRegister(domain_, &empty), 0U);
}

TEST_F(NvtxPayloads, EventsOfPayloadAloneAreNamedByTheirMessage) {
  const uint64_t named = schema(
      {
          {NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE, NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, "message"},
          {0, NVTX_PAYLOAD_ENTRY_TYPE_INT64, "value"},
      },
      0, 0, "of the schema");
  const uint64_t unnamed = schema({{0, NVTX_PAYLOAD_ENTRY_TYPE_INT64, "value"}}, 0, 0, "of the schema");
  struct Values {
    const char* message;
    int64_t value;
  } values{"of the message", 1};
  const nvtxPayloadData_t with_message{named, sizeof(values), &values};
  const nvtxPayloadData_t without{unnamed, sizeof(values.value), &values.value};
  Window window;
  EXPECT_EQ(nvtxRangePushPayload(domain_, &with_message, 1), 0);
  EXPECT_EQ(nvtxRangePopPayload(domain_, nullptr, 0), 0);
  nvtxRangeEndPayload(domain_, nvtxRangeStartPayload(domain_, &without, 1), nullptr, 0);
  nvtxMarkPayload(domain_, nullptr, 3);
  EXPECT_NE(nvtxDomainIsEnabled(domain_), 0);
  window.close();
  EXPECT_THAT(window.regions(), ElementsAre("library:of the message", "library:of the schema~"));
  EXPECT_THAT(window.marks(), ElementsAre("(no name)"));
  EXPECT_EQ(window.payload(1)["value"], "1");
}

}  // namespace
}  // namespace gpuscope::nvtx
