// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gpuscope/base/file.h"
#include "gpuscope/store/store.h"

// The .gscope file. Little-endian; every part is a multiple of 8 bytes long, padded with zeros.
//
//   file   = FileHeader block* End
//   block  = BlockHeader directory payload
//
// A Strings block goes on with the string ids where the last one ended: `rows` lengths (u32), then the texts.
// A Table block goes on with the rows of one table. Its directory names the table and the columns that follow:
//   u8 length, table name, then for each column: u8 element width, u8 length, column name.
// Its payload holds each column's `rows` elements, each column padded.
// An End block, empty, says that nothing is missing.
//
// Readers skip tables and columns they do not know and fill in those the file lacks; a change they could not read that
// way raises the major version. Blocks come in an order in which each refers only to itself and to those before it.

namespace gpuscope::store {
namespace gscope {

static_assert(std::endian::native == std::endian::little);

inline constexpr char kFileMagic[8] = {'\x89', 'G', 'S', 'C', 'O', 'P', 'E', '\n'};
inline constexpr uint16_t kMajorVersion = 1;
inline constexpr uint16_t kMinorVersion = 0;
inline constexpr uint32_t kBlockMagic = 0x4B4C4247;  // "GBLK"
inline constexpr uint16_t kBlockVersion = 1;
inline constexpr std::size_t kBlockRows = 65536;

enum class BlockType : uint16_t { Strings = 1, Table = 2, End = 3 };

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
  uint16_t version;
  uint32_t rows;
  uint32_t directory_bytes;
  uint64_t payload_bytes;
  uint32_t body_crc;    // CRC-32C of directory and payload
  uint32_t header_crc;  // CRC-32C of what stands before it: a length can be trusted before the body is read
};
static_assert(sizeof(BlockHeader) == 32);

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

}  // namespace gscope

/// Hands a store to `write` as a .gscope file, block by block; what `write` throws passes through. Throws Error for a
/// store that refers to rows it does not have.
void write_gscope(const Store& store, const base::Write& write);

/// Reads a .gscope file; the result is safe for every reader of stores.
///
/// A file that lost its tail opens up to its last whole block and says so in info `file.truncated_at` (a byte offset).
/// Throws CorruptTrace for anything else that is wrong with the content, Error when the system cannot read it.
std::unique_ptr<Store> read_gscope(const std::string& path);

}  // namespace gpuscope::store
