// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvtx/schemas.h"

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "gpuscope/nvtx/published_map.h"

namespace gpuscope::nvtx {
namespace {

constexpr uint64_t kRangeId = 67;  // NVTX_PAYLOAD_ENTRY_TYPE_RANGE_ID, which the headers of CUDA 13.0 do not have

constinit PublishedMap<2048> schemas;  // of pointers
std::atomic<uint64_t> next_id{NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START};

uint64_t key_of(Domain domain, uint64_t id) noexcept { return base::mix(id ^ (uint64_t{domain} << 44)) | 1; }

bool is_text(uint64_t type) noexcept {
  return type >= NVTX_PAYLOAD_ENTRY_TYPE_CSTRING && type <= NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32;
}

struct Extent {
  uint64_t size;
  uint64_t align;
};

// {0, 0} when it depends on the data.
Extent extent_of(const Schema& schema, const Field& field) noexcept {
  constexpr Extent kPointer = {sizeof(void*), alignof(void*)};
  const uint64_t array = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_TYPE(field.flags);
  if ((field.flags & NVTX_PAYLOAD_ENTRY_FLAG_POINTER) != 0) {
    return kPointer;
  }
  if (is_text(field.type) && array == 0 && field.detail == 0) {
    return kPointer;
  }
  Extent one = {size_of_type(field.type), size_of_type(field.type)};
  if (one.size == 0) {
    const Schema* inner = find_schema(schema.domain, field.type);
    one = inner != nullptr ? Extent{inner->size, inner->align} : Extent{0, 0};
  }
  if (array != 0 && array != NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE) {
    return {0, 0};
  }
  const uint64_t count = array != 0 || is_text(field.type) ? field.detail : 1;
  constexpr uint64_t kMostCount = uint64_t{1} << 32;
  return one.size == 0 || count == 0 || count > kMostCount ? Extent{0, 0} : Extent{one.size * count, one.align};
}

}  // namespace

uint64_t size_of_type(uint64_t type) noexcept {
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_UCHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT8:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT8:
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR8:
    case NVTX_PAYLOAD_ENTRY_TYPE_BYTE:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8:
      return 1;
    case NVTX_PAYLOAD_ENTRY_TYPE_SHORT:
    case NVTX_PAYLOAD_ENTRY_TYPE_USHORT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_BF16:
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR16:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF16:
      return 2;
    case NVTX_PAYLOAD_ENTRY_TYPE_INT:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_TF32:
    case NVTX_PAYLOAD_ENTRY_TYPE_WCHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR32:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32:
    case NVTX_PAYLOAD_ENTRY_TYPE_CATEGORY:
    case NVTX_PAYLOAD_ENTRY_TYPE_COLOR_ARGB:
    case NVTX_PAYLOAD_ENTRY_TYPE_PID_UINT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT32:
      return 4;
    case NVTX_PAYLOAD_ENTRY_TYPE_LONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_ULONG:
      return sizeof(long);
    case NVTX_PAYLOAD_ENTRY_TYPE_LONGLONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_ULONGLONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_SIZE:
    case NVTX_PAYLOAD_ENTRY_TYPE_ADDRESS:
    case kRangeId:
    case NVTX_PAYLOAD_ENTRY_TYPE_SCOPE_ID:
    case NVTX_PAYLOAD_ENTRY_TYPE_PID_UINT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT64:
    case NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE:
      return 8;
    case NVTX_PAYLOAD_ENTRY_TYPE_LONGDOUBLE:
      return sizeof(long double);
    case NVTX_PAYLOAD_ENTRY_TYPE_INT128:
    case NVTX_PAYLOAD_ENTRY_TYPE_UINT128:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT128:
      return 16;
    default:
      return 0;
  }
}

void lay_out(Schema& schema, uint64_t pack_align) noexcept {
  uint64_t end = 0;  // kNoOffset once it depends on the data
  schema.align = 1;
  for (std::size_t index = 0; index < schema.fields.size(); ++index) {
    Field& field = schema.fields[index];
    Extent extent = extent_of(schema, field);
    extent.align = pack_align != 0 ? std::min(extent.align, pack_align) : extent.align;
    if (index != 0 && field.offset == 0) {
      const bool known = end != kNoOffset && extent.size != 0;
      field.offset = known ? (end + extent.align - 1) / extent.align * extent.align : kNoOffset;
    }
    end = field.offset == kNoOffset || extent.size == 0 ? kNoOffset : field.offset + extent.size;
    schema.align = std::max(schema.align, extent.align);
  }
  if (schema.size == 0 && end != kNoOffset) {
    schema.size = (end + schema.align - 1) / schema.align * schema.align;
  }
}

uint64_t register_schema(Schema schema) noexcept {
  if (schema.id == 0) {
    schema.id = next_id.fetch_add(1, std::memory_order_relaxed);
  }
  const uint64_t id = schema.id;
  const uint64_t key = key_of(schema.domain, id);
  try {
    auto kept = std::make_unique<Schema>(std::move(schema));
    if (!schemas.set(key, reinterpret_cast<uintptr_t>(kept.get()))) {
      return 0;
    }
    kept.release();  // leaked: any thread may be reading it
    return id;
  } catch (...) {
    return 0;
  }
}

const Schema* find_schema(Domain domain, uint64_t id) noexcept {
  const auto* schema = reinterpret_cast<const Schema*>(schemas.find(key_of(domain, id)));
  return schema != nullptr && schema->domain == domain && schema->id == id ? schema : nullptr;
}

}  // namespace gpuscope::nvtx
