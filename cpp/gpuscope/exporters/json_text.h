// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpuscope::exporters {

/// `text` as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD.
std::string quoted(std::string_view text);

/// The same without quotes around it or characters escaped: whatever it was, it is UTF-8 now.
std::string valid_utf8(std::string_view text);

}  // namespace gpuscope::exporters
