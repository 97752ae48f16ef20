// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/torch/layout.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>

namespace gpuscope::torch {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);
constexpr uint64_t kMaxValues = 8;
constexpr std::size_t kTensorWords = 48;
constexpr uint8_t kFunctionScope = 0;
constexpr uint64_t kNoSequence = ~uint64_t{0};

/// Reads memory that may not be there.
bool read(uint64_t address, void* into, std::size_t bytes) {
  iovec local{into, bytes};
  iovec remote{std::bit_cast<void*>(address), bytes};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

std::vector<uint64_t> read_words(uint64_t address, std::size_t count) {
  std::vector<uint64_t> words(count);
  const bool good = address % kWordBytes == 0 && address != 0 && read(address, words.data(), count * kWordBytes);
  return good ? words : std::vector<uint64_t>{};
}

const Observation* find(const std::vector<Observation>& seen, const std::string& name, bool is_end) {
  const auto found = std::ranges::find_if(
      seen, [&](const Observation& observation) { return observation.name == name && observation.is_end == is_end; });
  return found != seen.end() ? &*found : nullptr;
}

/// The one place of `count` at which `fits` holds; none when there are several.
std::size_t only(std::size_t count, std::size_t bytes, const std::function<bool(std::size_t)>& fits) {
  std::size_t place = Layout::kUnknown;
  for (std::size_t index = 0; index < count; ++index) {
    if (fits(index)) {
      if (place != Layout::kUnknown) {
        return Layout::kUnknown;
      }
      place = index * bytes;
    }
  }
  return place;
}

/// Whether values at a word are these tensors; `tag` is theirs, once known.
bool are_tensors(const std::vector<Observation::Values>& values, std::size_t word,
                 const std::vector<uint64_t>& addresses, std::optional<uint32_t>& tag) {
  for (const Observation::Values& candidate : values) {
    if (candidate.word != word || candidate.words.size() != 2 * addresses.size()) {
      continue;
    }
    bool good = true;
    for (std::size_t index = 0; index < addresses.size(); ++index) {
      const auto its_tag = static_cast<uint32_t>(candidate.words[2 * index + 1]);
      good = good && candidate.words[2 * index] == addresses[index] && tag.value_or(its_tag) == its_tag;
      tag = good ? its_tag : tag;
    }
    if (good) {
      return true;
    }
  }
  return false;
}

void infer_tensors(const std::vector<KnownTensor>& tensors, Layout& layout) {
  std::vector<std::vector<uint64_t>> words;
  for (const KnownTensor& tensor : tensors) {
    words.push_back(read_words(tensor.address, kTensorWords));
    if (words.back().empty()) {
      return;
    }
  }
  layout.sizes = only(kTensorWords - kInlineDimensions - 1, kWordBytes, [&](std::size_t word) {
    for (std::size_t index = 0; index < tensors.size(); ++index) {
      const std::vector<int64_t>& sizes = tensors[index].sizes;
      const uint64_t* first = words[index].data() + word;
      std::vector<uint64_t> found(first + 1, first + 1 + kInlineDimensions);
      if (*first == sizes.size() && sizes.size() > kInlineDimensions) {
        found = read_words(found[0], sizes.size());
      }
      if (*first != sizes.size() || found.size() < sizes.size() ||
          std::memcmp(found.data(), sizes.data(), sizes.size() * kWordBytes) != 0) {
        return false;
      }
    }
    return true;
  });
  layout.dtype = only(kTensorWords * 4, sizeof(uint16_t), [&](std::size_t place) {
    for (std::size_t index = 0; index < tensors.size(); ++index) {
      uint16_t value = 0;
      std::memcpy(&value, reinterpret_cast<const char*>(words[index].data()) + place * sizeof(value), sizeof(value));
      if (value != tensors[index].dtype) {
        return false;
      }
    }
    return true;
  });
}

/// Numbers are given in the order in which operators and ranges begin.
std::size_t infer_number(const std::vector<Observation>& seen) {
  return only(Observation::kWords, kWordBytes, [&](std::size_t word) {
    uint64_t last = 0;
    return std::ranges::all_of(seen, [&](const Observation& observation) {
      const uint64_t number = observation.words[word];
      const bool fits = observation.is_end ? number != 0 && number <= last : number > last && number <= UINT32_MAX;
      last = std::max(last, observation.is_end ? 0 : number);
      return fits;
    });
  });
}

constexpr uint64_t kMaxDimensions = 64;  // torch's own limit

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

Observation observe(const void* function, const char* name, uint64_t sequence, bool is_end) {
  Observation observation;
  observation.name = name;
  observation.sequence = sequence;
  observation.is_end = is_end;
  std::memcpy(observation.words.data(), function, sizeof(observation.words));
  for (std::size_t word = 0; word + 1 < Observation::kWords; ++word) {
    const uint64_t first = observation.words[word];
    const uint64_t second = observation.words[word + 1];
    if (second >= 1 && second <= kMaxValues) {
      if (std::vector<uint64_t> values = read_words(first, 2 * second); !values.empty()) {
        observation.counted.push_back({word, std::move(values)});
      }
    }
    if (second > first && second - first <= kMaxValues * kValueBytes && (second - first) % kValueBytes == 0) {
      if (std::vector<uint64_t> values = read_words(first, (second - first) / kWordBytes); !values.empty()) {
        observation.delimited.push_back({word, std::move(values)});
      }
    }
  }
  return observation;
}

std::string infer_layout(const std::vector<Observation>& seen, const std::vector<KnownTensor>& tensors,
                         const std::vector<KnownCall>& calls, const std::string& user_name, Layout& layout) {
  layout = {};
  struct Call {
    const Observation* start;
    const Observation* end;
    std::vector<uint64_t> arguments;
    const KnownCall* known;
  };
  std::vector<Call> found;
  for (const KnownCall& call : calls) {
    found.push_back({find(seen, call.name, false), find(seen, call.name, true), {}, &call});
    if (found.back().start == nullptr || found.back().end == nullptr) {
      return "no callback came for " + call.name;
    }
    for (const std::size_t tensor : call.tensors) {
      found.back().arguments.push_back(tensors[tensor].address);
    }
  }
  const auto everywhere = [&](const std::function<bool(const Call&)>& holds) {
    return std::ranges::all_of(found, holds);
  };

  std::optional<uint32_t> tag;
  layout.sequence = only(Observation::kWords, kWordBytes, [&](std::size_t word) {
    return everywhere([&](const Call& call) {
      return call.start->words[word] == (call.known->numbered ? call.start->sequence : kNoSequence);
    });
  });
  layout.inputs = only(Observation::kWords, kWordBytes, [&](std::size_t word) {
    return everywhere([&](const Call& call) { return are_tensors(call.start->counted, word, call.arguments, tag); });
  });
  layout.outputs = only(Observation::kWords, kWordBytes, [&](std::size_t word) {
    return everywhere([&](const Call& call) {
      return are_tensors(call.end->delimited, word, {tensors[call.known->result].address}, tag);
    });
  });
  layout.tensor_tag = tag.value_or(0);
  if (const Observation* user = find(seen, user_name, false); user != nullptr) {
    const auto byte = [](const Observation& observation, std::size_t place) {
      return reinterpret_cast<const uint8_t*>(observation.words.data())[place];
    };
    // What follows the number is uninitialized in part.
    const std::size_t bytes = layout.sequence != Layout::kUnknown ? layout.sequence : sizeof(Observation::words);
    layout.scope = only(bytes, 1, [&](std::size_t place) {
      return byte(*user, place) == kUserScope &&
             everywhere([&](const Call& call) { return byte(*call.start, place) == kFunctionScope; });
    });
  }
  layout.number = infer_number(seen);
  infer_tensors(tensors, layout);
  return layout.sequence == Layout::kUnknown ? "autograd's numbers were not found" : "";
}

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
  if (dimensions != 0 && dimensions <= kMaxDimensions) {
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
