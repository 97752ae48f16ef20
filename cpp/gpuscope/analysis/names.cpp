// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/names.h"

#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/store/values.h"

namespace gpuscope::analysis {
namespace {

constexpr std::string_view kStep = "ProfilerStep#";
constexpr std::string_view kSteps = "ProfilerStep*";

}  // namespace

uint32_t DisplayNames::intern(std::string_view text) {
  const auto [entry, added] = ids_.try_emplace(std::string(text), static_cast<uint32_t>(texts_.size()));
  if (added) {
    texts_.push_back(base::to_utf8(text));
  }
  return entry->second;
}

uint32_t DisplayNames::of_string(uint32_t id) { return intern(store_.strings[id]); }

uint32_t DisplayNames::of_region(uint32_t id, uint32_t kind) {
  std::string_view text = store_.strings[id];
  if (text.starts_with(kStep)) {
    text = kSteps;
  }
  const auto [entry, added] =
      regions_.try_emplace(std::to_string(kind).append(text), static_cast<uint32_t>(texts_.size()));
  if (added) {
    texts_.push_back(base::to_utf8(text));
  }
  return entry->second;
}

uint32_t DisplayNames::of_kernel(uint32_t id) {
  const auto [entry, added] = kernels_.try_emplace(id, 0);
  if (added) {
    entry->second = intern(base::demangle(store_.strings[id]));
  }
  return entry->second;
}

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
      return store::copy_name(store::CopyKind{copy.kind}, store::MemoryKind{copy.source},
                              store::MemoryKind{copy.destination});
    }
    case Kind::Memset:
      return std::string(store::kMemsetName);
    case Kind::Call:
      return std::string(text(store.call.name, check(store.api).call[row]));
    case Kind::Sync:
      return std::string(store::sync_name(store::SyncKind{check(store.sync).kind[row]}));
    case Kind::GraphLaunch:
      return store::graph_name(check(store.graph_launch).graph[row]);
  }
  throw base::InvalidArgument("kind is " + std::to_string(static_cast<int>(kind)) + "; kinds are 0 to 6");
}

}  // namespace gpuscope::analysis
