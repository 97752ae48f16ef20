// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Texts, one behind the other.
struct Texts {
  std::vector<int32_t> offsets = {0};
  std::string text;

  std::size_t size() const noexcept { return offsets.size() - 1; }
  std::string_view operator[](std::size_t index) const {
    return std::string_view(text).substr(static_cast<std::size_t>(offsets[index]),
                                         static_cast<std::size_t>(offsets[index + 1] - offsets[index]));
  }
};

/// Numbers of any integer type.
struct Numbers {
  std::size_t bytes = 0;  // of one
  bool is_signed = false;
  std::size_t size = 0;
  const void* data = nullptr;
  std::shared_ptr<const void> owner = nullptr;  // of those that are not the store's own
};

/// One column of a table as data frames show it: a number a row, or with `codes` distinct numbers or texts.
struct FrameColumn {
  std::string name;
  Numbers numbers = {};
  std::optional<Texts> texts = std::nullopt;
  std::optional<std::vector<int32_t>> codes = std::nullopt;  // which of them each row has, -1 for none
};

/// A table as data frames show it, with names in place of row numbers: what pandas and Arrow get.
///
/// Columns come as the schema has them. Texts are spelled out, and so are `region`, `path` and `thread` (the system's
/// id of it). Behind `variant`, `track` and `call` stands what these rows say: `name` (demangled), `grid` and `block`
/// ("x, y, z"), `registers` and `shared_bytes` (static and dynamic); `device`, `context` and `stream`; `name`. `region`
/// brings `path`, that region with those around it, "train/forward"; copies and regions have a `name`. A number that
/// is not there reads as the largest of its type. Throws InvalidArgument where there is no such table.
std::vector<FrameColumn> make_frame(const store::Store& store, std::string_view wanted);

/// Each row of the path table as "outer/inner".
std::vector<std::string> path_texts(const store::Store& store);

}  // namespace gpuscope::exporters
