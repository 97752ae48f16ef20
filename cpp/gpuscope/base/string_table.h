// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace gpuscope::base {

/// Strings as dense ids, in order of first sight; id 0 is the empty string. One thread at a time.
class StringTable {
 public:
  StringTable() { intern(""); }
  StringTable(const StringTable&) = delete;
  StringTable& operator=(const StringTable&) = delete;

  uint32_t intern(std::string_view text) {
    if (const auto found = ids_.find(text); found != ids_.end()) {
      return found->second;
    }
    const auto id = static_cast<uint32_t>(texts_.size());
    texts_.emplace_back(text);
    try {
      ids_.emplace(texts_.back(), id);
    } catch (...) {  // out of memory: a text without an id would come a second time
      texts_.pop_back();
      throw;
    }
    return id;
  }
  /// The text's id, or UINT32_MAX.
  uint32_t find(std::string_view text) const noexcept {
    const auto found = ids_.find(text);
    return found != ids_.end() ? found->second : UINT32_MAX;
  }
  /// Unknown ids, as a damaged file may hold, read as the empty string.
  std::string_view operator[](uint32_t id) const noexcept {
    return id < texts_.size() ? texts_[id] : std::string_view{};
  }
  uint32_t size() const noexcept { return static_cast<uint32_t>(texts_.size()); }

 private:
  std::deque<std::string> texts_;  // a deque: growth never moves a string that ids_ points into
  std::unordered_map<std::string_view, uint32_t> ids_;
};

}  // namespace gpuscope::base
