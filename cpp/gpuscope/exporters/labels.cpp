// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/labels.h"

#include <array>
#include <utility>

#include "gpuscope/store/schema.h"

namespace gpuscope::exporters {
namespace {

constexpr std::array<std::pair<uint16_t, std::string_view>, 6> kFlags = {
    {{store::kZeroTime, "no timestamps"},
     {store::kBackwardTime, "ended before it began"},
     {store::kIncomplete, "incomplete"},
     {store::kNoLaunch, "launch not seen"},
     {store::kOpen, "still open at the end"},
     {store::kClipped, "open before the beginning"}}};

}  // namespace

std::string flag_label(uint16_t flags) {
  std::string label;
  for (const auto& [flag, text] : kFlags) {
    if ((flags & flag) != 0) {
      label += label.empty() ? "" : ", ";
      label += text;
    }
  }
  return label;
}

std::string stack_label(const store::Store& store, uint32_t stack) {
  std::string label;
  for (; stack != store::kNone; stack = store.stack.parent[stack]) {
    label += label.empty() ? "" : ";";
    label += store.strings[store.stack.file[stack]];
    label += '(';
    label += std::to_string(store.stack.line[stack]);
    label += "): ";
    label += store.strings[store.stack.function[stack]];
  }
  return label;
}

std::string thread_label(const store::Store& store, uint32_t thread) {
  const std::string_view name = store.strings[store.thread.name[thread]];
  return name.empty() ? "thread " + std::to_string(store.thread.system_id[thread]) : std::string(name);
}

std::string_view region_category(base::RegionKind kind) {
  switch (kind) {
    case base::RegionKind::Op:
      return "cpu_op";
    case base::RegionKind::Module:
      return "python_function";
    default:
      return "user_annotation";
  }
}

}  // namespace gpuscope::exporters
