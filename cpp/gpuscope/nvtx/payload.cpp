// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvtx/payload.h"

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "gpuscope/nvtx/schemas.h"

namespace gpuscope::nvtx {
namespace {

using base::Argument;

constexpr int kDeepest = 4;  // a schema may contain schemas

struct Number {
  Argument type;
  uint64_t bits;
};

template <class T>
T read(std::string_view bytes) noexcept {
  T value{};
  std::memcpy(&value, bytes.data(), std::min(sizeof(T), bytes.size()));
  return value;
}

template <class T>
Number signed_number(std::string_view bytes) noexcept {
  return {Argument::Signed, static_cast<uint64_t>(static_cast<int64_t>(read<T>(bytes)))};
}

Number float_number(double value) noexcept { return {Argument::Float, std::bit_cast<uint64_t>(value)}; }

// `bytes` are as many as the type has. Nothing for types that are no numbers.
std::optional<Number> number_of(uint64_t type, std::string_view bytes) noexcept {
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_CHAR:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT8:
      return signed_number<int8_t>(bytes);
    case NVTX_PAYLOAD_ENTRY_TYPE_SHORT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT16:
      return signed_number<int16_t>(bytes);
    case NVTX_PAYLOAD_ENTRY_TYPE_INT:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT32:
      return signed_number<int32_t>(bytes);
    case NVTX_PAYLOAD_ENTRY_TYPE_LONG:
      return signed_number<long>(bytes);
    case NVTX_PAYLOAD_ENTRY_TYPE_LONGLONG:
    case NVTX_PAYLOAD_ENTRY_TYPE_INT64:
      return signed_number<int64_t>(bytes);
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT32:
    case NVTX_PAYLOAD_ENTRY_TYPE_TF32:
      return float_number(read<float>(bytes));
    case NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE:
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT64:
      return float_number(read<double>(bytes));
    case NVTX_PAYLOAD_ENTRY_TYPE_LONGDOUBLE:
      return float_number(static_cast<double>(read<long double>(bytes)));
    case NVTX_PAYLOAD_ENTRY_TYPE_FLOAT16:
    case NVTX_PAYLOAD_ENTRY_TYPE_BF16:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF16:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32:
      return std::nullopt;
    default:
      break;
  }
  if (bytes.empty() || bytes.size() > sizeof(uint64_t)) {
    return std::nullopt;
  }
  return Number{Argument::Unsigned, read<uint64_t>(bytes)};
}

std::optional<Encoding> encoding_of(uint64_t type) noexcept {
  switch (type) {
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING:
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8:
      return Encoding::Utf8;
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF16:
      return Encoding::Utf16;
    case NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32:
      return Encoding::Utf32;
    default:
      return std::nullopt;
  }
}

bool is_zero(const char* unit, std::size_t width) noexcept {
  return std::all_of(unit, unit + width, [](char byte) { return byte == 0; });
}

// The characters before the first that is zero, in at most `most` bytes.
std::string_view until_zero(const char* text, std::size_t most, Encoding encoding) noexcept {
  const auto width = static_cast<std::size_t>(encoding);
  std::size_t size = 0;
  while (size + width <= most && !is_zero(text + size, width)) {
    size += width;
  }
  return {text, size};
}

// The text that a field of this type holds or points to.
std::optional<std::string_view> text_of(const Field& field, std::string_view bytes, Encoding encoding) noexcept {
  const uint64_t array = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_TYPE(field.flags);
  const bool fixed = array == 0 || array == NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE;
  const bool points = (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_POINTER) != 0 || (array == 0 && field.detail == 0);
  constexpr uint64_t kOffsets = NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_BASE | NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_HERE;
  if ((field.flags & kOffsets) != 0 || (!fixed && array != NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_ZERO_TERMINATED)) {
    return std::nullopt;
  }
  const std::size_t units = fixed && field.detail != 0 ? std::min<uint64_t>(field.detail, kLongestText) : kLongestText;
  const std::size_t most = std::min(units * static_cast<std::size_t>(encoding), kLongestText);
  if (!points) {
    return until_zero(bytes.data(), std::min(most, bytes.size()), encoding);
  }
  const char* text = bytes.size() >= sizeof(void*) ? read<const char*>(bytes) : nullptr;
  return text != nullptr ? std::optional(until_zero(text, most, encoding)) : std::nullopt;
}

uint32_t plain_name() noexcept {
  static const uint32_t id = intern("payload");
  return id;
}

}  // namespace

