// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/values.h"

#include <array>

namespace gpuscope::store {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 11> kCopies = {"Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                                                      "AtoD",    "DtoA", "DtoD", "HtoH", "PtoP"};
constexpr std::array<std::string_view, 8> kMemories = {"Unknown", "Pageable", "Pinned",        "Device",
                                                       "Array",   "Managed",  "Device Static", "Managed Static"};
constexpr std::array<std::string_view, 5> kSyncs = {"Sync", "Event Sync", "Stream Wait Event", "Stream Sync",
                                                    "Context Sync"};

template <std::size_t N, class E>
std::string_view name_of(const std::array<std::string_view, N>& names, E value) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return names[index < N ? index : 0];
}

}  // namespace

std::string copy_name(CopyKind kind, MemoryKind source, MemoryKind destination) {
  std::string name = "Memcpy ";
  name.append(name_of(kCopies, kind)).append(" (").append(name_of(kMemories, source)).append(" -> ");
  return name.append(name_of(kMemories, destination)).append(")");
}

std::string_view sync_name(SyncKind kind) noexcept { return name_of(kSyncs, kind); }

std::string graph_name(uint32_t graph) { return "CUDA graph " + std::to_string(graph); }

}  // namespace gpuscope::store
