// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/torch/argument_text.h"

#include <algorithm>

namespace gpuscope::torch {
namespace {

constexpr uint64_t kMaxDimensions = 64;  // torch's own limit
constexpr uint64_t kMaxNumbers = 30;     // of a list, likewise

/// The name of a c10::ScalarType, as in torch's profiler.
constexpr std::string_view type_name(uint16_t type) noexcept {
  constexpr std::array<std::string_view, 16> kNames = {"unsigned char",
                                                       "signed char",
                                                       "short int",
                                                       "int",
                                                       "long int",
                                                       "c10::Half",
                                                       "float",
                                                       "double",
                                                       "c10::complex<c10::Half>",
                                                       "c10::complex<float>",
                                                       "c10::complex<double>",
                                                       "bool",
                                                       "c10::qint8",
                                                       "c10::quint8",
                                                       "c10::qint32",
                                                       "c10::BFloat16"};
  constexpr std::array<std::string_view, 4> kFloat8 = {"c10::Float8_e5m2", "c10::Float8_e4m3fn", "c10::Float8_e5m2fnuz",
                                                       "c10::Float8_e4m3fnuz"};
  constexpr uint16_t kFirstFloat8 = 23;
  return type < kNames.size()                                           ? kNames[type]
         : type >= kFirstFloat8 && type < kFirstFloat8 + kFloat8.size() ? kFloat8[type - kFirstFloat8]
                                                                        : "";
}

// The lowest byte of a key's words, next to ArgumentText::Kind. A type and a count follow.
constexpr uint64_t kTensorWord = 0x10;
constexpr uint64_t kTensorsWord = 0x11;  // a list of tensors, or an operator's arguments
constexpr uint64_t kNumbersWord = 0x12;  // likewise
constexpr uint64_t kNoneWord = 0x13;     // instead of a tensor
constexpr unsigned kTypeShift = 8;
constexpr unsigned kCountShift = 32;

}  // namespace

void ShortText::put_quoted(std::string_view text) noexcept {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr uint8_t kFirstPrintable = 0x20;
  put("\"");
  for (const char& letter : text) {
    const auto byte = static_cast<uint8_t>(letter);
    if (byte < kFirstPrintable) {
      put("\\u00");
      put(kHex.substr(byte >> 4, 1));
      put(kHex.substr(byte & 0xF, 1));
    } else {
      put(letter == '"' || letter == '\\' ? "\\" : "");
      put({&letter, 1});
    }
  }
  put("\"");
}

const char* ArgumentText::tensor(const char* value) const noexcept {
  const char* tensor = tag(value) == layout_.tensor_tag ? load<const char*>(value) : nullptr;
  return tensor != undefined_ ? tensor : nullptr;
}

bool ArgumentText::holds_tensors(const char* list) const noexcept {
  return load<uint64_t>(load<const char*>(list) + layout_.list + kListTypeWord * sizeof(uint64_t)) ==
         layout_.tensor_type;
}

Values ArgumentText::elements(const char* list) const noexcept {
  const char* object = load<const char*>(list) + layout_.list;
  const auto* first = load<const char*>(object);
  return {first, static_cast<std::size_t>(load<const char*>(object + sizeof(uint64_t)) - first) / kValueBytes};
}

ArgumentText::Kind ArgumentText::kind(const char* value) const noexcept {
  if (layout_.list == Layout::kUnknown) {
    return Kind::Other;
  }
  const uint32_t its = tag(value);
  if (its == layout_.list_tag) {
    if (holds_tensors(value)) {
      return Kind::Other;
    }
    const Values values = elements(value);
    if (values.count == 0 || (values.count <= kMaxNumbers && is_scalar(kind(values.first)))) {
      return Kind::Numbers;
    }
    std::size_t texts = 0;
    while (texts < values.count && kind(values.first + texts * kValueBytes) == Kind::Text) {
      ++texts;
    }
    return texts == values.count ? Kind::Texts : Kind::Other;
  }
  return its == layout_.int_tag                                              ? Kind::Int
         : its == layout_.double_tag                                         ? Kind::Double
         : its == layout_.bool_tag                                           ? Kind::Bool
         : its == layout_.text_tag && layout_.text != Layout::kUnknown       ? Kind::Text
         : its == layout_.none_tag                                           ? Kind::None
         : its == layout_.complex_tag && layout_.complex != Layout::kUnknown ? Kind::Complex
                                                                             : Kind::Other;
}

std::string_view ArgumentText::text(const char* value) const noexcept {
  return load_text(load<const char*>(value) + layout_.text);
}

void ArgumentText::put_numbers(ShortText& text, const char* first, uint64_t count) const noexcept {
  text.put("[");
  for (uint64_t index = 0; index < count; ++index) {
    text.put(index != 0 ? ", " : "");
    text.put(load<int64_t>(first + index * sizeof(int64_t)));
  }
  text.put("]");
}

uint64_t ArgumentText::dimensions(const char* tensor) const noexcept {
  const auto dimensions = tensor != nullptr ? load<uint64_t>(tensor + layout_.sizes) : 0;
  return dimensions <= kMaxDimensions ? dimensions : 0;
}

const char* ArgumentText::sizes(const char* tensor, uint64_t dimensions) const noexcept {
  const char* sizes = tensor + layout_.sizes + sizeof(uint64_t);
  return dimensions > kInlineDimensions ? load<const char*>(sizes) : sizes;
}

const char* ArgumentText::strides(const char* tensor, uint64_t dimensions) const noexcept {
  return sizes(tensor, dimensions) + std::max(dimensions, kInlineDimensions) * sizeof(int64_t);
}

void ArgumentText::put_sizes_of(ShortText& text, const char* tensor) const noexcept {
  const uint64_t count = dimensions(tensor);
  put_numbers(text, sizes(tensor, count), count);
}

void ArgumentText::put_strides_of(ShortText& text, const char* tensor) const noexcept {
  const uint64_t count = dimensions(tensor);
  put_numbers(text, strides(tensor, count), count);
}

template <ArgumentText::PutTensor kPut>
void ArgumentText::put_list(ShortText& text, Values values) const noexcept {
  text.put("[");
  for (std::size_t index = 0; index < values.count && !text.full(); ++index) {
    text.put(index != 0 ? ", " : "");
    (this->*kPut)(text, tensor(values.first + index * kValueBytes));
  }
  text.put("]");
}

template <ArgumentText::PutTensor kPut>
void ArgumentText::put_lists(ShortText& text, Values values) const noexcept {
  text.put("[");
  for (std::size_t index = 0; index < values.count; ++index) {
    const char* value = values.first + index * kValueBytes;
    text.put(index != 0 ? ", " : "");
    if (is_list(value) && holds_tensors(value)) {
      const std::size_t before = text.size();
      const bool was_full = text.full();
      put_list<kPut>(text, elements(value));
      if (text.full() && !was_full) {  // long lists are omitted, other arguments stay
        text.cut(before);
        text.put("[]");
      }
    } else {
      (this->*kPut)(text, tensor(value));
    }
  }
  text.put("]");
}

template void ArgumentText::put_lists<&ArgumentText::put_sizes_of>(ShortText&, Values) const noexcept;
template void ArgumentText::put_lists<&ArgumentText::put_strides_of>(ShortText&, Values) const noexcept;

void ArgumentText::put_types(ShortText& text, Values values) const noexcept {
  text.put("[");
  for (std::size_t index = 0; index < values.count; ++index) {
    const char* value = values.first + index * kValueBytes;
    const char* argument = tensor(value);
    const Kind its = kind(value);
    text.put(index != 0 ? ", '" : "'");
    text.put(argument != nullptr                      ? type_name(load<uint16_t>(argument + layout_.dtype))
             : is_list(value) && holds_tensors(value) ? "TensorList"
             : its == Kind::Numbers                   ? "ScalarList"
             : is_scalar(its)                         ? "Scalar"
                                                      : "");
    text.put("'");
  }
  text.put("]");
}

void ArgumentText::put_concrete(ShortText& text, Values values) const noexcept {
  text.put("[");
  for (std::size_t index = 0; index < values.count; ++index) {
    text.put(index != 0 ? ", '" : "'");
    put_concrete(text, values.first + index * kValueBytes);
    text.put("'");
  }
  text.put("]");
}

void ArgumentText::put_concrete(ShortText& text, const char* value) const noexcept {
  switch (kind(value)) {
    case Kind::Int:
      return text.put(load<int64_t>(value));
    case Kind::Double:
      return text.put(load<double>(value));
    case Kind::Bool:
      return text.put(load<uint8_t>(value) != 0 ? "True" : "False");
    case Kind::Numbers: {
      const Values values = elements(value);
      text.put("[");
      for (std::size_t index = 0; index < values.count; ++index) {
        text.put(index != 0 ? ", " : "");
        put_concrete(text, values.first + index * kValueBytes);
      }
      return text.put("]");
    }
    default:
      return;
  }
}

void ArgumentText::put_texts(ShortText& text, const char* value) const noexcept {
  const Values values = elements(value);
  text.put("[");
  for (std::size_t index = 0; index < values.count; ++index) {
    text.put(index != 0 ? ", " : "");
    text.put_quoted(this->text(values.first + index * kValueBytes));
  }
  text.put("]");
}

void ArgumentText::put_complex(ShortText& text, const char* value) const noexcept {
  const char* parts = load<const char*>(value) + layout_.complex;
  text.put(load<double>(parts));
  text.put(" ");
  text.put(load<double>(parts + sizeof(double)));
}

void ArgumentText::put_tensor(base::Digest& key, const char* tensor) const noexcept {
  const uint64_t count = dimensions(tensor);
  const uint64_t type = layout_.dtype != Layout::kUnknown ? load<uint16_t>(tensor + layout_.dtype) : 0;
  key.put(kTensorWord | type << kTypeShift | count << kCountShift);
  key.put(sizes(tensor, count), count);
  if (layout_.strides) {
    key.put(strides(tensor, count), count);
  }
}

void ArgumentText::put_tensors(base::Digest& key, Values values) const noexcept {
  key.put(kTensorsWord | values.count << kCountShift);
  for (std::size_t index = 0; index < values.count; ++index) {
    const char* value = values.first + index * kValueBytes;
    if (const char* single = tensor(value); single != nullptr) {
      put_tensor(key, single);
    } else if (is_list(value) && holds_tensors(value)) {
      const Values list = elements(value);
      key.put(kTensorsWord | list.count << kCountShift);
      for (std::size_t element = 0; element < list.count; ++element) {
        const char* its = tensor(list.first + element * kValueBytes);
        its != nullptr ? put_tensor(key, its) : key.put(kNoneWord);
      }
    } else {
      key.put(static_cast<uint64_t>(kind(value)));
    }
  }
}

void ArgumentText::put_numbers(base::Digest& key, Values values) const noexcept {
  key.put(kNumbersWord | values.count << kCountShift);
  for (std::size_t index = 0; index < values.count; ++index) {
    const char* value = values.first + index * kValueBytes;
    const Kind its = kind(value);
    if (its == Kind::Numbers) {
      put_numbers(key, elements(value));
      continue;
    }
    key.put(static_cast<uint64_t>(its));
    if (is_scalar(its)) {
      key.put(its == Kind::Bool ? load<uint8_t>(value) : load<uint64_t>(value));
    }
  }
}

}  // namespace gpuscope::torch
