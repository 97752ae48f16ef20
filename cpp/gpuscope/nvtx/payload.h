// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gpuscope/nvtx/ranges.h"

namespace gpuscope::nvtx {

struct Field;
struct Schema;

/// Appends what the blobs that a library attached to an event hold as Arguments of the event that comes next: numbers,
/// texts, and enumerations as texts. Arrays of numbers, unions, half-precision numbers and what a schema hides are left
/// out; at most 64 values are kept.
class PayloadWriter {
 public:
  PayloadWriter(Thread& thread, base::EventLog& log, Domain domain) noexcept
      : thread_(thread), log_(log), domain_(domain) {}

  /// `schema` is a predefined type or the id of a registered one. A size of SIZE_MAX is one that the schema tells.
  void write_blob(uint64_t schema, const void* data, std::size_t size) noexcept;
  void write(uint32_t name, base::Argument type, uint64_t value) noexcept;

  /// The message that a blob brought for the event, or the name of its schema; 0 for neither.
  uint32_t message() const noexcept { return message_ != 0 ? message_ : schema_name_; }
  bool has_message() const noexcept { return message_ != 0; }

 private:
  void write_schema(const Schema& schema, std::string_view bytes, int nesting) noexcept;
  void write_field(const Field& field, std::string_view bytes, int nesting) noexcept;
  uint32_t text_id(std::string_view bytes, uint64_t type) noexcept;

  static constexpr int kMostValues = 64;
  Thread& thread_;
  base::EventLog& log_;
  Domain domain_;
  int values_ = 0;
  uint32_t message_ = 0;
  uint32_t schema_name_ = 0;
};

}  // namespace gpuscope::nvtx
