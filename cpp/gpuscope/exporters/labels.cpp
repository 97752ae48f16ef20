// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/labels.h"

#include <array>
#include <utility>

#include "gpuscope/store/schema.h"

namespace gpuscope::exporters {
namespace {

// In the order of the enums that number them.
constexpr std::array<std::string_view, 11> kCopyKinds = {"unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                                                         "AtoD",    "DtoA", "DtoD", "HtoH", "PtoP"};
constexpr std::array<std::string_view, 8> kMemoryKinds = {"Unknown", "Pageable", "Pinned",        "Device",
                                                          "Array",   "Managed",  "Device Static", "Managed Static"};
constexpr std::array<std::string_view, 5> kSyncKinds = {"Unknown Sync", "Event Sync", "Stream Wait Event",
                                                        "Stream Sync", "Context Sync"};

constexpr std::array<std::pair<uint16_t, std::string_view>, 6> kFlags = {
    {{store::kZeroTime, "no timestamps"},
     {store::kBackwardTime, "ended before it began"},
     {store::kIncomplete, "incomplete"},
     {store::kNoLaunch, "launch not seen"},
     {store::kOpen, "still open at the end"},
     {store::kClipped, "open before the beginning"}}};

template <std::size_t N>
std::string_view pick(const std::array<std::string_view, N>& names, std::size_t index) {
  return names[index < N ? index : 0];
}

}  // namespace

std::string copy_label(uint8_t kind, uint8_t source, uint8_t destination) {
  std::string label = "Memcpy ";
  label += pick(kCopyKinds, kind);
  label += " (";
  label += pick(kMemoryKinds, source);
  label += " -> ";
  label += pick(kMemoryKinds, destination);
  label += ")";
  return label;
}

std::string_view sync_label(uint16_t kind) { return pick(kSyncKinds, kind); }

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
