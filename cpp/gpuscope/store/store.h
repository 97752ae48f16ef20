// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "gpuscope/base/strings.h"
#include "gpuscope/store/schema.h"

namespace gpuscope::store {

/// One recording: every table, and the strings their ids name. Written by one thread, then only read.
struct Store {
#define GPUSCOPE_MEMBER(Type, table, LIST) Type table;
  GPUSCOPE_TABLES(GPUSCOPE_MEMBER)
#undef GPUSCOPE_MEMBER
  base::StringTable strings;

  void set_info(std::string_view key, std::string_view value) {
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
  /// Empty when the key is not there.
  std::string_view find_info(std::string_view key) const {
    for (std::size_t row = 0; row < info.size(); ++row) {
      if (strings[info.key[row]] == key) {
        return strings[info.value[row]];
      }
    }
    return {};
  }

  template <class F>
  void each_table(F&& visit) {
#define GPUSCOPE_VISIT(Type, table, LIST) visit(#table, table);
    GPUSCOPE_TABLES(GPUSCOPE_VISIT)
#undef GPUSCOPE_VISIT
  }
  template <class F>
  void each_table(F&& visit) const {
#define GPUSCOPE_VISIT(Type, table, LIST) visit(#table, table);
    GPUSCOPE_TABLES(GPUSCOPE_VISIT)
#undef GPUSCOPE_VISIT
  }
};

}  // namespace gpuscope::store
