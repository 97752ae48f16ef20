// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpuscope::exporters {

// What torch.profiler calls things, for the tools that look for these names.

/// As "Memcpy HtoD (Pinned -> Device)".
std::string copy_label(uint8_t kind, uint8_t source, uint8_t destination);

/// As "Stream Sync".
std::string_view sync_label(uint16_t kind);

/// What a row's store::Flag bits say against it, as "no timestamps, incomplete"; empty when there is nothing.
std::string flag_label(uint16_t flags);

}  // namespace gpuscope::exporters
