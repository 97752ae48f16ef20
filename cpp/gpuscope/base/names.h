// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "gpuscope/base/string_table.h"

namespace gpuscope::base {

/// The region names of the process, as ids that the event logs carry. Any thread; never on a hot path, which caches
/// ids.
class Names {
 public:
  static Names& process() {
    static auto* names = new Names;  // leaked: logs are read until the last moment
    return *names;
  }
  uint32_t intern(std::string_view name) {
    const std::lock_guard lock(mutex_);
    if (table_.size() < kMost) {
      return table_.intern(name);
    }
    const uint32_t known = table_.find(name);
    return known != UINT32_MAX ? known : table_.intern("(more names)");
  }
  std::string text(uint32_t id) {
    const std::lock_guard lock(mutex_);
    return std::string(table_[id]);
  }
  /// The text of an id; the view is valid until the process ends.
  std::string_view view(uint32_t id) {
    const std::lock_guard lock(mutex_);
    return table_[id];
  }
  // Around a fork, so that the child does not inherit a lock that nobody will release.
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }

 private:
  // A program that makes up names for ever must not fill the memory.
  static constexpr uint32_t kMost = 1U << 20;
  std::mutex mutex_;
  StringTable table_;
};

}  // namespace gpuscope::base
