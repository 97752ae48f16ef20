// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gpuscope/nvtx/ranges.h"

struct nvtxEventAttributes_v2;  // NOLINT(readability-identifier-naming)
struct nvtxPayloadData_v1;      // NOLINT(readability-identifier-naming)

namespace gpuscope::nvtx {

/// One field of a payload. `type` is a predefined type or the id of a registered one (nvToolsExtPayload.h).
struct Field {
  uint64_t flags;
  uint64_t type;
  uint64_t detail;  // lengths of texts and arrays
  uint64_t offset;  // kNoOffset if an earlier field has a variable size
  uint32_t name;    // a base::Names id
};
inline constexpr uint64_t kNoOffset = UINT64_MAX;

struct EnumValue {
  uint64_t value;
  uint32_t name;
};

/// A layout registered by a library: a struct if it has fields, an enumeration if it has values.
struct Schema {
  Domain domain;
  uint64_t id;
  uint32_t name;  // 0 for none
  uint64_t size;  // bytes, 0 if unknown
  uint64_t align;
  std::vector<Field> fields;
  std::vector<EnumValue> values;
};

/// Computes missing offsets, and the size if missing.
void lay_out(Schema& schema, uint64_t pack_align) noexcept;

/// Stores it until the process ends, under its id or, if that is 0, a new one. Returns the id, 0 without room.
uint64_t register_schema(Schema schema) noexcept;

/// Appends the contents of an event's blobs as Arguments of the event that is logged next: numbers, texts, and
/// enumerations as texts. One thread. Omits arrays of numbers, unions, half-precision numbers and hidden fields. Stores
/// at most 64 values.
class PayloadWriter {
 public:
  PayloadWriter(ThreadRanges& thread, base::EventLog& log, Domain domain) noexcept
      : thread_(thread), log_(log), domain_(domain) {}

  /// `schema`: a predefined type or the id of a registered one. SIZE_MAX means the size of the schema.
  void write_blob(uint64_t schema, const void* data, std::size_t size) noexcept;
  /// At most 16.
  void write_blobs(const nvtxPayloadData_v1* blobs, std::size_t count) noexcept;
  void write(uint32_t name, base::Argument type, uint64_t value) noexcept;

  /// The message in a blob, or the name of its schema. 0 for neither.
  uint32_t message() const noexcept { return message_ != 0 ? message_ : schema_name_; }
  bool has_message() const noexcept { return message_ != 0; }

 private:
  void write_schema(const Schema& schema, std::string_view bytes, int nesting) noexcept;
  void write_field(const Field& field, std::string_view bytes, int nesting) noexcept;

  static constexpr int kMaxValues = 64;
  static constexpr int kMaxFields = 4096;  // fields visited: a schema may contain itself more than once
  ThreadRanges& thread_;
  base::EventLog& log_;
  Domain domain_;
  int values_ = 0;
  int fields_ = 0;
  uint32_t message_ = 0;
  uint32_t schema_name_ = 0;
};

/// The Names id of a text. The id of "(no name)" for null.
template <class Text>
uint32_t text_id(ThreadRanges& thread, const Text* text) noexcept {
  return text != nullptr ? thread.text_id(bytes_of(text), Encoding{sizeof(Text)}) : no_name();
}

/// Appends category and payload as Arguments and returns the id of the message.
uint32_t describe(ThreadRanges& thread, base::EventLog& log, Domain domain,
                  const nvtxEventAttributes_v2* attributes) noexcept;

}  // namespace gpuscope::nvtx
