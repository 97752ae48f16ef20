// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/readers/gscope.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "gpuscope/base/crc32c.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/file.h"
#include "gpuscope/store/check.h"
#include "gpuscope/store/gscope_format.h"

namespace gpuscope::readers {
namespace {

using base::crc32c;
using store::ColumnInfo;
using store::kNone;
using store::Store;
using namespace store::gscope;

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
    if (const std::string bad = store::find_bad_reference(*store_); !bad.empty()) {
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

  /// False at the end of what can be read; offset_ stays where the first unread block begins.
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
        const bool is_own = table.kInfo.role == store::Role::Event && info.meaning.target == table.kInfo.target;
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

std::unique_ptr<Store> read_gscope(const std::string& path) { return Reader(path).read(); }

}  // namespace gpuscope::readers
