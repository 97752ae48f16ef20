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

// The .gscope file. Little-endian. The length of every part is a multiple of 8 bytes, padded with zeros.
//
//   file   = FileHeader Contents (Strings | Table)* Contents
//   file   = FileHeader (Strings | Table | Patch)* Contents      (written while the recording grew: store/segments.h)
//   block  = BlockHeader directory payload
//
// A Contents block gives the number of rows of each table in the file, and the number of strings. Its directory has the
// names (u8 length and name each), its payload `rows` counts (u64). It is the first and the last block, so that either
// may be lost. The first block of a growing file is another.
//
// A Strings block has the next string ids: `rows` lengths (u32), then the texts.
//
// A Table block has the next rows of one table. Its directory names the table and its columns:
//   u8 length, table name, then for each column: u8 element width, u8 length, column name.
// Its payload holds each column's `rows` elements, each column padded.
//
// A Patch block has new values of rows that are in the file already. Otherwise it is like a Table block.
//
// Each block can be read without the others: it has its number in the file, the number of its first row, and checksums.
// Headers are found by their magic number, so reading continues after damage.
//
// Readers skip unknown tables and columns, and fill in missing ones. Changes that break this raise the major version. A
// block refers only to itself and to earlier blocks.

namespace gpuscope::store {
namespace gscope {

static_assert(std::endian::native == std::endian::little);

inline constexpr char kFileMagic[8] = {'\x89', 'G', 'S', 'C', 'O', 'P', 'E', '\n'};
inline constexpr uint16_t kMajorVersion = 2;
inline constexpr uint16_t kMinorVersion = 1;
inline constexpr uint32_t kBlockMagic = 0x4B4C4247;  // "GBLK"
// The loss for one damaged byte: 300 kB of a table of events, or a hundred names.
inline constexpr std::size_t kBlockRows = 8192;
inline constexpr std::size_t kStringBlockBytes = 4096;
// The maximum ratio of a row's bytes in memory to its bytes in a file, which may hold a single column of one byte.
inline constexpr std::size_t kMostExpansion = 80;
#define GPUSCOPE_IS_BOUNDED(Type, ...) static_assert(Type::kRowBytes <= kMostExpansion);
GPUSCOPE_TABLES(GPUSCOPE_IS_BOUNDED)
#undef GPUSCOPE_IS_BOUNDED

enum class BlockType : uint16_t { Strings = 1, Table = 2, Contents = 3, Patch = 4 };
inline constexpr std::string_view kStringsName = "string";  // among the names of tables

struct FileHeader {
  char magic[8];
  uint16_t major;
  uint16_t minor;
  uint32_t header_crc;  // CRC-32C of the fields before it
};
static_assert(sizeof(FileHeader) == 16);

struct BlockHeader {
  uint32_t magic;
  uint16_t type;
  uint16_t major;      // the file's version, in case its header is lost
  uint32_t number;     // from 0: a gap shows lost blocks
  uint32_t first_row;  // the number, or string id, of the first of `rows`
  uint32_t rows;
  uint32_t directory_bytes;
  uint64_t payload_bytes;
  uint32_t body_crc;    // CRC-32C of directory and payload
  uint32_t header_crc;  // CRC-32C of the fields before it: makes lengths reliable before the body is read
};
static_assert(sizeof(BlockHeader) == 40);

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

}  // namespace gscope

/// Passes a store to `write` as a .gscope file, block by block. Exceptions of `write` pass through. Throws Error for a
/// store that refers to missing rows.
void write_gscope(const Store& store, const base::Write& write);

/// The handling of a file with damage before its end.
enum class Damage : uint8_t { Refuse, Salvage };

/// Reads a .gscope file. The result is safe for every reader of stores. Time and memory are proportional to the file's
/// size, for any content.
///
/// A file without its tail gives all rows up to its last whole block. A salvaged file gives all whole blocks. The info
/// describes the loss: `file.truncated_at`, a byte offset; `file.lost_blocks`, the number of lost blocks before that;
/// `file.lost_rows`, lines "TABLE KEPT OF", where OF is 0 if unknown; and `file.cut_references`, the number of
/// references to lost rows, which are now none.
///
/// Throws CorruptTrace for other invalid content, Error if the system cannot read the file.
std::unique_ptr<Store> read_gscope(const std::string& path, Damage damage = Damage::Refuse);

}  // namespace gpuscope::store
