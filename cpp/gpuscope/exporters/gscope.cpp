// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/gscope.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "gpuscope/base/crc32c.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/file.h"
#include "gpuscope/store/check.h"
#include "gpuscope/store/gscope_format.h"

namespace gpuscope::exporters {
namespace {

using base::crc32c;
using base::OutputFile;
using store::ColumnInfo;
using store::Role;
using store::Store;
using store::TableInfo;
using store::Target;
using namespace store::gscope;

constexpr std::size_t kStringBlockBytes = std::size_t{1} << 20;

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
void write_table(const Table& table, Block& block, OutputFile& file) {
  for (std::size_t first = 0; first < table.size(); first += kBlockRows) {
    const std::size_t rows = std::min(kBlockRows, table.size() - first);
    block.append_name(table.kInfo.name);
    table.each_column([&](const ColumnInfo& column, const auto&) {
      block.append_byte(column.bytes);
      block.append_name(column.name);
    });
    block.pad();
    const std::size_t directory_bytes = block.size();
    table.each_column([&](const ColumnInfo& column, const auto& values) {
      block.append(values.data() + first, rows * column.bytes);
      block.pad();
    });
    block.write(file, BlockType::Table, rows, directory_bytes);
  }
}

void add_after_its_references(const TableInfo& table, std::vector<Target>& order) {
  if (std::ranges::find(order, table.target) != order.end()) {
    return;
  }
  for (const ColumnInfo& column : table.columns) {
    const TableInfo* other = store::find_table(column.meaning.target);
    if (other != nullptr && other != &table) {
      add_after_its_references(*other, order);
    }
  }
  order.push_back(table.target);
}

bool is_of_thread(const TableInfo& table) {
  return std::ranges::any_of(table.columns,
                             [](const ColumnInfo& column) { return column.meaning.target == Target::Threads; });
}

/// Facts first, what threads did before what the GPU did, and each table after those it refers to, so that a file cut
/// anywhere has no loose ends.
std::vector<Target> table_order() {
  std::vector<Target> order;
  const auto add = [&](auto&& takes) {
    for (const TableInfo& table : store::kTables) {
      if (takes(table)) {
        add_after_its_references(table, order);
      }
    }
  };
  add([](const TableInfo& table) { return table.role == Role::Info; });
  add([](const TableInfo& table) { return table.role == Role::Dictionary; });
  add([](const TableInfo& table) { return is_of_thread(table); });
  add([](const TableInfo& table) { return !store::has_owner(table); });
  add([](const TableInfo&) { return true; });  // rows that are about other rows, of whatever kind these are
  return order;
}

}  // namespace

void write_gscope(const Store& store, const std::string& path) {
  if (const std::string bad = store::find_bad_reference(store); !bad.empty()) {
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
  for (const Target next : table_order()) {
    store.each_table([&](const auto& table) {
      if (table.kInfo.target == next) {
        write_table(table, block, file);
      }
    });
  }
  block.write(file, BlockType::End, 0, 0);
  file.commit();
}

}  // namespace gpuscope::exporters
