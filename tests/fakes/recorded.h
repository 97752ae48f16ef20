// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gpuscope/base/events.h"

namespace gpuscope::fakes {

/// What CUPTI and the threads of a real program delivered, as tests/gpu/record_cupti.cpp wrote it down.
///
/// File: u32 counts and little-endian arrays in the order of the members. Kernel names in the buffers, which were
/// pointers, are numbers into `names`.
struct Recorded {
  struct Buffer {
    std::vector<uint64_t> words;  // 8-byte aligned, as CUPTI's buffers are
    uint32_t valid = 0;
  };
  std::string about;
  std::vector<std::string> names;
  std::vector<std::string> regions;  // by base::Names id of the recording process
  std::vector<uint32_t> strides;     // bytes of a record, by kind
  std::vector<std::vector<base::Event>> threads;
  std::vector<Buffer> buffers;

  void save(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    const auto number = [&](std::size_t value) {
      const auto narrow = static_cast<uint32_t>(value);
      file.write(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
    };
    const auto text = [&](const std::string& value) {
      number(value.size());
      file.write(value.data(), static_cast<std::streamsize>(value.size()));
    };
    const auto texts = [&](const std::vector<std::string>& values) {
      number(values.size());
      for (const std::string& value : values) {
        text(value);
      }
    };
    text(about);
    texts(names);
    texts(regions);
    number(strides.size());
    for (const uint32_t stride : strides) {
      number(stride);
    }
    number(threads.size());
    for (const auto& events : threads) {
      number(events.size());
      file.write(reinterpret_cast<const char*>(events.data()),
                 static_cast<std::streamsize>(events.size() * sizeof(base::Event)));
    }
    number(buffers.size());
    for (const Buffer& buffer : buffers) {
      number(buffer.valid);
      file.write(reinterpret_cast<const char*>(buffer.words.data()), buffer.valid);
    }
  }

  static Recorded load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const auto number = [&] {
      uint32_t value = 0;
      file.read(reinterpret_cast<char*>(&value), sizeof(value));
      return value;
    };
    const auto text = [&] {
      std::string value(number(), '\0');
      file.read(value.data(), static_cast<std::streamsize>(value.size()));
      return value;
    };
    const auto texts = [&] {
      std::vector<std::string> values(number());
      for (std::string& value : values) {
        value = text();
      }
      return values;
    };
    Recorded recorded;
    recorded.about = text();
    recorded.names = texts();
    recorded.regions = texts();
    recorded.strides.resize(number());
    for (uint32_t& stride : recorded.strides) {
      stride = number();
    }
    recorded.threads.resize(number());
    for (auto& events : recorded.threads) {
      events.resize(number());
      file.read(reinterpret_cast<char*>(events.data()),
                static_cast<std::streamsize>(events.size() * sizeof(base::Event)));
    }
    recorded.buffers.resize(number());
    for (Buffer& buffer : recorded.buffers) {
      buffer.valid = number();
      buffer.words.resize((buffer.valid + 7) / 8);
      file.read(reinterpret_cast<char*>(buffer.words.data()), buffer.valid);
    }
    return recorded;
  }
};

}  // namespace gpuscope::fakes
