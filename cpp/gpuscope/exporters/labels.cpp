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

}  // namespace gpuscope::exporters
