// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/forward_ops.h"

namespace gpuscope::attribution {
namespace {

constexpr char lower(char letter) noexcept {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

std::string_view without_namespace(std::string_view name) noexcept {
  const std::size_t colons = name.rfind("::");
  return colons != std::string_view::npos ? name.substr(colons + 2) : name;
}

}  // namespace

bool is_backward_of(std::string_view backward, std::string_view forward) noexcept {
  backward = without_namespace(backward);
  backward = backward.substr(0, backward.rfind("Backward"));
  forward = without_namespace(forward);
  std::size_t at = 0;
  for (const char letter : forward) {
    if (letter == '_') {
      continue;
    }
    if (at == backward.size() || lower(backward[at]) != lower(letter)) {
      return false;
    }
    ++at;
  }
  return at == backward.size() && at != 0;
}

}  // namespace gpuscope::attribution
