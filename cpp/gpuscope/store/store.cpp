// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/store.h"

#include <string>

#include "gpuscope/base/errors.h"

namespace gpuscope::store {

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

}  // namespace gpuscope::store
