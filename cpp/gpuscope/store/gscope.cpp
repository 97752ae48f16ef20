// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/gscope.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "gpuscope/base/errors.h"

namespace gpuscope::store {
namespace {

using namespace gscope;
using base::crc32c;
using base::Write;

// -- writing ----------------------------------------------------------------------------------------------------------

constexpr std::size_t kStringBlockBytes = std::size_t{1} << 20;

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

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

  void hand_over(const Write& write, BlockType type, std::size_t rows, std::size_t directory_bytes) {
    BlockHeader header{kBlockMagic,
                       static_cast<uint16_t>(type),
                       kBlockVersion,
                       static_cast<uint32_t>(rows),
                       static_cast<uint32_t>(directory_bytes),
                       body_.size() - directory_bytes,
                       crc32c(body_.data(), body_.size()),
                       0};
    header.header_crc = crc32c(&header, offsetof(BlockHeader, header_crc));
    write(bytes_of(header));
    write({body_.data(), body_.size()});
    body_.clear();
  }

 private:
  std::vector<char> body_;
};

void write_strings(const base::StringTable& strings, Block& block, const Write& write) {
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
    block.hand_over(write, BlockType::Strings, end - first, 0);
    first = end;
  }
}

template <class Table>
void write_table(const Table& table, Block& block, const Write& write) {
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
    block.hand_over(write, BlockType::Table, rows, directory_bytes);
  }
}

void add_after_its_references(const TableInfo& table, std::vector<Target>& order) {
  if (std::ranges::find(order, table.target) != order.end()) {
    return;
  }
  for (const ColumnInfo& column : table.columns) {
    const TableInfo* other = find_table(column.meaning.target);
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
    for (const TableInfo& table : kTables) {
      if (takes(table)) {
        add_after_its_references(table, order);
      }
    }
  };
  add([](const TableInfo& table) { return table.role == Role::Info; });
  add([](const TableInfo& table) { return table.role == Role::Dictionary; });
  add([](const TableInfo& table) { return is_of_thread(table); });
  add([](const TableInfo& table) { return !has_owner(table); });
  add([](const TableInfo&) { return true; });  // rows that are about other rows, of whatever kind these are
  return order;
}

// -- reading ----------------------------------------------------------------------------------------------------------

bool is_whole(const BlockHeader& header) {
  return header.magic == kBlockMagic && header.header_crc == crc32c(&header, offsetof(BlockHeader, header_crc));
}

