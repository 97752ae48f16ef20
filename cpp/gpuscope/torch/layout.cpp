// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/torch/layout.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>

namespace gpuscope::torch {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);
constexpr uint64_t kMaxValues = 8;
constexpr std::size_t kTensorWords = 48;
constexpr std::size_t kListWords = 12;
constexpr uint8_t kFunctionScope = 0;
constexpr uint64_t kNoSequence = ~uint64_t{0};

/// Reads memory that may be unmapped or beyond the end of an object. The kernel copies it, so it cannot fault, and
/// sanitizers report no error.
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

/// The only place below `count` for which `fits` is true. kUnknown if there are several.
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

/// Whether the values at a word are these tensors. `tag`: the tensor tag, once known.
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
  layout.strides = layout.sizes != Layout::kUnknown;
  for (std::size_t index = 0; index < tensors.size() && layout.strides; ++index) {
    const std::vector<int64_t>& strides = tensors[index].strides;
    const uint64_t* first = words[index].data() + layout.sizes / kWordBytes + 1;
    const bool is_far = strides.size() > kInlineDimensions;
    const std::vector<uint64_t> far = is_far ? read_words(*first, 2 * strides.size()) : std::vector<uint64_t>{};
    const uint64_t* found = is_far ? far.data() + far.size() / 2 : first + kInlineDimensions;
    layout.strides = strides.size() == tensors[index].sizes.size() && far.empty() != is_far &&
                     std::memcmp(found, strides.data(), strides.size() * kWordBytes) == 0;
  }
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

/// Numbers increase in the order in which operators and ranges begin.
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

/// The map of an operator without keyword arguments: its single bucket is inside the map.
std::size_t infer_keywords(const std::vector<Observation>& seen) {
  constexpr std::size_t kWordsOfMap = HashMap::kOnlyBucket / kWordBytes;
  constexpr uint64_t kLoadFactor = std::bit_cast<uint32_t>(1.0F);
  return only(Observation::kWords - kWordsOfMap, kWordBytes, [&](std::size_t word) {
    return std::ranges::all_of(seen, [&](const Observation& observation) {
      const uint64_t* map = observation.words.data() + word;
      return map[0] == observation.address + word * kWordBytes + HashMap::kOnlyBucket && map[1] == 1 &&
             map[HashMap::kFirst / kWordBytes] == 0 && map[HashMap::kSize / kWordBytes] == 0 &&
             static_cast<uint32_t>(map[HashMap::kSize / kWordBytes + 1]) == kLoadFactor;
    });
  });
}

/// The offset of a std::string with that text in an object. kUnknown if there are several.
std::size_t find_text(const std::vector<uint64_t>& object, const std::string& text) {
  return only(object.empty() ? 0 : object.size() - 1, kWordBytes, [&](std::size_t word) {
    std::string found(text.size(), '\0');
    return object[word + 1] == text.size() && read(object[word], found.data(), found.size()) && found == text;
  });
}

/// Reads memory to which the values may point, while the operator runs.
void remember_lists(const std::vector<uint64_t>& values, Observation& observation) {
  for (std::size_t index = 0; index < values.size(); index += 2) {
    const std::vector<uint64_t> object = read_words(values[index], kListWords);
    for (std::size_t word = 0; word + 1 < object.size(); ++word) {
      const uint64_t bytes = object[word + 1] - object[word];
      if (bytes != 0 && bytes <= kMaxValues * kValueBytes && bytes % kValueBytes == 0) {
        observation.memory[object[word]] = read_words(object[word], bytes / kWordBytes);
      }
    }
    observation.memory[values[index]] = object;
    if (const std::size_t text = find_text(object, observation.name); text != Layout::kUnknown) {
      observation.texts[values[index]] = text;
    }
  }
}

/// The observed arguments of an operator. Null if the arguments differ.
const std::vector<uint64_t>* find_arguments(const Observation* seen, std::size_t inputs, std::size_t count) {
  if (seen != nullptr) {
    for (const Observation::Values& values : seen->counted) {
      if (values.word * kWordBytes == inputs && values.words.size() == 2 * count) {
        return &values.words;
      }
    }
  }
  return nullptr;
}

void infer_rare_values(const std::vector<Observation>& seen, const std::vector<KnownArguments>& calls, Layout& layout) {
  for (const KnownArguments& call : calls) {
    const Observation* start = find(seen, call.name, false);
    const std::vector<uint64_t>* words = find_arguments(start, layout.inputs, call.values.size());
    for (std::size_t index = 0; words != nullptr && index < call.values.size(); ++index) {
      const KnownValue& known = call.values[index];
      const uint64_t payload = (*words)[2 * index];
      const auto tag = static_cast<uint32_t>((*words)[2 * index + 1]);
      const std::set<uint32_t> others = {layout.tensor_tag, layout.int_tag, layout.double_tag, layout.bool_tag,
                                         layout.list_tag};
      if (!known.is_rare() || others.contains(tag)) {
        continue;
      }
      if (known.kind == KnownValue::None) {
        layout.none_tag = tag;
      } else if (const auto object = start->memory.find(payload); object != start->memory.end()) {
        layout.complex =
            only(object->second.empty() ? 0 : object->second.size() - 1, kWordBytes, [&](std::size_t word) {
              return object->second[word] == known.words.at(0) && object->second[word + 1] == known.words.at(1);
            });
        layout.complex_tag = tag;
      }
    }
  }
}

}  // namespace

