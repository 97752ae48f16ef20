// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "gpuscope/store/store.h"

// A test names only the columns that it is about; the others are 0.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::fakes {

/// Writes a store row by row with only the columns that a test is about. Everything runs on thread 0.
struct Rows {
  store::Store store;

  uint32_t path(std::string_view name, uint32_t parent = store::kNone) {
    return store.path.append({parent, store.strings.intern(name), 0, 0, 0});
  }
  uint32_t region(uint32_t path, int64_t duration_ns, uint32_t parent = store::kNone, uint16_t thread = 0) {
    return store.region.append(
        {.start_ns = 0, .duration_ns = duration_ns, .parent = parent, .path = path, .thread = thread, .flags = 0});
  }
  uint32_t kernel(std::string_view name, int64_t duration_ns, uint32_t region = store::kNone) {
    const uint32_t variant = store.variant.append({.name = store.strings.intern(name)});
    return store.kernel.append({.duration_ns = duration_ns, .variant = variant, .region = region});
  }
  uint32_t call(std::string_view name, int64_t duration_ns, uint32_t region = store::kNone, uint16_t thread = 0) {
    const uint32_t call = store.call.append({.name = store.strings.intern(name)});
    return store.api.append(
        {.duration_ns = duration_ns, .region = region, .call = static_cast<uint16_t>(call), .thread = thread});
  }
  uint32_t copy(uint64_t bytes, int64_t duration_ns, uint32_t region = store::kNone) {
    return store.memcpy.append({.duration_ns = duration_ns,
                                .bytes = bytes,
                                .region = region,
                                .kind = static_cast<uint8_t>(store::CopyKind::HostToDevice),
                                .source = static_cast<uint8_t>(store::MemoryKind::Pageable),
                                .destination = static_cast<uint8_t>(store::MemoryKind::Device)});
  }
};

}  // namespace gpuscope::fakes
