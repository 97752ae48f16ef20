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
constexpr uint64_t kMostValues = 8;
constexpr std::size_t kTensorWords = 48;
constexpr uint8_t kFunctionScope = 0;
constexpr uint8_t kUserScope = 7;
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

const Sighting* find(const std::vector<Sighting>& seen, const std::string& name, bool is_end) {
  const auto found = std::ranges::find_if(
      seen, [&](const Sighting& sighting) { return sighting.name == name && sighting.is_end == is_end; });
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
bool are_tensors(const std::vector<Sighting::Values>& values, std::size_t word, const std::vector<uint64_t>& addresses,
                 std::optional<uint32_t>& tag) {
  for (const Sighting::Values& candidate : values) {
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

void learn_tensors(const std::vector<KnownTensor>& tensors, Layout& layout) {
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

}  // namespace

Sighting look_at(const void* function, const char* name, uint64_t sequence, bool is_end) {
  Sighting sighting;
  sighting.name = name;
  sighting.sequence = sequence;
  sighting.is_end = is_end;
  std::memcpy(sighting.words.data(), function, sizeof(sighting.words));
  for (std::size_t word = 0; word + 1 < Sighting::kWords; ++word) {
    const uint64_t first = sighting.words[word];
    const uint64_t second = sighting.words[word + 1];
    if (second >= 1 && second <= kMostValues) {
      if (std::vector<uint64_t> values = read_words(first, 2 * second); !values.empty()) {
        sighting.counted.push_back({word, std::move(values)});
      }
    }
    if (second > first && second - first <= kMostValues * kValueBytes && (second - first) % kValueBytes == 0) {
      if (std::vector<uint64_t> values = read_words(first, (second - first) / kWordBytes); !values.empty()) {
        sighting.delimited.push_back({word, std::move(values)});
      }
    }
  }
  return sighting;
}

std::string learn(const std::vector<Sighting>& seen, const std::vector<KnownTensor>& tensors,
                  const std::vector<KnownCall>& calls, const std::string& user_name, Layout& layout) {
  layout = {};
  struct Call {
    const Sighting* start;
    const Sighting* end;
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
  layout.sequence = only(Sighting::kWords, kWordBytes, [&](std::size_t word) {
    return everywhere([&](const Call& call) {
      return call.start->words[word] == (call.known->numbered ? call.start->sequence : kNoSequence);
    });
  });
  layout.inputs = only(Sighting::kWords, kWordBytes, [&](std::size_t word) {
    return everywhere([&](const Call& call) { return are_tensors(call.start->counted, word, call.arguments, tag); });
  });
  layout.outputs = only(Sighting::kWords, kWordBytes, [&](std::size_t word) {
    return everywhere([&](const Call& call) {
      return are_tensors(call.end->delimited, word, {tensors[call.known->result].address}, tag);
    });
  });
  layout.tensor_tag = tag.value_or(0);
  if (const Sighting* user = find(seen, user_name, false); user != nullptr) {
    const auto byte = [](const Sighting& sighting, std::size_t place) {
      return reinterpret_cast<const uint8_t*>(sighting.words.data())[place];
    };
    // What lies behind the number is uninitialized in part.
    const std::size_t bytes = layout.sequence != Layout::kUnknown ? layout.sequence : sizeof(Sighting::words);
    layout.scope = only(bytes, 1, [&](std::size_t place) {
      return byte(*user, place) == kUserScope &&
             everywhere([&](const Call& call) { return byte(*call.start, place) == kFunctionScope; });
    });
  }
  learn_tensors(tensors, layout);
  return layout.sequence == Layout::kUnknown ? "autograd's numbers were not found" : "";
}

}  // namespace gpuscope::torch
