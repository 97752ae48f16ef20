// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace gpuscope::torch {

/// What torch writes into the text of an operator's range, as
/// `aten::add_, seq = 4, op_id = 17, sizes = [[2, 3], []], input_op_ids = [(16,0), (0,-1)]`.
struct RangeText {
  std::string_view name;
  int64_t sequence = -1;    // autograd's number
  uint32_t op = 0;          // the operator's own number
  std::string_view shapes;  // "[[2, 3], []]", empty where it has none
  uint32_t producer = 0;    // the number of the operator that made its first tensor

  /// An operator or autograd function, rather than what a program or library named with record_function.
  bool is_op() const noexcept;
};

/// Reads the text; whatever does not look as above is the name. Allocates nothing.
RangeText parse_range(std::string_view text) noexcept;

}  // namespace gpuscope::torch
