// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/gscope_writer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/exporters/crc32c.h"
#include "gpuscope/exporters/file.h"
#include "gpuscope/exporters/gscope_format.h"
#include "gpuscope/exporters/references.h"

namespace gpuscope::exporters {
namespace {

using store::Store;

constexpr std::size_t kStringBlockBytes = std::size_t{1} << 20;

// Each table after those it refers to, so that a file cut anywhere has no loose ends; tables not named here follow.
constexpr std::array<std::string_view, 8> kFirstTables = {"info", "device",  "track", "thread",
                                                          "call", "variant", "path",  "stack"};
constexpr std::array<std::string_view, 15> kNextTables = {
    "region", "detail",     "payload", "allocation", "device_memory", "memory_pool",  "region_gpu", "mark",
    "api",    "call_stack", "kernel",  "memcpy",     "memset",        "graph_launch", "histogram"};

/// One block in the making; its memory serves block after block.
class Block {
 public:
  void append(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    body_.insert(body_.end(), from, from + bytes);
  }
  void append_byte(std::size_t value) { body_.push_back(static_cast<char>(value)); }
  void append_name(std::string_view name) {
    append_byte(name.size());
    append(name.data(), name.size());
  }
  void pad() { body_.resize(padded(body_.size())); }
  std::size_t size() const noexcept { return body_.size(); }

  void write(OutputFile& file, BlockType type, std::size_t rows, std::size_t directory_bytes) {
    BlockHeader header{kBlockMagic,
                       static_cast<uint16_t>(type),
                       kBlockVersion,
                       static_cast<uint32_t>(rows),
                       static_cast<uint32_t>(directory_bytes),
                       body_.size() - directory_bytes,
                       crc32c(body_.data(), body_.size()),
                       0};
    header.header_crc = crc32c(&header, offsetof(BlockHeader, header_crc));
    file.write(&header, sizeof header);
    file.write(body_.data(), body_.size());
    body_.clear();
  }

 private:
  std::vector<char> body_;
};

void write_strings(const base::StringTable& strings, Block& block, OutputFile& file) {
  for (uint32_t first = 0; first < strings.size();) {
    uint32_t end = first;
    for (std::size_t bytes = 0; end < strings.size() && bytes < kStringBlockBytes && end - first < kBlockRows; ++end) {
      const auto length = static_cast<uint32_t>(strings[end].size());
      block.append(&length, sizeof length);
      bytes += length;
    }
    for (uint32_t id = first; id < end; ++id) {
      block.append(strings[id].data(), strings[id].size());
    }
    block.pad();
    block.write(file, BlockType::Strings, end - first, 0);
    first = end;
  }
}

template <class Table>
void write_table(std::string_view name, const Table& table, Block& block, OutputFile& file) {
  for (std::size_t first = 0; first < table.size(); first += kBlockRows) {
    const std::size_t rows = std::min(kBlockRows, table.size() - first);
    block.append_name(name);
    table.each_column([&](std::string_view column, const auto& values) {
      block.append_byte(sizeof values[0]);
      block.append_name(column);
    });
    block.pad();
    const std::size_t directory_bytes = block.size();
    table.each_column([&](std::string_view, const auto& values) {
      block.append(values.data() + first, rows * sizeof values[0]);
      block.pad();
    });
    block.write(file, BlockType::Table, rows, directory_bytes);
  }
}

std::vector<std::string_view> table_order(const Store& store) {
  std::vector<std::string_view> order(kFirstTables.begin(), kFirstTables.end());
  order.insert(order.end(), kNextTables.begin(), kNextTables.end());
  store.each_table([&](std::string_view name, const auto&) {
    if (std::ranges::find(order, name) == order.end()) {
      order.push_back(name);
    }
  });
  return order;
}

}  // namespace

void write_gscope(const Store& store, const std::string& path) {
  if (const std::string bad = find_bad_reference(store); !bad.empty()) {
    throw base::Error("cannot save " + path + ": the recording is inconsistent: " + bad);
  }
  OutputFile file(path);
  FileHeader header{};
  std::ranges::copy(kFileMagic, header.magic);
  header.major = kMajorVersion;
  header.minor = kMinorVersion;
  header.header_crc = crc32c(&header, offsetof(FileHeader, header_crc));
  file.write(&header, sizeof header);
  Block block;
  write_strings(store.strings, block, file);
  for (const std::string_view wanted : table_order(store)) {
    store.each_table([&](std::string_view name, const auto& table) {
      if (name == wanted) {
        write_table(name, table, block, file);
      }
    });
  }
  block.write(file, BlockType::End, 0, 0);
  file.commit();
}

}  // namespace gpuscope::exporters