uint32_t PayloadWriter::text_id(std::string_view bytes, uint64_t type) noexcept {
  const Encoding encoding = encoding_of(type).value_or(Encoding::Utf8);
  TextCache* texts = thread_.texts();
  return texts != nullptr ? texts->id_of(bytes, encoding) : intern(bytes, encoding);
}

void PayloadWriter::write(uint32_t name, Argument type, uint64_t value) noexcept {
  if (values_++ < kMostValues) {
    log_.add_argument(type, value, name);
  }
}

void PayloadWriter::write_blob(uint64_t schema_id, const void* data, std::size_t size) noexcept {
  const auto* bytes = static_cast<const char*>(data);
  if (bytes == nullptr || size == 0) {
    return;
  }
  const bool measured = size != SIZE_MAX;
  if (schema_id >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START) {
    if (const Schema* schema = find_schema(domain_, schema_id); schema != nullptr) {
      schema_name_ = schema->name != 0 ? schema->name : schema_name_;
      write_schema(*schema, {bytes, measured ? size : schema->size}, 0);
    }
  } else if (const std::optional<Encoding> encoding = encoding_of(schema_id); encoding.has_value()) {
    write(plain_name(), Argument::Text, text_id(until_zero(bytes, std::min(size, kLongestText), *encoding), schema_id));
  } else if (size == size_of_type(schema_id)) {
    write_field({0, schema_id, 0, 0, plain_name()}, {bytes, size}, 0);
  }
}

void PayloadWriter::write_schema(const Schema& schema, std::string_view bytes, int nesting) noexcept {
  for (const Field& field : schema.fields) {
    if (field.offset < bytes.size()) {
      write_field(field, bytes.substr(field.offset), nesting);
    }
  }
}

// `bytes` begin with the field and go on to the end of the blob.
void PayloadWriter::write_field(const Field& field, std::string_view bytes, int nesting) noexcept {
  const bool hidden = (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_HIDE) != 0;
  const auto write_text = [&](uint32_t id) {
    if ((field.flags & NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE) != 0) {
      message_ = id;
    } else if (!hidden) {
      write(field.name, Argument::Text, id);
    }
  };
  if (const std::optional<Encoding> encoding = encoding_of(field.type); encoding.has_value()) {
    if (const auto text = text_of(field, bytes, *encoding); text.has_value()) {
      write_text(text_id(*text, field.type));
    }
    return;
  }
  const uint64_t array = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_TYPE(field.flags);
  if (field.type == NVTX_PAYLOAD_ENTRY_TYPE_CHAR && array == NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE &&
      (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_POINTER) == 0) {
    const std::size_t most = std::min<uint64_t>({field.detail, bytes.size(), kLongestText});
    write_text(text_id(until_zero(bytes.data(), most, Encoding::Utf8), field.type));
    return;
  }
  if (array != 0 || (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_POINTER) != 0) {
    return;
  }
  const bool registered = field.type >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START;
  const Schema* schema = registered ? find_schema(domain_, field.type) : nullptr;
  if (schema != nullptr && schema->values.empty()) {
    const bool wraps = schema->fields.size() == 1;  // a value in a schema of its own is what the outer field says
    if (nesting < kDeepest && !hidden && wraps && schema->fields[0].offset < bytes.size()) {
      Field inner = schema->fields[0];
      inner.name = field.name;
      write_field(inner, bytes.substr(inner.offset), nesting + 1);
    } else if (nesting < kDeepest && !hidden && !wraps) {
      write_schema(*schema, schema->size != 0 ? bytes.substr(0, schema->size) : bytes, nesting + 1);
    }
    return;
  }
  const uint64_t size = schema != nullptr ? schema->size : size_of_type(field.type);
  if (size == 0 || size > bytes.size()) {
    return;
  }
  const std::string_view own = bytes.substr(0, size);
  if (field.type == NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE) {
    return write_text(registered_text(read<uint64_t>(own)));
  }
  const std::optional<Number> number = number_of(field.type, own);
  if (!number.has_value() || hidden) {
    return;
  }
  if (schema != nullptr) {
    const uint64_t unread = size < sizeof(uint64_t) ? ~uint64_t{0} << (size * 8) : 0;  // of a negative enumerator
    for (const EnumValue& value : schema->values) {
      if ((value.value & ~unread) == number->bits) {
        return write(field.name, Argument::Text, value.name);
      }
    }
  }
  write(field.name, number->type, number->bits);
}

}  // namespace gpuscope::nvtx
