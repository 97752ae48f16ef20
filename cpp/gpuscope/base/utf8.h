// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpuscope::base {

/// The text with U+FFFD for every byte that is not part of valid UTF-8: the system cuts thread names within a letter.
std::string to_utf8(std::string_view bytes);

}  // namespace gpuscope::base
