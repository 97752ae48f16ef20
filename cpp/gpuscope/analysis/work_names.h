// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gpuscope/store/schema.h"

namespace gpuscope::analysis {

/// The name torch.profiler gives a copy: `Memcpy HtoD (Pageable -> Device)`.
std::string copy_name(store::CopyKind kind, store::MemoryKind source, store::MemoryKind destination);

inline constexpr std::string_view kMemsetName = "Memset (Device)";

/// `Stream Sync`, `Context Sync`, ...
std::string_view sync_name(store::SyncKind kind) noexcept;

/// The name of a graph that was traced as a whole.
std::string graph_name(uint32_t graph);

}  // namespace gpuscope::analysis
