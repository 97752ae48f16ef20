// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/store/gscope.h"
#include "gpuscope/store/segments.h"

namespace gpuscope::store {

using namespace gscope;
using base::crc32c;
using base::Write;

namespace gscope {

/// A block being written. Its memory is reused for each block.
class Block {
 public:
  /// `number`: of the next block, which is counted up.
  Block(const Write& write, uint32_t& number) : write_(write), number_(number) {}

  void append(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
  }
  void append_byte(std::size_t value) { bytes_.push_back(static_cast<char>(value)); }
  void append_name(std::string_view name) {
    append_byte(name.size());
    append(name.data(), name.size());
  }
  void pad() { bytes_.resize(padded(bytes_.size())); }
  /// All bytes so far are the directory.
  void end_directory() {
    pad();
    directory_bytes_ = body_bytes();
  }

  void hand_over(BlockType type, std::size_t first_row, std::size_t rows) {
    pad();
    BlockHeader header{kBlockMagic,
                       static_cast<uint16_t>(type),
                       kMajorVersion,
                       number_++,
                       static_cast<uint32_t>(first_row),
                       static_cast<uint32_t>(rows),
                       static_cast<uint32_t>(directory_bytes_),
                       body_bytes() - directory_bytes_,
                       crc32c(bytes_.data() + sizeof header, body_bytes()),
                       0};
    header.header_crc = crc32c(&header, offsetof(BlockHeader, header_crc));
    std::memcpy(bytes_.data(), &header, sizeof header);
    write_({bytes_.data(), bytes_.size()});
    bytes_.resize(sizeof header);
    directory_bytes_ = 0;
  }

 private:
  std::size_t body_bytes() const noexcept { return bytes_.size() - sizeof(BlockHeader); }

