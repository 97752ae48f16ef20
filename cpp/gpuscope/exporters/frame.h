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

// The Arrow C data interface and C stream interface: a fixed binary layout that the Arrow specification publishes so
// that producers need no Arrow library (https://arrow.apache.org/docs/format/CDataInterface.html). Member names and
// order are the specification's.
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

/// Numbers of any type.
struct Numbers {
  std::size_t bytes = 0;  // of one
  bool is_signed = false;
  bool is_float = false;
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
/// is not there reads as the largest of its type. Throws InvalidArgument where there is no such table, and where a
/// column has more than 2 GiB of text.
std::vector<FrameColumn> make_frame(const store::Store& store, std::string_view wanted);

/// So long is the text of a path at most, but for what stands where names are left out: in regions that are never left
/// the whole texts would take the square of their depth.
inline constexpr std::size_t kMostPathBytes = 4096;

/// Each row of the path table as "outer/inner", long ones as "outer/.../inner".
std::vector<std::string> path_texts(const store::Store& store);

/// A table as one record batch of a stream, which keeps the store alive and which the caller releases. The columns are
/// make_frame's: numbers are the store's own memory, texts dictionary-encoded, "" where there is none. Throws
/// InvalidArgument as make_frame.
ArrowArrayStream make_arrow_stream(std::shared_ptr<const store::Store> store, std::string_view table);

}  // namespace gpuscope::exporters
