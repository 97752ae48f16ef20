// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/gscope.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/store/salvage.h"

namespace gpuscope::store {
namespace {

using namespace gscope;
using base::crc32c;

constexpr std::string_view kAdvice = "; gpuscope.load(path, salvage=True) and the option --salvage open what is whole";

bool is_whole(const BlockHeader& header) {
  return header.magic == kBlockMagic && header.major == kMajorVersion &&
         header.header_crc == crc32c(&header, offsetof(BlockHeader, header_crc));
}

struct FileColumn {
  std::string_view name;
  std::size_t width;
  const std::byte* values;
};

/// Removes names with a length byte from the front of a directory.
class Directory {
 public:
  explicit Directory(std::span<const std::byte> bytes)
      : left_(reinterpret_cast<const char*>(bytes.data()), bytes.size()) {}

  /// Zeros pad the end.
  bool is_at_end() const noexcept { return left_.empty() || left_.front() == '\0'; }
  std::size_t take_byte() {
    const auto value = static_cast<unsigned char>(left_.front());
    left_.remove_prefix(1);
    return value;
  }
  /// Empty if there is none.
  std::string_view take_name() {
    const std::size_t length = left_.empty() ? 0 : take_byte();
    const std::string_view name = left_.substr(0, length);
    left_.remove_prefix(name.size());
    return name.size() == length ? name : std::string_view{};
  }

 private:
  std::string_view left_;
};

class Reader {
 public:
  Reader(const std::string& path, Damage damage)
      : file_(path), salvages_(damage == Damage::Salvage), store_(std::make_unique<Store>()) {}

