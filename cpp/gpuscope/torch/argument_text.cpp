// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/torch/argument_text.h"

namespace gpuscope::torch {
namespace {

constexpr uint64_t kMostDimensions = 64;  // torch's own limit

template <class T>
T load(const char* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

/// A c10::ScalarType, by the name that torch's profiler gives it.
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

}  // namespace

const char* ArgumentText::tensor(Values values, std::size_t index) const noexcept {
  const char* value = values.first + index * kValueBytes;
  if (load<uint32_t>(value + sizeof(uint64_t)) != layout_.tensor_tag) {
    return nullptr;
  }
  const char* tensor = load<const char*>(value);
  return tensor != undefined_ ? tensor : nullptr;
}

void ArgumentText::put_sizes(ShortText& text, const char* tensor) const noexcept {
  text.put("[");
  const auto dimensions = tensor != nullptr ? load<uint64_t>(tensor + layout_.sizes) : 0;
  if (dimensions != 0 && dimensions <= kMostDimensions) {
    const char* sizes = tensor + layout_.sizes + sizeof(uint64_t);
    sizes = dimensions > kInlineDimensions ? load<const char*>(sizes) : sizes;
    for (uint64_t index = 0; index < dimensions; ++index) {
      text.put(index != 0 ? ", " : "");
      text.put(load<int64_t>(sizes + index * sizeof(int64_t)));
    }
  }
  text.put("]");
}

void ArgumentText::put_shapes(ShortText& text, Values values) const noexcept {
  text.put("[");
  for (std::size_t index = 0; index < values.count; ++index) {
    text.put(index != 0 ? ", " : "");
    put_sizes(text, tensor(values, index));
  }
  text.put("]");
}

void ArgumentText::put_types(ShortText& text, Values values) const noexcept {
  text.put("[");
  for (std::size_t index = 0; index < values.count; ++index) {
    const char* argument = tensor(values, index);
    text.put(index != 0 ? ", '" : "'");
    text.put(argument != nullptr ? type_name(load<uint16_t>(argument + layout_.dtype)) : "");
    text.put("'");
  }
  text.put("]");
}

}  // namespace gpuscope::torch
