// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/store.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/errors.h"

namespace gpuscope::store {

Store::Store() = default;
Store::Store(Store&& other) noexcept = default;
Store& Store::operator=(Store&& other) noexcept = default;
Store::~Store() = default;

void Store::set_info(std::string_view key, std::string_view value) {
  const uint32_t key_id = strings.intern(key);
  const uint32_t value_id = strings.intern(value);
  for (std::size_t row = 0; row < info.size(); ++row) {
    if (info.key[row] == key_id) {
      info.value[row] = value_id;
      return;
    }
  }
  info.append({key_id, value_id});
}

std::string_view Store::find_info(std::string_view key) const {
  for (std::size_t row = 0; row < info.size(); ++row) {
    if (strings[info.key[row]] == key) {
      return strings[info.value[row]];
    }
  }
  return {};
}

std::size_t Store::rows_of(Target target) const noexcept {
  switch (target) {
#define GPUSCOPE_ROWS(Type, table, ...) \
  case Target::Type:                    \
    return table.size();
    GPUSCOPE_TABLES(GPUSCOPE_ROWS)
#undef GPUSCOPE_ROWS
    case Target::Strings:
      return strings.size();
    default:
      return SIZE_MAX;
  }
}

void Store::throw_unknown_table(std::string_view name) {
  std::string known;
  for (const TableInfo& table : kTables) {
    known.append(known.empty() ? "" : ", ").append(table.name);
  }
  throw base::InvalidArgument("table is \"" + std::string(name) + "\"; the tables are " + known);
}

namespace {

void add_after_its_references(const TableInfo& table, std::vector<Target>& order) {
  if (std::ranges::find(order, table.target) != order.end()) {
    return;
  }
  for (const ColumnInfo& column : table.columns) {
    const TableInfo* other = find_table(column.meaning.target);
    if (other != nullptr && other != &table) {
      add_after_its_references(*other, order);
    }
  }
  order.push_back(table.target);
}

bool is_of_thread(const TableInfo& table) {
  return std::ranges::any_of(table.columns,
                             [](const ColumnInfo& column) { return column.meaning.target == Target::Threads; });
}

}  // namespace

std::vector<Target> table_order() {
  std::vector<Target> order;
  const auto add = [&](auto&& takes) {
    for (const TableInfo& table : kTables) {
      if (takes(table)) {
        add_after_its_references(table, order);
      }
    }
  };
  add([](const TableInfo& table) { return table.role == Role::Info; });
  add([](const TableInfo& table) { return table.role == Role::Dictionary; });
  add([](const TableInfo& table) { return is_of_thread(table); });
  add([](const TableInfo& table) { return !has_owner(table); });
  add([](const TableInfo&) { return true; });  // rows that belong to rows of any table
  return order;
}

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

std::string graph_name(uint32_t graph) { return std::string(kGraphName) + " " + std::to_string(graph); }

namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14; older systems refuse it without harm
#endif
constexpr uintptr_t kPage = 4096;

}  // namespace

void populate(void* first, void* last) noexcept {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(first) & ~(kPage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(last) & ~(kPage - 1);
  if (end > begin) {
    madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateWrite);
  }
}

}  // namespace gpuscope::store
