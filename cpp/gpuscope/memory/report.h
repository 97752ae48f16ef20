// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpuscope::memory {

/// Who tells of an allocation. The numbers are those of SOURCES in gpuscope/memory/events.py.
enum class Source : uint8_t { Torch = 0, Cupy = 1, Driver = 2, Other = 3 };

inline constexpr int32_t kHost = -1;  // in place of a GPU's ordinal

/// One allocation or release, as an allocator tells of it.
struct Report {
  uint64_t address = 0;
  int64_t bytes = 0;      // negative when given back
  int64_t allocated = 0;  // handed out by that allocator on that device, this counted; 0 where it does not say
  int64_t reserved = 0;   // held by that allocator on that device; 0 where it does not say
  int32_t device = kHost;
  Source source = Source::Other;
};

}  // namespace gpuscope::memory