  std::unique_ptr<Store> read() {
    read_file_header();
    read_blocks();
    const std::string lost = lost_rows();
    const bool has_every_block = lost_blocks_ == 0 && ended_;
    if (has_every_block && !salvages_ && !lost.empty()) {
      fail_damaged("the file holds other rows than its contents say: " + lost.substr(0, lost.find('\n')));
    }
    if (!has_every_block || !lost.empty()) {
      const std::size_t cut = rejoin(*store_, read_);
      note_losses(cut);
    }
    if (const std::string bad = find_bad_reference(*store_); !bad.empty()) {
      fail(bad + "; found when all was read");
    }
    return std::move(store_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw base::CorruptTrace(file_.path(), offset_, why); }
  [[noreturn]] void fail_damaged(const std::string& why) const {
    throw base::CorruptTrace(file_.path(), offset_, why, salvages_ ? "" : kAdvice);
  }

  void read_file_header() {
    FileHeader header{};
    const std::size_t got = file_.read(0, &header, sizeof header);
    if (got == 0) {
      fail("the file is empty");
    }
    const bool is_damaged =
        got == sizeof header && header.header_crc != crc32c(&header, offsetof(FileHeader, header_crc));
    if (is_damaged && (salvages_ ? find_block(0).has_value() : has_block_at(sizeof header))) {
      if (!salvages_) {
        fail_damaged("the file's header is damaged");
      }
    } else if (std::memcmp(header.magic, kFileMagic, std::min(got, sizeof kFileMagic)) != 0) {
      fail("this is no .gscope file, whose first bytes differ");
    } else if (got < sizeof header) {
      fail("the file ends inside its header");
    } else if (is_damaged) {
      fail("the file's header is damaged");
    } else if (header.major != kMajorVersion) {
      fail("the file has format version " + std::to_string(header.major) + "." + std::to_string(header.minor) +
           " and this gpuscope reads " + std::to_string(kMajorVersion) +
           ".x: " + (header.major > kMajorVersion ? "a newer" : "an older") + " gpuscope reads it");
    }
    offset_ = sizeof header;
  }

  void read_blocks() {
    while (!ended_) {
      resume_ = offset_ + 1;
      try {
        read_block();
      } catch (const base::CorruptTrace&) {
        const std::optional<uint64_t> next = find_block(resume_);
        if (!next) {
          return;  // damage without readable blocks after it: the file lost its tail, and the part before is usable
        }
        if (!salvages_) {
          throw;
        }
        offset_ = *next;
      }
    }
  }

  void read_block() {
    BlockHeader header{};
    if (file_.read(offset_, &header, sizeof header) < sizeof header) {
      fail("the file ends inside a block");
    }
    if (!is_whole(header)) {
      fail_damaged("the header of a block is damaged");
    }
    const uint64_t left = file_.size() - offset_ - sizeof header;
    if (header.payload_bytes > left || header.directory_bytes > left - header.payload_bytes) {
      fail_damaged("a block is longer than the file");
    }
    const auto bytes = static_cast<std::size_t>(header.directory_bytes + header.payload_bytes);
    resume_ = offset_ + sizeof header + bytes;
    body_.resize((bytes + 7) / 8);
    const auto body = std::as_bytes(std::span(body_)).first(bytes);
    if (file_.read(offset_ + sizeof header, body_.data(), bytes) < bytes) {
      fail("the file ends inside a block");
    }
    if (header.body_crc != crc32c(body.data(), bytes)) {
      fail_damaged("a block is damaged");
    }
    if (header.number < next_block_ || (header.number != next_block_ && !salvages_)) {
      fail_damaged("block " + std::to_string(header.number) + " stands where block " + std::to_string(next_block_) +
                   " belongs");
    }
    take(header, body.first(header.directory_bytes), body.subspan(header.directory_bytes));
    lost_blocks_ += header.number - next_block_;
    next_block_ = uint64_t{header.number} + 1;
    offset_ = resume_;
  }

  bool has_block_at(uint64_t offset) const {
    BlockHeader header{};
    return file_.read(offset, &header, sizeof header) == sizeof header && is_whole(header);
  }

  /// The position of the next whole block header.
  std::optional<uint64_t> find_block(uint64_t from) const {
    std::vector<char> window;
    std::size_t bytes = std::size_t{4} << 10;  // grows, as the next block may be near or far
    for (;;) {
      window.resize(bytes);
      const std::string_view text(window.data(), file_.read(from, window.data(), bytes));
      const std::string_view magic(reinterpret_cast<const char*>(&kBlockMagic), sizeof kBlockMagic);
      for (std::size_t at = text.find(magic); at != std::string_view::npos; at = text.find(magic, at + 1)) {
        BlockHeader header;
        if (at + sizeof header <= text.size()) {
          std::memcpy(&header, text.data() + at, sizeof header);
          if (is_whole(header)) {
            return from + at;
          }
        }
      }
      if (text.size() < bytes) {
        return std::nullopt;
      }
      from += bytes - sizeof(BlockHeader) + 1;
      bytes = std::min(2 * bytes, std::size_t{1} << 20);
    }
  }

  void take(const BlockHeader& header, std::span<const std::byte> directory, std::span<const std::byte> payload) {
    switch (static_cast<BlockType>(header.type)) {
      case BlockType::Strings:
        take_strings(header, payload);
        break;
      case BlockType::Table:
        take_table(header, directory, payload);
        break;
      case BlockType::Patch:
        take_patch(header, directory, payload);
        break;
      case BlockType::Contents:
        take_contents(header.rows, directory, payload);
        ended_ = header.number != 0;
        break;
      default:  // a newer minor version's
        break;
    }
  }

  void take_contents(uint32_t rows, std::span<const std::byte> directory, std::span<const std::byte> payload) {
    if (payload.size() != std::size_t{rows} * sizeof(uint64_t)) {
      fail("the file's contents are damaged");
    }
    Directory names(directory);
    for (uint32_t row = 0; row < rows; ++row) {
      const std::string_view name = names.take_name();
      uint64_t count;
      std::memcpy(&count, payload.data() + row * sizeof count, sizeof count);
      const TableInfo* table = find_table(name);
      if (table != nullptr || name == kStringsName) {
        expected_[static_cast<std::size_t>(table != nullptr ? table->target : Target::Strings)] = count;
      }
    }
    has_contents_ = true;
  }

  /// Whether the rows of a block follow the rows read before. Only a salvaged file may lack rows in between.
  void check_place(const BlockHeader& header, Target target, std::string_view name) const {
    const uint64_t end = read_.rows[static_cast<std::size_t>(target)].end();
    if (header.first_row < end || (header.first_row != end && !salvages_)) {
      fail("the rows of " + std::string(name) + " go on at " + std::to_string(header.first_row) + ", not at " +
           std::to_string(end));
    }
    if (uint64_t{header.first_row} + header.rows >= kNone) {
      fail("there are more rows of " + std::string(name) + " than can be numbered");
    }
  }

  void take_strings(const BlockHeader& header, std::span<const std::byte> payload) {
    check_place(header, Target::Strings, kStringsName);
    std::size_t at = std::size_t{header.rows} * sizeof(uint32_t);
    if (at > payload.size()) {
      fail("a block of strings is shorter than its lengths");
    }
    std::vector<uint32_t> ids;
    ids.reserve(header.rows);
    for (uint32_t row = 0; row < header.rows; ++row) {
      uint32_t length;
      std::memcpy(&length, payload.data() + std::size_t{row} * sizeof length, sizeof length);
      if (length > payload.size() - at) {
        fail("a string is longer than its block");
      }
      ids.push_back(store_->strings.intern({reinterpret_cast<const char*>(payload.data()) + at, length}));
      if (ids.back() != header.first_row + row && !salvages_) {
        fail("a string stands in the file twice");
      }
      at += length;
    }
    read_.strings.insert(read_.strings.end(), ids.begin(), ids.end());
    read_.rows[static_cast<std::size_t>(Target::Strings)].add(header.first_row, header.rows);
  }

  void take_table(const BlockHeader& header, std::span<const std::byte> directory, std::span<const std::byte> payload) {
    const std::string_view name = parse_directory(header.rows, directory, payload);
    store_->each_table([&](auto& into) {
      if (into.kInfo.name == name) {
        check_place(header, into.kInfo.target, name);
        append(into, header.rows);
        read_.rows[static_cast<std::size_t>(into.kInfo.target)].add(header.first_row, header.rows);
      }
    });
  }

  /// Rows that a damaged file has lost are skipped.
  void take_patch(const BlockHeader& header, std::span<const std::byte> directory, std::span<const std::byte> payload) {
    const std::string_view name = parse_directory(header.rows, directory, payload);
    store_->each_table([&](auto& into) {
      if (into.kInfo.name == name) {
        check_widths(into);
        const RowsRead& known = read_.rows[static_cast<std::size_t>(into.kInfo.target)];
        for (uint32_t row = 0; row < header.rows; ++row) {
          if (const uint32_t at = known.find(uint64_t{header.first_row} + row); at != kNone) {
            replace(into, row, at);
          }
        }
      }
    });
  }

  /// Sets columns_ and returns the table's name.
  std::string_view parse_directory(uint32_t rows, std::span<const std::byte> bytes,
                                   std::span<const std::byte> payload) {
    Directory directory(bytes);
    std::size_t at = 0;
    columns_.clear();
    const std::string_view table = directory.take_name();
    while (!directory.is_at_end()) {
      const std::size_t width = directory.take_byte();
      const std::string_view name = directory.take_name();
      if (name.empty()) {
        fail("a block's list of columns is damaged");
      }
      const std::size_t size = padded(width * rows);
      if (size > payload.size() - at) {
        fail("a column is longer than its block");
      }
      columns_.push_back({name, width, payload.data() + at});
      at += size;
    }
    // Then the number of bytes limits the number of rows.
    if (table.empty() || (rows != 0 && columns_.empty())) {
      fail("a block's list of columns is damaged");
    }
    return table;
  }

  auto find(const ColumnInfo& info) const { return std::ranges::find(columns_, info.name, &FileColumn::name); }

  template <class Table>
  void check_widths(const Table& into) const {
    into.each_column([&](const ColumnInfo& info, const auto&) {
      if (const auto found = find(info); found != columns_.end() && found->width != info.bytes) {
        fail(std::string(into.kInfo.name) + "." + std::string(info.name) + " is " + std::to_string(found->width) +
             " bytes wide, not " + std::to_string(info.bytes));
      }
    });
  }

  template <class Table>
  void append(Table& into, uint32_t rows) const {
    check_widths(into);
    into.each_column([&](const ColumnInfo& info, auto& column) {
      using T = std::remove_reference_t<decltype(column)>::value_type;
      const auto found = find(info);
      if (found != columns_.end()) {
        column.append({reinterpret_cast<const T*>(found->values), rows});
      } else {
        column.append_copies(rows, info.meaning.optional ? static_cast<T>(kNone) : T{});
      }
    });
  }

  /// Sets the row `at` to the block's `row`.
  template <class Table>
  void replace(Table& into, uint32_t row, uint32_t at) const {
    into.each_column([&](const ColumnInfo& info, auto& column) {
      using T = std::remove_reference_t<decltype(column)>::value_type;
      if (const auto found = find(info); found != columns_.end()) {
        column[at] = reinterpret_cast<const T*>(found->values)[row];
      }
    });
  }

  /// A line "TABLE KEPT OF" for strings and for each table that has other rows than the file had.
  std::string lost_rows() const {
    std::string lines;
    const auto add = [&](std::string_view name, Target target, uint64_t rows) {
      const auto index = static_cast<std::size_t>(target);
      if (rows != (has_contents_ ? expected_[index] : read_.rows[index].end())) {
        lines.append(lines.empty() ? "" : "\n").append(name).append(" ").append(std::to_string(rows));
        lines.append(" ").append(std::to_string(has_contents_ ? expected_[index] : 0));
      }
    };
    add(kStringsName, Target::Strings, read_.strings.size());
    store_->each_table([&](const auto& table) { add(table.kInfo.name, table.kInfo.target, table.size()); });
    return lines;
  }

  void note_losses(std::size_t cut_references) {
    const std::string rows = lost_rows();  // before the notes, which are rows themselves
    const auto note = [&](std::string_view key, uint64_t value) { store_->set_info(key, std::to_string(value)); };
    if (!ended_) {
      note("file.truncated_at", offset_);
    }
    if (lost_blocks_ != 0) {
      note("file.lost_blocks", lost_blocks_);
    }
    if (cut_references != 0) {
      note("file.cut_references", cut_references);
    }
    if (!rows.empty()) {
      store_->set_info("file.lost_rows", rows);
    }
  }

  base::InputFile file_;
  bool salvages_;
  std::unique_ptr<Store> store_;
  uint64_t offset_ = 0;
  uint64_t resume_ = 0;  // the start of the search for the next block if this one is damaged
  uint64_t next_block_ = 0;
  uint64_t lost_blocks_ = 0;
  bool ended_ = false;
  bool has_contents_ = false;
  std::array<uint64_t, kTargets> expected_{};  // rows of each table, and strings, by the file's contents
  PartsRead read_;
  std::vector<uint64_t> body_;  // of 8-byte elements, to align every column
  std::vector<FileColumn> columns_;
};

}  // namespace

std::unique_ptr<Store> read_gscope(const std::string& path, Damage damage) {
  try {
    return Reader(path, damage).read();
  } catch (const base::CorruptTrace&) {
    if (damage == Damage::Refuse) {
      throw;
    }
  }
  // Whole blocks after the damage contain wrong values. The part before may be usable without them.
  return Reader(path, Damage::Refuse).read();
}

}  // namespace gpuscope::store