Observation observe(const void* function, const char* name, uint64_t sequence, bool is_end) {
  Observation observation;
  observation.name = name;
  observation.address = std::bit_cast<uint64_t>(function);
  observation.sequence = sequence;
  observation.is_end = is_end;
  // The size of the object is unknown. Readable memory may end before kWords words, at the earliest at the end of a
  // page.
  for (std::size_t word = 0; word < Observation::kWords; ++word) {
    if (!read(observation.address + word * kWordBytes, &observation.words[word], kWordBytes)) {
      break;
    }
  }
  for (std::size_t word = 0; word + 1 < Observation::kWords; ++word) {
    const uint64_t first = observation.words[word];
    const uint64_t second = observation.words[word + 1];
    if (second >= 1 && second <= kMaxValues) {
      if (std::vector<uint64_t> values = read_words(first, 2 * second); !values.empty()) {
        remember_lists(values, observation);
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
    // Memory after the number is partly uninitialized.
    const std::size_t bytes = layout.sequence != Layout::kUnknown ? layout.sequence : sizeof(Observation::words);
    layout.scope = only(bytes, 1, [&](std::size_t place) {
      return byte(*user, place) == kUserScope &&
             everywhere([&](const Call& call) { return byte(*call.start, place) == kFunctionScope; });
    });
    if (const std::vector<uint64_t>* value = find_arguments(user, layout.inputs, 1);
        value != nullptr && user->texts.contains((*value)[0])) {
      layout.text = user->texts.at((*value)[0]);
      layout.text_tag = static_cast<uint32_t>((*value)[1]);
    }
  }
  layout.number = infer_number(seen);
  layout.keywords = infer_keywords(seen);
  infer_tensors(tensors, layout);
  return layout.sequence == Layout::kUnknown ? "autograd's numbers were not found" : "";
}

void infer_values(const std::vector<Observation>& seen, const std::vector<KnownArguments>& calls, Layout& layout) {
  struct List {
    const KnownValue* known;
    const Observation* seen;
    std::vector<uint64_t> object;
  };
  constexpr char kList = 'L';
  std::map<char, uint32_t> tags = {{KnownValue::Tensor, layout.tensor_tag}};
  std::vector<List> lists;
  for (const KnownArguments& call : calls) {
    if (call.has_rare()) {
      continue;
    }
    const Observation* start = find(seen, call.name, false);
    const std::vector<uint64_t>* words = find_arguments(start, layout.inputs, call.values.size());
    for (std::size_t index = 0; index < call.values.size(); ++index) {
      if (words == nullptr) {
        return;
      }
      const KnownValue& known = call.values[index];
      const uint64_t payload = (*words)[2 * index];
      const auto tag = static_cast<uint32_t>((*words)[2 * index + 1]);
      const uint64_t mask = known.kind == KnownValue::Bool ? 0xFF : ~uint64_t{0};
      if (known.is_list()) {
        lists.push_back({&known, start, start->memory.at(payload)});
      } else if ((payload & mask) != known.words.at(0)) {
        return;
      }
      if (tags.try_emplace(known.is_list() ? kList : char{known.kind}, tag).first->second != tag) {
        return;
      }
    }
  }
  std::set<uint32_t> different;
  for (const char kind :
       {char{KnownValue::Tensor}, char{KnownValue::Int}, char{KnownValue::Double}, char{KnownValue::Bool}, kList}) {
    const auto found = tags.find(kind);
    if (found == tags.end() || !different.insert(found->second).second) {
      return;
    }
  }
  const std::size_t place = only(kListWords - kListTypeWord, kWordBytes, [&](std::size_t word) {
    return std::ranges::all_of(lists, [&](const List& list) {
      const auto values = list.object.empty() ? list.seen->memory.end() : list.seen->memory.find(list.object[word]);
      const std::vector<uint64_t>& wanted = list.known->words;
      if (values == list.seen->memory.end() || values->second.size() != 2 * wanted.size()) {
        return false;
      }
      const uint32_t tag = tags[list.known->kind == KnownValue::Tensors ? KnownValue::Tensor : KnownValue::Int];
      for (std::size_t index = 0; index < wanted.size(); ++index) {
        if (values->second[2 * index] != wanted[index] || static_cast<uint32_t>(values->second[2 * index + 1]) != tag) {
          return false;
        }
      }
      return true;
    });
  });
  if (place == Layout::kUnknown) {
    return;
  }
  std::map<char, std::set<uint64_t>> types;
  for (const List& list : lists) {
    types[list.known->kind].insert(list.object[place / kWordBytes + kListTypeWord]);
  }
  const std::set<uint64_t>& of_tensors = types[KnownValue::Tensors];
  if (of_tensors.size() != 1 || types[KnownValue::Ints].contains(*of_tensors.begin())) {
    return;
  }
  layout.tensor_type = *of_tensors.begin();
  layout.int_tag = tags[KnownValue::Int];
  layout.double_tag = tags[KnownValue::Double];
  layout.bool_tag = tags[KnownValue::Bool];
  layout.list_tag = tags[kList];
  layout.list = place;
  infer_rare_values(seen, calls, layout);
}

}  // namespace gpuscope::torch
