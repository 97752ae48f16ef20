// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpuscope::exporters {

/// `text` as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD.
std::string quoted(std::string_view text);

/// The same without quotes around it or characters escaped: whatever it was, it is UTF-8 now.
std::string valid_utf8(std::string_view text);

/// Whether a text is lists of whole numbers as JSON has them, as "[[2, 3], []]".
bool is_json_lists(std::string_view text);

/// A list of texts as Python writes it, `['float', '']`, as JSON; other text as one JSON string.
std::string quoted_list(std::string_view text);

}  // namespace gpuscope::exporters
