// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/torch/range_text.h"

#include <charconv>

namespace gpuscope::torch {
namespace {

constexpr std::string_view kOp = ", op_id = ";
constexpr std::string_view kSequence = ", seq = ";
constexpr std::string_view kSizes = ", sizes = ";
constexpr std::string_view kInputs = ", input_op_ids = ";
constexpr std::string_view kFirstInput = "[(";

constexpr bool is_digit(char letter) noexcept { return letter >= '0' && letter <= '9'; }

/// Takes a number off the front of `text`.
template <class Number>
void take_number(std::string_view& text, Number& number) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{}) {
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
}

/// Splits `, seq = N` off the end of the name.
void split_sequence(RangeText& range) noexcept {
  std::size_t digits = range.name.size();
  while (digits > 0 && is_digit(range.name[digits - 1])) {
    --digits;
  }
  const std::string_view before = range.name.substr(0, digits);
  if (digits < range.name.size() && before.ends_with(kSequence)) {
    std::string_view number = range.name.substr(digits);
    take_number(number, range.sequence);
    range.name = before.substr(0, before.size() - kSequence.size());
  }
}

/// "AddmmBackward0" and the like.
bool is_backward(std::string_view name) noexcept {
  while (!name.empty() && is_digit(name.back())) {
    name.remove_suffix(1);
  }
  return name.ends_with("Backward");
}

}  // namespace

bool RangeText::is_op() const noexcept {
  // torch writes no word on what a range is. record_function's have no number of autograd; operators but a few old ones
  // have a namespace.
  return sequence >= 0 || name.find("::") != std::string_view::npos || is_backward(name) || name == "detach" ||
         name == "detach_";
}

RangeText parse_range(std::string_view text) noexcept {
  RangeText range;
  const std::size_t op = text.find(kOp);
  range.name = text.substr(0, op);
  split_sequence(range);
  if (op == std::string_view::npos) {
    return range;
  }
  text.remove_prefix(op + kOp.size());
  take_number(text, range.op);
  if (!text.starts_with(kSizes)) {
    return range;
  }
  text.remove_prefix(kSizes.size());
  const std::size_t inputs = text.rfind(kInputs);
  range.shapes = text.substr(0, inputs);
  if (inputs != std::string_view::npos) {
    text.remove_prefix(inputs + kInputs.size());
    if (text.starts_with(kFirstInput)) {
      text.remove_prefix(kFirstInput.size());
      take_number(text, range.producer);
    }
  }
  return range;
}

}  // namespace gpuscope::torch
