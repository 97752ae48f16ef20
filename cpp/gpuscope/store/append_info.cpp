// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gpuscope/store/append.h"

namespace gpuscope::store {
namespace {

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

bool has_line(std::string_view text, std::string_view wanted) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (text.substr(begin, end - begin) == wanted) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

/// The lines of both, each once.
std::string lines_of(std::string_view first, std::string_view second) {
  std::string all(first);
  for (std::size_t begin = 0; begin < second.size();) {
    const std::size_t end = std::min(second.find('\n', begin), second.size());
    const std::string_view line = second.substr(begin, end - begin);
    if (!has_line(all, line)) {
      all.append(all.empty() || all.back() == '\n' ? "" : "\n").append(line);
    }
    begin = end + 1;
  }
  return all;
}

std::string joined(std::string_view key, std::string_view before, std::string_view after) {
  if (key == "session.notes") {
    return lines_of(before, after);
  }
  const std::optional<int64_t> old_value = number(before);
  const std::optional<int64_t> new_value = number(after);
  if (old_value.has_value() && new_value.has_value()) {
    if (key == "session.start_ns") {
      return std::to_string(std::min(*old_value, *new_value));
    }
    if (key == "session.stop_ns" || (key.starts_with("audit.") && key.ends_with("_max_ns"))) {
      return std::to_string(std::max(*old_value, *new_value));
    }
    if (key.starts_with("audit.") || key == "session.recorded_ns") {
      return std::to_string(*old_value + *new_value);
    }
  }
  return std::string(after);
}

/// How long was recorded: less than from start to end once there is a gap.
int64_t recorded_ns(const Store& store) {
  if (const std::optional<int64_t> known = number(store.find_info("session.recorded_ns"))) {
    return *known;
  }
  const std::optional<int64_t> start = number(store.find_info("session.start_ns"));
  const std::optional<int64_t> stop = number(store.find_info("session.stop_ns"));
  return start.has_value() && stop.has_value() ? *stop - *start : 0;
}

}  // namespace

void append_info(Store& to, const Store& from) {
  const bool is_first = to.info.size() == 0;
  const int64_t in_all_ns = recorded_ns(to) + recorded_ns(from);
  for (std::size_t row = 0; row < from.info.size(); ++row) {
    const std::string_view key = from.strings[from.info.key[row]];
    const std::string_view after = from.strings[from.info.value[row]];
    const uint32_t known = to.strings.find(key);
    const bool is_known =
        known != UINT32_MAX && std::find(to.info.key.begin(), to.info.key.end(), known) != to.info.key.end();
    to.set_info(key, is_known ? joined(key, std::string(to.find_info(key)), after) : std::string(after));
  }
  if (!is_first && in_all_ns > 0) {
    to.set_info("session.recorded_ns", std::to_string(in_all_ns));
  }
}

}  // namespace gpuscope::store