struct FileColumn {
  std::string_view name;
  std::size_t width;
  const std::byte* values;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path), store_(std::make_unique<Store>()) {}

  std::unique_ptr<Store> read() {
    read_file_header();
    while (read_block()) {
    }
    if (!ended_) {
      store_->set_info("file.truncated_at", std::to_string(offset_));
      forget_lost_parents();
    }
    if (const std::string bad = find_bad_reference(*store_); !bad.empty()) {
      fail(bad + "; found when all was read");
    }
    return std::move(store_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw base::CorruptTrace(file_.path(), offset_, why); }

  void read_file_header() {
    FileHeader header{};
    const std::size_t got = file_.read(0, &header, sizeof header);
    if (got == 0) {
      fail("the file is empty");
    }
    if (std::memcmp(header.magic, kFileMagic, std::min(got, sizeof kFileMagic)) != 0) {
      fail("this is no .gscope file, whose first bytes differ");
    }
    if (got < sizeof header) {
      fail("the file ends inside its header");
    }
    if (header.header_crc != crc32c(&header, offsetof(FileHeader, header_crc))) {
      fail("the file's header is damaged");
    }
    if (header.major > kMajorVersion) {
      fail("the file has format version " + std::to_string(header.major) + "." + std::to_string(header.minor) +
           " and this gpuscope reads up to " + std::to_string(kMajorVersion) + ".x: a newer gpuscope reads it");
    }
    offset_ = sizeof header;
  }

  /// False at the end of what can be read; offset_ is then that of the first unread block.
  bool read_block() {
    BlockHeader header{};
    if (file_.read(offset_, &header, sizeof header) < sizeof header) {
      return false;
    }
    if (!is_whole(header)) {
      return end_at_damage("the header of a block is damaged");
    }
    const uint64_t left = file_.size() - offset_ - sizeof header;
    if (header.payload_bytes > left || header.directory_bytes > left - header.payload_bytes) {
      return false;
    }
    const auto bytes = static_cast<std::size_t>(header.directory_bytes + header.payload_bytes);
    body_.resize((bytes + 7) / 8);
    const auto body = std::as_bytes(std::span(body_)).first(bytes);
    if (file_.read(offset_ + sizeof header, body_.data(), bytes) < bytes) {
      return false;
    }
    if (header.body_crc != crc32c(body.data(), bytes)) {
      return end_at_damage("a block is damaged");
    }
    take(header, body.first(header.directory_bytes), body.subspan(header.directory_bytes));
    offset_ += sizeof header + bytes;
    return !ended_;
  }

  /// Damage with nothing readable behind it is a lost tail, and what stands before it is worth having.
  bool end_at_damage(const std::string& why) const {
    if (has_block_after(offset_ + 1)) {
      fail(why);
    }
    return false;
  }

  bool has_block_after(uint64_t from) const {
    std::vector<char> window(std::clamp<uint64_t>(file_.size(), sizeof(BlockHeader), uint64_t{1} << 20));
    for (;;) {
      const std::size_t got = file_.read(from, window.data(), window.size());
      for (std::size_t at = 0; at + sizeof(BlockHeader) <= got; ++at) {
        BlockHeader header;
        std::memcpy(&header, window.data() + at, sizeof header);
        if (is_whole(header)) {
          return true;
        }
      }
      if (got < window.size()) {
        return false;
      }
      from += got - sizeof(BlockHeader) + 1;
    }
  }

  void take(const BlockHeader& header, std::span<const std::byte> directory, std::span<const std::byte> payload) {
    switch (static_cast<BlockType>(header.type)) {
      case BlockType::Strings:
        take_strings(header.rows, payload);
        break;
      case BlockType::Table:
        take_table(header.rows, directory, payload);
        break;
      case BlockType::End:
        ended_ = true;
        break;
      default:  // a newer minor version's
        break;
    }
  }

  void take_strings(uint32_t rows, std::span<const std::byte> payload) {
    std::size_t at = std::size_t{rows} * sizeof(uint32_t);
    if (at > payload.size()) {
      fail("a block of strings is shorter than its lengths");
    }
    for (uint32_t row = 0; row < rows; ++row) {
      uint32_t length;
      std::memcpy(&length, payload.data() + std::size_t{row} * sizeof length, sizeof length);
      if (length > payload.size() - at) {
        fail("a string is longer than its block");
      }
      const std::string_view text(reinterpret_cast<const char*>(payload.data()) + at, length);
      if (store_->strings.intern(text) != next_string_++) {
        fail("a string stands in the file twice");
      }
      at += length;
    }
  }

  void take_table(uint32_t rows, std::span<const std::byte> directory, std::span<const std::byte> payload) {
    const std::string_view table = parse_directory(rows, directory, payload);
    store_->each_table([&](auto& into) {
      if (into.kInfo.name == table) {
        append(into, rows);
      }
    });
  }

  /// Fills columns_ and returns the table's name.
  std::string_view parse_directory(uint32_t rows, std::span<const std::byte> directory,
                                   std::span<const std::byte> payload) {
    std::string_view left(reinterpret_cast<const char*>(directory.data()), directory.size());
    std::size_t at = 0;
    columns_.clear();
    const std::string_view table = take_name(left);
    while (!left.empty() && left.front() != '\0') {
      const auto width = static_cast<std::size_t>(static_cast<unsigned char>(left.front()));
      left.remove_prefix(1);
      const std::string_view name = take_name(left);
      const std::size_t bytes = padded(width * rows);
      if (bytes > payload.size() - at) {
        fail("a column is longer than its block");
      }
      columns_.push_back({name, width, payload.data() + at});
      at += bytes;
    }
    return table;
  }

  std::string_view take_name(std::string_view& left) const {
    const std::size_t length = left.empty() ? 0 : static_cast<unsigned char>(left.front());
    if (length == 0 || length >= left.size()) {
      fail("a block's list of columns is damaged");
    }
    const std::string_view name = left.substr(1, length);
    left.remove_prefix(length + 1);
    return name;
  }

  template <class Table>
  void append(Table& into, uint32_t rows) const {
    const std::string table(into.kInfo.name);
    if (into.size() + rows >= kNone) {
      fail("there are more rows of " + table + " than can be numbered");
    }
    into.each_column([&](const ColumnInfo& info, auto& column) {
      using T = std::remove_reference_t<decltype(column)>::value_type;
      const auto found = std::ranges::find(columns_, info.name, &FileColumn::name);
      if (found == columns_.end()) {
        const std::vector<T> filling(rows, info.meaning.optional ? static_cast<T>(kNone) : T{});
        column.append(filling);
      } else if (found->width == sizeof(T)) {
        column.append({reinterpret_cast<const T*>(found->values), rows});
      } else {
        fail(table + "." + std::string(info.name) + " is " + std::to_string(found->width) + " bytes wide, not " +
             std::to_string(sizeof(T)));
      }
    });
  }

  /// Only references among events of one table, as to a region's parent, point forward, into what a cut file has lost.
  void forget_lost_parents() {
    store_->each_table([](auto& table) {
      table.each_column([&](const ColumnInfo& info, auto& column) {
        using T = std::remove_reference_t<decltype(column)>::value_type;
        const bool is_own = table.kInfo.role == Role::Event && info.meaning.target == table.kInfo.target;
        for (std::size_t row = 0; is_own && row < column.size(); ++row) {
          column[row] = static_cast<std::size_t>(column[row]) < column.size() ? column[row] : static_cast<T>(kNone);
        }
      });
    });
  }

  base::InputFile file_;
  std::unique_ptr<Store> store_;
  uint64_t offset_ = 0;
  uint32_t next_string_ = 0;
  bool ended_ = false;
  std::vector<uint64_t> body_;  // of 8-byte elements, so that every column in it is aligned
  std::vector<FileColumn> columns_;
};

}  // namespace

void write_gscope(const Store& store, const Write& write) {
  if (const std::string bad = find_bad_reference(store); !bad.empty()) {
    throw base::Error("cannot save the recording, which is inconsistent: " + bad);
  }
  FileHeader header{};
  std::ranges::copy(kFileMagic, header.magic);
  header.major = kMajorVersion;
  header.minor = kMinorVersion;
  header.header_crc = crc32c(&header, offsetof(FileHeader, header_crc));
  write(bytes_of(header));
  Block block;
  write_strings(store.strings, block, write);
  for (const Target next : table_order()) {
    store.each_table([&](const auto& table) {
      if (table.kInfo.target == next) {
        write_table(table, block, write);
      }
    });
  }
  block.hand_over(write, BlockType::End, 0, 0);
}

std::unique_ptr<Store> read_gscope(const std::string& path) { return Reader(path).read(); }

}  // namespace gpuscope::store
