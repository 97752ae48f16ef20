// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

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

/// A table as one record batch of a stream, which keeps the store alive and which the caller releases. The columns are
/// make_frame's: numbers are the store's own memory, texts dictionary-encoded, "" where there is none. Throws
/// InvalidArgument where there is no such table.
ArrowArrayStream make_arrow_stream(std::shared_ptr<const store::Store> store, std::string_view table);

}  // namespace gpuscope::exporters
