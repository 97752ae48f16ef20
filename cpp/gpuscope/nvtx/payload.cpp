// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvtx/payload.h"

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace gpuscope::nvtx {
namespace {

using base::Argument;

constexpr uint64_t kRangeId = 67;  // NVTX_PAYLOAD_ENTRY_TYPE_RANGE_ID, missing in the headers of CUDA 13.0

constinit PublishedMap<2048> schemas;  // of pointers
std::atomic<uint64_t> next_id{NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START};

uint64_t key_of(Domain domain, uint64_t id) noexcept { return base::mix(id ^ (uint64_t{domain} << 44)) | 1; }

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

/// A predefined type: its size, 0 if variable, and the kind of its numbers. No kind for types that are not numbers of
/// up to 64 bits.
struct Type {
  uint64_t id = 0;
  uint64_t bytes = 0;
  std::optional<Argument> number = std::nullopt;
};

constexpr Type kTypeList[] = {
    {NVTX_PAYLOAD_ENTRY_TYPE_CHAR, 1, Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_UCHAR, 1, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_SHORT, 2, Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_USHORT, 2, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_INT, 4, Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_UINT, 4, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_LONG, sizeof(long), Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_ULONG, sizeof(long), Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_LONGLONG, 8, Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_ULONGLONG, 8, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_INT8, 1, Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_UINT8, 1, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_INT16, 2, Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_UINT16, 2, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_INT32, 4, Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_UINT32, 4, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_INT64, 8, Argument::Signed},
    {NVTX_PAYLOAD_ENTRY_TYPE_UINT64, 8, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_INT128, 16},
    {NVTX_PAYLOAD_ENTRY_TYPE_UINT128, 16},
    {NVTX_PAYLOAD_ENTRY_TYPE_FLOAT, 4, Argument::Float},
    {NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE, 8, Argument::Float},
    {NVTX_PAYLOAD_ENTRY_TYPE_LONGDOUBLE, sizeof(long double), Argument::Float},
    {NVTX_PAYLOAD_ENTRY_TYPE_FLOAT16, 2},
    {NVTX_PAYLOAD_ENTRY_TYPE_FLOAT32, 4, Argument::Float},
    {NVTX_PAYLOAD_ENTRY_TYPE_FLOAT64, 8, Argument::Float},
    {NVTX_PAYLOAD_ENTRY_TYPE_FLOAT128, 16},
    {NVTX_PAYLOAD_ENTRY_TYPE_BF16, 2},
    {NVTX_PAYLOAD_ENTRY_TYPE_TF32, 4, Argument::Float},
    {NVTX_PAYLOAD_ENTRY_TYPE_SIZE, 8, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_ADDRESS, 8, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_WCHAR, 4, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_CHAR8, 1, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_CHAR16, 2, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_CHAR32, 4, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, 1},
    {NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8, 1},
    {NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF16, 2},
    {NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF32, 4},
    {NVTX_PAYLOAD_ENTRY_TYPE_BYTE, 1, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_CATEGORY, 4, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_COLOR_ARGB, 4, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_PID_UINT32, 4, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_PID_UINT64, 8, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT32, 4, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT64, 8, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_SCOPE_ID, 8, Argument::Unsigned},
    {NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE, 8, Argument::Unsigned},
    {kRangeId, 8, Argument::Unsigned},
};

constexpr auto kTypes = [] {  // by id
  std::array<Type, NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE + 1> types{};
  for (const Type& type : kTypeList) {
    types[type.id] = type;
  }
  return types;
}();

uint64_t size_of_type(uint64_t id) noexcept { return id < kTypes.size() ? kTypes[id].bytes : 0; }

/// Null for unregistered ids.
const Schema* find_schema(Domain domain, uint64_t id) noexcept {
  const auto* schema = reinterpret_cast<const Schema*>(schemas.find(key_of(domain, id)));
  return schema != nullptr && schema->domain == domain && schema->id == id ? schema : nullptr;
}

struct Extent {
  uint64_t size;
  uint64_t align;
};

// {0, 0} if it depends on the data.
Extent extent_of(const Schema& schema, const Field& field) noexcept {
  constexpr Extent kPointer = {sizeof(void*), alignof(void*)};
  const uint64_t array = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_TYPE(field.flags);
  if ((field.flags & NVTX_PAYLOAD_ENTRY_FLAG_POINTER) != 0) {
    return kPointer;
  }
  if (encoding_of(field.type).has_value() && array == 0 && field.detail == 0) {
    return kPointer;
  }
  Extent one = {size_of_type(field.type), size_of_type(field.type)};
  if (one.size == 0) {
    const Schema* inner = find_schema(schema.domain, field.type);
    one = inner != nullptr ? Extent{inner->size, inner->align} : Extent{0, 0};
  }
  if (array != 0 && array != NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE) {
    return {0, 0};
  }
  const uint64_t count = array != 0 || encoding_of(field.type).has_value() ? field.detail : 1;
  constexpr uint64_t kMaxCount = uint64_t{1} << 32;
  return one.size == 0 || count == 0 || count > kMaxCount ? Extent{0, 0} : Extent{one.size * count, one.align};
}

constexpr std::size_t kMaxBlobs = 16;
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

int64_t read_signed(std::string_view bytes) noexcept {
  const auto unused = static_cast<int>(sizeof(int64_t) - bytes.size()) * 8;
  return static_cast<int64_t>(read<uint64_t>(bytes) << unused) >> unused;
}

double read_float(std::string_view bytes) noexcept {
  return bytes.size() == sizeof(float)    ? read<float>(bytes)
         : bytes.size() == sizeof(double) ? read<double>(bytes)
                                          : static_cast<double>(read<long double>(bytes));
}

// `bytes` has the size of the type. Enumerations are not predefined types, and are unsigned. None for types that are no
// numbers.
std::optional<Number> number_of(uint64_t id, std::string_view bytes) noexcept {
  const std::optional<Argument> number = id < kTypes.size() ? kTypes[id].number : Argument::Unsigned;
  if (!number.has_value()) {
    return std::nullopt;
  }
  if (number == Argument::Float) {
    return Number{Argument::Float, std::bit_cast<uint64_t>(read_float(bytes))};
  }
  if (bytes.empty() || bytes.size() > sizeof(uint64_t)) {
    return std::nullopt;
  }
  return Number{*number,
                number == Argument::Signed ? static_cast<uint64_t>(read_signed(bytes)) : read<uint64_t>(bytes)};
}

bool is_zero(const char* unit, std::size_t width) noexcept {
  return std::all_of(unit, unit + width, [](char byte) { return byte == 0; });
}

// The characters before the first zero, in at most `most` bytes.
std::string_view until_zero(const char* text, std::size_t most, Encoding encoding) noexcept {
  const auto width = static_cast<std::size_t>(encoding);
  std::size_t size = 0;
  while (size + width <= most && !is_zero(text + size, width)) {
    size += width;
  }
  return {text, size};
}

// The text contained in, or pointed to by, a field of this type.
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

void write_category(PayloadWriter& writer, Domain domain, uint32_t category) noexcept {
  static const uint32_t key = intern("category");
  if (const uint32_t name = category_name(domain, category); name != 0) {
    writer.write(key, Argument::Text, name);
  } else if (category != 0) {
    writer.write(key, Argument::Unsigned, category);
  }
}

void write_payload(PayloadWriter& writer, const nvtxEventAttributes_t& attributes) noexcept {
  static const uint32_t key = intern("payload");
  const auto write_signed = [&](int64_t value) { writer.write(key, Argument::Signed, static_cast<uint64_t>(value)); };
  const auto write_float = [&](double value) { writer.write(key, Argument::Float, std::bit_cast<uint64_t>(value)); };
  switch (attributes.payloadType) {
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT64:
      return writer.write(key, Argument::Unsigned, attributes.payload.ullValue);
    case NVTX_PAYLOAD_TYPE_INT64:
      return write_signed(attributes.payload.llValue);
    case NVTX_PAYLOAD_TYPE_DOUBLE:
      return write_float(attributes.payload.dValue);
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT32:
      return writer.write(key, Argument::Unsigned, attributes.payload.uiValue);
    case NVTX_PAYLOAD_TYPE_INT32:
      return write_signed(attributes.payload.iValue);
    case NVTX_PAYLOAD_TYPE_FLOAT:
      return write_float(attributes.payload.fValue);
    case NVTX_PAYLOAD_TYPE_EXT:
      return writer.write_blobs(
          reinterpret_cast<const nvtxPayloadData_t*>(static_cast<uintptr_t>(attributes.payload.ullValue)),
          static_cast<std::size_t>(std::max(attributes.reserved0, 0)));
    default:
      return;
  }
}

}  // namespace

void lay_out(Schema& schema, uint64_t pack_align) noexcept {
  uint64_t end = 0;  // kNoOffset once it depends on the data
  schema.align = 1;
  for (std::size_t index = 0; index < schema.fields.size(); ++index) {
    Field& field = schema.fields[index];
    Extent extent = extent_of(schema, field);
    extent.align = pack_align != 0 ? std::min(extent.align, pack_align) : extent.align;
    if (index != 0 && field.offset == 0) {
      const bool known = end != kNoOffset && extent.size != 0;
      field.offset = known ? (end + extent.align - 1) / extent.align * extent.align : kNoOffset;
    }
    end = field.offset == kNoOffset || extent.size == 0 ? kNoOffset : field.offset + extent.size;
    schema.align = std::max(schema.align, extent.align);
  }
  if (schema.size == 0 && end != kNoOffset) {
    schema.size = (end + schema.align - 1) / schema.align * schema.align;
  }
}

uint64_t register_schema(Schema schema) noexcept {
  if (schema.id == 0) {
    schema.id = next_id.fetch_add(1, std::memory_order_relaxed);
  }
  const uint64_t id = schema.id;
  const uint64_t key = key_of(schema.domain, id);
  try {
    auto kept = std::make_unique<Schema>(std::move(schema));
    if (!schemas.set(key, reinterpret_cast<uintptr_t>(kept.get()))) {
      return 0;
    }
    (void)kept.release();  // leaked: any thread may be reading it
    return id;
  } catch (...) {
    return 0;
  }
}

void PayloadWriter::write(uint32_t name, Argument type, uint64_t value) noexcept {
  if (values_++ < kMaxValues) {
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
    write(plain_name(), Argument::Text,
          thread_.text_id(until_zero(bytes, std::min(size, kLongestText), *encoding), *encoding));
  } else if (size == size_of_type(schema_id)) {
    write_field({0, schema_id, 0, 0, plain_name()}, {bytes, size}, 0);
  }
}

void PayloadWriter::write_blobs(const nvtxPayloadData_t* blobs, std::size_t count) noexcept {
  for (std::size_t index = 0; blobs != nullptr && index < std::min(count, kMaxBlobs); ++index) {
    write_blob(blobs[index].schemaId, blobs[index].payload, blobs[index].size);
  }
}

void PayloadWriter::write_schema(const Schema& schema, std::string_view bytes, int nesting) noexcept {
  for (const Field& field : schema.fields) {
    if (field.offset < bytes.size()) {
      write_field(field, bytes.substr(field.offset), nesting);
    }
  }
}

// `bytes` begins with the field and extends to the end of the blob.
void PayloadWriter::write_field(const Field& field, std::string_view bytes, int nesting) noexcept {
  if (++fields_ > kMaxFields) {
    return;
  }
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
      write_text(thread_.text_id(*text, *encoding));
    }
    return;
  }
  const uint64_t array = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_TYPE(field.flags);
  if (field.type == NVTX_PAYLOAD_ENTRY_TYPE_CHAR && array == NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE &&
      (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_POINTER) == 0) {
    const std::size_t most = std::min<uint64_t>({field.detail, bytes.size(), kLongestText});
    write_text(thread_.text_id(until_zero(bytes.data(), most, Encoding::Utf8), Encoding::Utf8));
    return;
  }
  if (array != 0 || (field.flags & NVTX_PAYLOAD_ENTRY_FLAG_POINTER) != 0) {
    return;
  }
  const bool registered = field.type >= NVTX_PAYLOAD_SCHEMA_ID_STATIC_START;
  const Schema* schema = registered ? find_schema(domain_, field.type) : nullptr;
  if (schema != nullptr && schema->values.empty()) {
    const bool wraps = schema->fields.size() == 1;  // a value wrapped in a schema has the name of the outer field
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

uint32_t describe(ThreadRanges& thread, base::EventLog& log, Domain domain,
                  const nvtxEventAttributes_v2* attributes) noexcept {
  if (attributes == nullptr || attributes->size < sizeof(nvtxEventAttributes_t)) {
    return no_name();
  }
  PayloadWriter writer(thread, log, domain);
  if (attributes->category != 0) {
    write_category(writer, domain, attributes->category);
  }
  if (attributes->payloadType != NVTX_PAYLOAD_UNKNOWN) {
    write_payload(writer, *attributes);
    if (writer.has_message()) {
      return writer.message();
    }
  }
  switch (attributes->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
      return text_id(thread, attributes->message.ascii);
    case NVTX_MESSAGE_TYPE_UNICODE:
      return text_id(thread, attributes->message.unicode);
    case NVTX_MESSAGE_TYPE_REGISTERED:
      return registered_text(reinterpret_cast<uintptr_t>(attributes->message.registered));
    default:
      return writer.message() != 0 ? writer.message() : no_name();
  }
}

}  // namespace gpuscope::nvtx
