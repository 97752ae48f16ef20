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

// The Arrow C data interface and C stream interface: a fixed binary layout that needs no Arrow library
// (https://arrow.apache.org/docs/format/CDataInterface.html). Member names and order are the specification's.
extern "C" {

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema* out);
  int (*get_next)(ArrowArrayStream*, ArrowArray* out);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};
}

namespace gpuscope::exporters {

/// Texts, stored one after another.
struct Texts {
  std::vector<int32_t> offsets = {0};
  std::string text;

  std::size_t size() const noexcept { return offsets.size() - 1; }
  std::string_view operator[](std::size_t index) const {
    return std::string_view(text).substr(static_cast<std::size_t>(offsets[index]),
                                         static_cast<std::size_t>(offsets[index + 1] - offsets[index]));
  }
};

/// Numbers of any type.
struct Numbers {
  std::size_t bytes = 0;  // of one
  bool is_signed = false;
  bool is_float = false;
  std::size_t size = 0;
  const void* data = nullptr;
  std::shared_ptr<const void> owner = nullptr;  // keeps data alive that is not the store's
};

/// A column of a data frame: one number per row, or with `codes` distinct numbers or texts.
struct FrameColumn {
  std::string name;
  Numbers numbers = {};
  std::optional<Texts> texts = std::nullopt;
  std::optional<std::vector<int32_t>> codes = std::nullopt;  // the index for each row, -1 for none
};

/// A table for data frames (pandas, Arrow), with names instead of row numbers.
///
/// Columns are in schema order. Texts, `region`, `path` and `thread` (its system id) are resolved. Additional columns
/// follow `variant`: `name` (demangled), `grid` and `block` ("x, y, z"), `registers`, `shared_bytes` (static and
/// dynamic). `track` adds `device`, `context` and `stream`. `call` adds `name`. `region` adds `path`, such as
/// "train/forward". Copies and regions have a `name`.
///
/// Missing numbers are the largest of their type. Throws InvalidArgument if the table does not exist, or a column has
/// more than 2 GiB of text.
std::vector<FrameColumn> make_frame(const store::Store& store, std::string_view wanted);

/// The maximum length of a path's text, without the ellipsis. In regions that are never left, full texts would grow
/// with the square of the depth.
inline constexpr std::size_t kMostPathBytes = 4096;

/// Each row of the path table as "outer/inner", long ones as "outer/.../inner".
std::vector<std::string> path_texts(const store::Store& store);

/// A table as a stream of one record batch, which keeps the store alive. The caller releases it. Columns are as in
/// make_frame: numbers use the store's memory, texts are dictionary-encoded, missing texts are "". Throws
/// InvalidArgument like make_frame.
ArrowArrayStream make_arrow_stream(std::shared_ptr<const store::Store> store, std::string_view table);

}  // namespace gpuscope::exporters
