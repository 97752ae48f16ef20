// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/work_names.h"

#include <array>

#include "gpuscope/base/demangle.h"
#include "gpuscope/base/errors.h"

namespace gpuscope::analysis {
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

std::string copy_name(store::CopyKind kind, store::MemoryKind source, store::MemoryKind destination) {
  std::string name = "Memcpy ";
  name.append(name_of(kCopies, kind)).append(" (").append(name_of(kMemories, source)).append(" -> ");
  return name.append(name_of(kMemories, destination)).append(")");
}

std::string_view sync_name(store::SyncKind kind) noexcept { return name_of(kSyncs, kind); }

std::string graph_name(uint32_t graph) { return "CUDA graph " + std::to_string(graph); }

std::string event_name(const store::Store& store, Kind kind, std::size_t row) {
  const auto text = [&](const auto& names, std::size_t index) {
    return index < names.size() ? store.strings[names[index]] : std::string_view{};
  };
  const auto check = [&](const auto& table) -> const auto& {
    if (row >= table.size()) {
      throw base::InvalidArgument("row is " + std::to_string(row) + "; the table has " + std::to_string(table.size()));
    }
    return table;
  };
  switch (kind) {
    case Kind::Region:
      return std::string(text(store.path.name, check(store.region).path[row]));
    case Kind::Kernel:
      return base::demangle(text(store.variant.name, check(store.kernel).variant[row]));
    case Kind::Memcpy: {
      const auto copy = check(store.memcpy)[row];
      return copy_name(store::CopyKind{copy.kind}, store::MemoryKind{copy.source}, store::MemoryKind{copy.destination});
    }
    case Kind::Memset:
      return std::string(kMemsetName);
    case Kind::Call:
      return std::string(text(store.call.name, check(store.api).call[row]));
    case Kind::Sync:
      return std::string(sync_name(store::SyncKind{check(store.sync).kind[row]}));
    case Kind::GraphLaunch:
      return graph_name(check(store.graph_launch).graph[row]);
  }
  throw base::InvalidArgument("kind is " + std::to_string(static_cast<int>(kind)) + "; kinds are 0 to 6");
}

}  // namespace gpuscope::analysis
