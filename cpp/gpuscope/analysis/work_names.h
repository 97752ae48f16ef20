// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpuscope/analysis/kind.h"
#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// The name torch.profiler gives a copy: `Memcpy HtoD (Pageable -> Device)`.
std::string copy_name(store::CopyKind kind, store::MemoryKind source, store::MemoryKind destination);

inline constexpr std::string_view kMemsetName = "Memset (Device)";

/// `Stream Sync`, `Context Sync`, ...
std::string_view sync_name(store::SyncKind kind) noexcept;

/// The name of a graph that was traced as a whole.
std::string graph_name(uint32_t graph);

/// The name of one row of the event table that `kind` is about; kernels are demangled.
std::string event_name(const store::Store& store, Kind kind, std::size_t row);

}  // namespace gpuscope::analysis
