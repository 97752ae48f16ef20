// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "gpuscope/nvtx/domains.h"

namespace gpuscope::nvtx {

/// One field of a payload. `type` is a predefined one or the id of a registered one (nvToolsExtPayload.h).
struct Field {
  uint64_t flags;
  uint64_t type;
  uint64_t detail;  // lengths of texts and arrays
  uint64_t offset;  // kNoOffset when the fields before it have no known size
  uint32_t name;    // a base::Names id
};
inline constexpr uint64_t kNoOffset = UINT64_MAX;

struct EnumValue {
  uint64_t value;
  uint32_t name;
};

/// A layout that a library has described: a struct's when it has fields, an enumeration's when it has values.
struct Schema {
  Domain domain;
  uint64_t id;
  uint32_t name;  // 0 for none
  uint64_t size;  // bytes, 0 when not known
  uint64_t align;
  std::vector<Field> fields;
  std::vector<EnumValue> values;
};

/// Bytes of a predefined type, 0 for those without a size of their own.
uint64_t size_of_type(uint64_t type) noexcept;

/// Computes the offsets that the library left out, and the size if it did.
void lay_out(Schema& schema, uint64_t pack_align) noexcept;

/// Keeps it for ever. Its id is made up when it has none. Returns the id, 0 when there is no room.
uint64_t register_schema(Schema schema) noexcept;
/// nullptr for ids that nobody registered.
const Schema* find_schema(Domain domain, uint64_t id) noexcept;

}  // namespace gpuscope::nvtx
