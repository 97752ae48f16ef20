// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gpuscope/store/schema.h"

namespace gpuscope::store {

// What torch.profiler calls work that has no name of its own, for readers and tools that look for these names. Values
// that this version does not know read as unknown.

/// `Memcpy HtoD (Pageable -> Device)`.
std::string copy_name(CopyKind kind, MemoryKind source, MemoryKind destination);

inline constexpr std::string_view kMemsetName = "Memset (Device)";

/// `Stream Sync`, `Context Sync`, ...
std::string_view sync_name(SyncKind kind) noexcept;

/// The name of a graph that was traced as a whole.
std::string graph_name(uint32_t graph);

}  // namespace gpuscope::store
