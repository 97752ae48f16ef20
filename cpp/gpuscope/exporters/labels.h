// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpuscope::exporters {

/// What a row's store::Flag bits say against it, as "no timestamps, incomplete"; empty when there is nothing.
std::string flag_label(uint16_t flags);

}  // namespace gpuscope::exporters
