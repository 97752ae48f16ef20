// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/analysis/display_names.h"

#include "gpuscope/base/strings.h"

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

}  // namespace gpuscope::analysis
