// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gpuscope/base/file.h"
#include "gpuscope/store/store.h"

// The .gscope file. Little-endian; every part is a multiple of 8 bytes long, padded with zeros.
//
//   file   = FileHeader Contents (Strings | Table)* Contents
//   block  = BlockHeader directory payload
//
// A Contents block says how many rows each table has in the file, and how many strings there are: by the names in its
// directory, u8 length and name each, `rows` counts (u64). It stands first and last, so that either can be lost.
// A Strings block goes on with the string ids where the last one ended: `rows` lengths (u32), then the texts.
// A Table block goes on with the rows of one table. Its directory names the table and the columns that follow:
//   u8 length, table name, then for each column: u8 element width, u8 length, column name.
// Its payload holds each column's `rows` elements, each column padded.
//
// Each block can be read without the others: it has its number in the file, the number of its first row, and checksums.
// A header is found by its magic wherever it lies, so that reading goes on behind what is damaged.
//
// Readers skip tables and columns they do not know and fill in those the file lacks; a change they could not read that
// way raises the major version. Blocks come in an order in which each refers only to itself and to those before it.

namespace gpuscope::store {
namespace gscope {

static_assert(std::endian::native == std::endian::little);

inline constexpr char kFileMagic[8] = {'\x89', 'G', 'S', 'C', 'O', 'P', 'E', '\n'};
inline constexpr uint16_t kMajorVersion = 2;
inline constexpr uint16_t kMinorVersion = 0;
inline constexpr uint32_t kBlockMagic = 0x4B4C4247;  // "GBLK"
// What one damaged byte costs: some 300 kB of a table of events, a hundred names.
inline constexpr std::size_t kBlockRows = 8192;
inline constexpr std::size_t kStringBlockBytes = 4096;
// Rows take at most this many times the bytes that they have in a file, which may hold a single column of one byte.
inline constexpr std::size_t kMostExpansion = 80;
#define GPUSCOPE_IS_BOUNDED(Type, ...) static_assert(Type::kRowBytes <= kMostExpansion);
GPUSCOPE_TABLES(GPUSCOPE_IS_BOUNDED)
#undef GPUSCOPE_IS_BOUNDED

enum class BlockType : uint16_t { Strings = 1, Table = 2, Contents = 3 };
inline constexpr std::string_view kStringsName = "string";  // among the names of tables

struct FileHeader {
  char magic[8];
  uint16_t major;
  uint16_t minor;
  uint32_t header_crc;  // CRC-32C of what stands before it
};
static_assert(sizeof(FileHeader) == 16);

struct BlockHeader {
  uint32_t magic;
  uint16_t type;
  uint16_t major;      // the file's version, should its header be lost
  uint32_t number;     // from 0: a gap tells how many blocks are lost
  uint32_t first_row;  // the number, or string id, of the first of `rows`
  uint32_t rows;
  uint32_t directory_bytes;
  uint64_t payload_bytes;
  uint32_t body_crc;    // CRC-32C of directory and payload
  uint32_t header_crc;  // CRC-32C of what stands before it: a length can be trusted before the body is read
};
static_assert(sizeof(BlockHeader) == 40);

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

}  // namespace gscope

/// Hands a store to `write` as a .gscope file, block by block; what `write` throws passes through. Throws Error for a
/// store that refers to rows it does not have.
void write_gscope(const Store& store, const base::Write& write);

/// What to do with a file that is damaged elsewhere than at its end.
enum class Damage : uint8_t { Refuse, Salvage };

/// Reads a .gscope file; the result is safe for every reader of stores. Time and memory are in proportion to the file's
/// size, whatever stands in it.
///
/// A file that lost its tail opens up to its last whole block, one that is salvaged with all whole blocks. What is lost
/// then stands in the info: `file.truncated_at`, a byte offset; `file.lost_blocks`, how many before that;
/// `file.lost_rows`, a line "TABLE KEPT OF" each, where OF is 0 when it is not known; and `file.cut_references`, how
/// many references to lost rows are none now. Throws CorruptTrace for anything else that is wrong with the content,
/// Error when the system cannot read it.
std::unique_ptr<Store> read_gscope(const std::string& path, Damage damage = Damage::Refuse);

}  // namespace gpuscope::store