  const Write& write_;
  uint32_t& number_;
  std::size_t directory_bytes_ = 0;
  std::vector<char> bytes_ = std::vector<char>(sizeof(BlockHeader));  // the header, written last, then the body
};

}  // namespace gscope

namespace {

void write_header(const Write& write) {
  FileHeader header{};
  std::ranges::copy(kFileMagic, header.magic);
  header.major = kMajorVersion;
  header.minor = kMinorVersion;
  header.header_crc = crc32c(&header, offsetof(FileHeader, header_crc));
  write({reinterpret_cast<const char*>(&header), sizeof header});
}

/// `rows_of`: the number of rows of a table.
template <class F>
void write_contents(std::size_t strings, F&& rows_of, Block& block) {
  std::vector<uint64_t> counts;
  const auto add = [&](std::string_view name, uint64_t rows) {
    if (rows != 0) {
      block.append_name(name);
      counts.push_back(rows);
    }
  };
  add(kStringsName, strings);
  for (const TableInfo& table : kTables) {
    add(table.name, rows_of(table.target));
  }
  block.end_directory();
  block.append(counts.data(), counts.size() * sizeof(uint64_t));
  block.hand_over(BlockType::Contents, 0, counts.size());
}

void write_strings(const base::StringTable& strings, uint32_t first, Block& block) {
  while (first < strings.size()) {
    uint32_t end = first;
    for (std::size_t bytes = 0; end < strings.size() && bytes < kStringBlockBytes; ++end) {
      const auto length = static_cast<uint32_t>(strings[end].size());
      block.append(&length, sizeof length);
      bytes += sizeof length + length;
    }
    for (uint32_t id = first; id < end; ++id) {
      block.append(strings[id].data(), strings[id].size());
    }
    block.hand_over(BlockType::Strings, first, end - first);
    first = end;
  }
}

/// Writes the rows from `first` up to `end`.
template <class Table>
void write_rows(const Table& table, BlockType type, std::size_t first, std::size_t end, Block& block) {
  for (; first < end; first += kBlockRows) {
    const std::size_t rows = std::min(kBlockRows, end - first);
    block.append_name(table.kInfo.name);
    table.each_column([&](const ColumnInfo& column, const auto&) {
      block.append_byte(column.bytes);
      block.append_name(column.name);
    });
    block.end_directory();
    table.each_column([&](const ColumnInfo& column, const auto& values) {
      block.append(values.data() + first, rows * column.bytes);
      block.pad();
    });
    block.hand_over(type, first, rows);
  }
}

/// Calls visit(table) for each table, after the tables to which it refers.
template <class F>
void each_in_order(const Store& store, F&& visit) {
  static const std::vector<Target> order = table_order();
  for (const Target next : order) {
    store.each_table([&](const auto& table) {
      if (table.kInfo.target == next) {
        visit(table);
      }
    });
  }
}

// Rows that change are written again in chunks of this size.
constexpr std::size_t kChunkRows = 64;
// Changes of other rows than open ones are in the newest rows, mostly.
constexpr std::size_t kNewestChunks = 2;

template <class Table>
uint32_t checksum(const Table& table, std::size_t chunk, std::size_t end) {
  const std::size_t first = chunk * kChunkRows;
  const std::size_t rows = std::min(end, first + kChunkRows) - first;
  uint32_t crc = 0;
  table.each_column([&](const ColumnInfo& column, const auto& values) {
    crc = crc32c(values.data() + first, rows * column.bytes, crc);
  });
  return crc;
}

template <class Table>
bool has_open_rows(const Table& table, std::size_t chunk, std::size_t end) {
  if constexpr (requires {
                  table.flags;
                  table.parent;
                }) {
    for (std::size_t row = chunk * kChunkRows; row < std::min(end, (chunk + 1) * kChunkRows); ++row) {
      if ((table.flags[row] & kOpen) != 0) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

void write_gscope(const Store& store, const Write& write) {
  if (const std::string bad = find_bad_reference(store); !bad.empty()) {
    throw base::Error("cannot save the recording, which is inconsistent: " + bad);
  }
  write_header(write);
  uint32_t number = 0;
  Block block(write, number);
  const auto rows_of = [&](Target target) { return store.rows_of(target); };
  write_contents(store.strings.size(), rows_of, block);
  write_strings(store.strings, 0, block);
  each_in_order(store, [&](const auto& table) { write_rows(table, BlockType::Table, 0, table.size(), block); });
  write_contents(store.strings.size(), rows_of, block);
}

SegmentWriter::SegmentWriter(Write write) : write_(std::move(write)) { write_header(write_); }

void SegmentWriter::write(const Store& events, const Store& dictionaries) { write_all(events, dictionaries, false); }

void SegmentWriter::end(const Store& events, const Store& dictionaries) {
  write_all(events, dictionaries, true);
  Block block(write_, blocks_);
  write_contents(
      strings_, [&](Target target) { return tables_[static_cast<std::size_t>(target)].rows; }, block);
}

void SegmentWriter::write_all(const Store& events, const Store& dictionaries, bool all) {
  Block block(write_, blocks_);
  write_strings(dictionaries.strings, strings_, block);
  strings_ = dictionaries.strings.size();
  each_in_order(dictionaries, [&]<class T>(const T& table) {
    if constexpr (T::kInfo.role == Role::Dictionary || T::kInfo.role == Role::Info) {
      write_table(table, all);
    }
  });
  each_in_order(events, [&]<class T>(const T& table) {
    if constexpr (T::kInfo.role == Role::Event) {
      const std::size_t before = tables_[static_cast<std::size_t>(T::kInfo.target)].rows;
      write_table(table, all);
      event_rows_ += table.size() - before;
    }
  });
}

template <class T>
void SegmentWriter::write_table(const T& table, bool all) {
  Block block(write_, blocks_);
  Table& written = tables_[static_cast<std::size_t>(T::kInfo.target)];
  const std::size_t chunks = written.checksums.size();
  std::vector<std::size_t> open_chunks;
  const auto look_at = [&](std::size_t chunk) {
    const uint32_t now = checksum(table, chunk, written.rows);
    if (std::exchange(written.checksums[chunk], now) != now) {
      write_rows(table, BlockType::Patch, chunk * kChunkRows, std::min(written.rows, (chunk + 1) * kChunkRows), block);
    }
    if (has_open_rows(table, chunk, written.rows)) {
      open_chunks.push_back(chunk);
    }
  };
  const std::size_t newest = all || chunks < kNewestChunks ? 0 : chunks - kNewestChunks;
  for (const std::size_t chunk : written.open_chunks) {
    if (chunk < newest) {
      look_at(chunk);
    }
  }
  for (std::size_t chunk = newest; chunk < chunks; ++chunk) {
    look_at(chunk);
  }
  if (table.size() > written.rows) {
    write_rows(table, BlockType::Table, written.rows, table.size(), block);
    const std::size_t first = written.rows / kChunkRows;
    written.rows = table.size();
    written.checksums.resize((written.rows + kChunkRows - 1) / kChunkRows);
    for (std::size_t chunk = first; chunk < written.checksums.size(); ++chunk) {
      written.checksums[chunk] = checksum(table, chunk, written.rows);
      if (has_open_rows(table, chunk, written.rows) && (open_chunks.empty() || open_chunks.back() != chunk)) {
        open_chunks.push_back(chunk);
      }
    }
  }
  written.open_chunks = std::move(open_chunks);
}

}  // namespace gpuscope::store
