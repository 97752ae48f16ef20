// SPDX-License-Identifier: Apache-2.0
// The payload extension: events whose payload is a struct that the library has described.
#include <utility>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>
#define NVTX_EXT_TYPES_GUARD
#include <nvtx3/nvtxDetail/nvtxExtTypes.h>
#undef NVTX_EXT_TYPES_GUARD

#include "gpuscope/nvtx/attributes.h"
#include "gpuscope/nvtx/injection.h"
#include "gpuscope/nvtx/payload.h"
#include "gpuscope/nvtx/schemas.h"

namespace gpuscope::nvtx {
namespace {

constexpr std::size_t kMostFields = 1024;
constexpr std::size_t kMostValues = 65536;
constexpr std::size_t kMostBlobs = 16;

Domain number_of(nvtxDomainHandle_t domain) noexcept {
  return static_cast<Domain>(reinterpret_cast<uintptr_t>(domain));
}

uint32_t name_or(const char* name, uint32_t otherwise) noexcept {
  return name != nullptr ? intern(bytes_of(name)) : otherwise;
}

uint64_t register_struct(nvtxDomainHandle_t domain, const nvtxPayloadSchemaAttr_t* attributes) {
  const auto has = [&](uint64_t field) { return (attributes->fieldMask & field) != 0; };
  if (attributes == nullptr || attributes->entries == nullptr || !has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES) ||
      !has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES) || attributes->numEntries > kMostFields) {
    return 0;
  }
  const bool plain = !has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE) || attributes->type == NVTX_PAYLOAD_SCHEMA_TYPE_STATIC ||
                     attributes->type == NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC;
  try {
    Schema schema{};
    schema.domain = number_of(domain);
    schema.id = has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID) ? attributes->schemaId : 0;
    schema.name = has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME) ? name_or(attributes->name, 0) : 0;
    schema.size = has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE) ? attributes->payloadStaticSize : 0;
    for (std::size_t index = 0; plain && index < attributes->numEntries; ++index) {  // nothing is read of a union
      const nvtxPayloadSchemaEntry_t& entry = attributes->entries[index];
      schema.fields.push_back(
          {entry.flags, entry.type, entry.arrayOrUnionDetail, entry.offset, name_or(entry.name, no_name())});
    }
    lay_out(schema, has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ALIGNMENT) ? attributes->packAlign : 0);
    return register_schema(std::move(schema));
  } catch (...) {
    return 0;
  }
}

uint64_t register_enum(nvtxDomainHandle_t domain, const nvtxPayloadEnumAttr_t* attributes) {
  const auto has = [&](uint64_t field) { return (attributes->fieldMask & field) != 0; };
  if (attributes == nullptr || attributes->entries == nullptr || !has(NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES) ||
      !has(NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES) || attributes->numEntries > kMostValues) {
    return 0;
  }
  try {
    Schema schema{};
    schema.domain = number_of(domain);
    schema.id = has(NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID) ? attributes->schemaId : 0;
    schema.size = has(NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE) ? attributes->sizeOfEnum : sizeof(int);
    schema.align = schema.size;
    for (std::size_t index = 0; index < attributes->numEntries; ++index) {
      const nvtxPayloadEnum_t& entry = attributes->entries[index];
      schema.values.push_back({entry.value, name_or(entry.name, no_name())});
    }
    return register_schema(std::move(schema));
  } catch (...) {
    return 0;
  }
}

auto described(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) noexcept {
  return [=](Thread& thread, base::EventLog& log) {
    PayloadWriter writer(thread, log, number_of(domain));
    for (std::size_t index = 0; blobs != nullptr && index < count && index < kMostBlobs; ++index) {
      writer.write_blob(blobs[index].schemaId, blobs[index].payload, blobs[index].size);
    }
    return writer.message() != 0 ? writer.message() : no_name();
  };
}

void mark_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) {
  mark(described(domain, blobs, count));
}
int push_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) {
  return push(number_of(domain), described(domain, blobs, count));
}
// What comes with the end of a range is not kept.
int pop_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t*, std::size_t) { return pop(number_of(domain)); }
nvtxRangeId_t start_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) {
  return start(number_of(domain), described(domain, blobs, count));
}
void end_payload(nvtxDomainHandle_t, nvtxRangeId_t range, const nvtxPayloadData_t*, std::size_t) { end(range); }

}  // namespace

bool attach_extension(const void* module) noexcept {
  const auto* info = static_cast<const nvtxExtModuleInfo_t*>(module);
  if (info == nullptr || info->structSize < sizeof(*info)) {
    return false;
  }
  if (info->moduleId != NVTX_EXT_PAYLOAD_MODULEID || info->segmentsCount == 0 || info->segments == nullptr) {
    return true;
  }
  const nvtxExtModuleSegment_t& segment = info->segments[0];
  const auto put = [&](std::size_t slot, auto* function) {
    if (slot < segment.slotCount && segment.functionSlots != nullptr) {
      segment.functionSlots[slot] = reinterpret_cast<intptr_t>(function);
    }
  };
  put(NVTX3EXT_CBID_nvtxPayloadSchemaRegister, &register_struct);
  put(NVTX3EXT_CBID_nvtxPayloadEnumRegister, &register_enum);
  put(NVTX3EXT_CBID_nvtxMarkPayload, &mark_payload);
  put(NVTX3EXT_CBID_nvtxRangePushPayload, &push_payload);
  put(NVTX3EXT_CBID_nvtxRangePopPayload, &pop_payload);
  put(NVTX3EXT_CBID_nvtxRangeStartPayload, &start_payload);
  put(NVTX3EXT_CBID_nvtxRangeEndPayload, &end_payload);
  // nvtxDomainIsEnabled stays NVTX's own, which says yes: libraries ask once, and a profiler may come later.
  return true;
}

}  // namespace gpuscope::nvtx
