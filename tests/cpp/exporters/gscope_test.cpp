// SPDX-License-Identifier: Apache-2.0

#include "gpuscope/store/gscope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/exporters/file_folder.h"
#include "fakes/stores.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/file.h"
#include "gpuscope/exporters/export.h"

namespace gpuscope::exporters {
namespace {

using base::crc32c;
using store::read_gscope;
using store::Store;
using namespace store::gscope;
using test::Folder;
using test::read_file;
using test::write_file;
using ::testing::HasSubstr;

class Gscope : public ::testing::Test {
 protected:
  std::string saved(const Store& store) {
    std::string bytes;
    write_gscope(store, [&](std::string_view more) { bytes += more; });
    return bytes;
  }
  std::unique_ptr<Store> load(const std::string& bytes, store::Damage damage = store::Damage::Refuse) {
    write_file(path_, bytes);
    return read_gscope(path_, damage);
  }
  std::unique_ptr<Store> salvage(const std::string& bytes) { return load(bytes, store::Damage::Salvage); }
  std::string failure(const std::string& bytes) {
    try {
      load(bytes);
    } catch (const base::CorruptTrace& error) {
      return error.what();
    }
    return "it opened";
  }

  Folder folder_;
  std::string path_ = folder_ / "a.gscope";
};

void expect_same(const Store& a, const Store& b) {
  ASSERT_EQ(a.strings.size(), b.strings.size());
  for (uint32_t id = 0; id < a.strings.size(); ++id) {
    EXPECT_EQ(a.strings[id], b.strings[id]);
  }
  Store::each_pair(a, b, [&]<class Table>(const Table& left, const Table& right) {
    ASSERT_EQ(left.size(), right.size()) << Table::kInfo.name;
    Table::each_pair(left, right, [&](const store::ColumnInfo& column, const auto& values, const auto& expected) {
      EXPECT_TRUE(std::ranges::equal(values, expected)) << Table::kInfo.name << "." << column.name;
    });
  });
}

/// Where each block begins.
std::vector<std::size_t> blocks_in(const std::string& bytes) {
  std::vector<std::size_t> blocks;
  for (std::size_t at = sizeof(FileHeader); at < bytes.size();) {
    blocks.push_back(at);
    BlockHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    at += sizeof header + header.directory_bytes + header.payload_bytes;
  }
  return blocks;
}

void export_everything(const Store& store) {
  std::size_t bytes = 0;
  const auto count = [&](std::string_view piece) { bytes += piece.size(); };
  write_chrome(store, count);
  write_perfetto(store, count);
  EXPECT_GT(bytes, 0U);
}

TEST_F(Gscope, KeepsEveryTableAndString) {
  const auto store = fakes::make_small_store();
  store->each_table([](const auto& table) { EXPECT_GT(table.size(), 0U) << table.kInfo.name; });
  expect_same(*store, *load(saved(*store)));
}

TEST_F(Gscope, KeepsMoreRowsThanFitIntoABlock) {
  const auto store = fakes::make_large_store(2 * kBlockRows + 17);
  expect_same(*store, *load(saved(*store)));
}

TEST_F(Gscope, KeepsStringsOfAnyContent) {
  fakes::StoreBuilder make;
  make.id(std::string_view("a\0b", 3));
  make.id("\xFF\xFE");
  make.id(std::string(3'000'000, 'x'));
  make.id("after");
  expect_same(make.store(), *load(saved(make.store())));
}

TEST_F(Gscope, KeepsAnEmptyStore) {
  const Store store;
  expect_same(store, *load(saved(store)));
}

TEST_F(Gscope, WholeFileIsNotTruncated) {
  EXPECT_EQ(load(saved(*fakes::make_small_store()))->find_info("file.truncated_at"), "");
}

TEST_F(Gscope, OpensUpToTheLastWholeBlockWhereverItIsCut) {
  const std::string bytes = saved(*fakes::make_small_store());
  std::size_t last_rows = 0;
  for (std::size_t length = sizeof(FileHeader); length < bytes.size(); ++length) {
    const auto store = load(bytes.substr(0, length));
    std::size_t rows = 0;
    store->each_table([&](const auto& table) { rows += table.size(); });
    EXPECT_GE(rows + 1, last_rows) << length;  // the note of the cut is a row of info itself
    last_rows = rows;
    const std::string at(store->find_info("file.truncated_at"));
    ASSERT_FALSE(at.empty()) << length;
    EXPECT_LE(std::stoul(at), length);
    export_everything(*store);
  }
}

TEST_F(Gscope, SaysSoWhenTheFileHeaderIsCut) {
  const std::string bytes = saved(*fakes::make_small_store());
  EXPECT_THAT(failure(""), HasSubstr("the file is empty at byte 0"));
  for (std::size_t length = 1; length < sizeof(FileHeader); ++length) {
    EXPECT_THAT(failure(bytes.substr(0, length)), HasSubstr("ends inside its header")) << length;
  }
}

TEST_F(Gscope, DamageBeforeTheTailIsReportedWithItsPlace) {
  const auto store = fakes::make_small_store();
  const std::string bytes = saved(*store);
  for (std::size_t at = sizeof(FileHeader); at < blocks_in(bytes).back(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    try {
      load(damaged);
      ADD_FAILURE() << "byte " << at << " makes no difference";
    } catch (const base::CorruptTrace& error) {
      EXPECT_EQ(error.path(), path_);
      EXPECT_LE(error.offset(), at);
      EXPECT_GE(error.offset(), sizeof(FileHeader));
      EXPECT_THAT(error.what(), HasSubstr("load(path, salvage=True)"));
    }
  }
}

TEST_F(Gscope, DamageInTheTailCostsTheTailOnly) {
  const auto store = fakes::make_small_store();
  std::string bytes = saved(*store);
  const std::size_t end_block = blocks_in(bytes).back();
  bytes[end_block + 5] ^= 1;
  const auto loaded = load(bytes);
  EXPECT_EQ(loaded->find_info("file.truncated_at"), std::to_string(end_block));
  EXPECT_EQ(loaded->kernel.size(), store->kernel.size());
}

std::size_t rows_of(const Store& store) {
  std::size_t rows = 0;
  store.each_table([&](const auto& table) { rows += table.size(); });
  return rows;
}

TEST_F(Gscope, WholeFileIsSalvagedAsItIs) {
  const auto store = fakes::make_large_store(2 * kBlockRows + 17);
  expect_same(*store, *salvage(saved(*store)));
}

TEST_F(Gscope, EveryDamagedByteCostsItsBlockAndWhatNeedsItOnly) {
  const std::string bytes = saved(*fakes::make_small_store());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const auto store = salvage(damaged);
    ASSERT_EQ(find_bad_reference(*store), "") << at;
    if (at % 64 == 0) {  // so that it does not take minutes
      export_everything(*store);
    }
    if (at < sizeof(FileHeader)) {
      EXPECT_EQ(store->find_info("file.lost_blocks"), "") << at;
    } else if (at < blocks_in(bytes).back()) {
      EXPECT_EQ(store->find_info("file.lost_blocks"), "1") << at;
    }
  }
}

TEST_F(Gscope, SalvageGoesAsFarAsACutFileDoes) {
  const std::string bytes = saved(*fakes::make_small_store());
  for (std::size_t length = sizeof(FileHeader); length < bytes.size(); length += 13) {
    const auto opened = load(bytes.substr(0, length));
    expect_same(*opened, *salvage(bytes.substr(0, length)));
  }
}

TEST_F(Gscope, LostRowsAreLeftOutAndReferencesToTheOthersHold) {
  constexpr uint32_t kKernels = 3 * kBlockRows;
  const auto whole = fakes::make_large_store(kKernels);
  std::string bytes = saved(*whole);
  std::size_t block = 0;  // the second of regions
  for (const std::size_t at : blocks_in(bytes)) {
    BlockHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    if (bytes.compare(at + sizeof header, 7, "\x06region") == 0 && header.first_row == 0) {
      block = at;
    }
  }
  bytes[block + 200] ^= 1;
  const auto store = salvage(bytes);
  const auto lost = static_cast<uint32_t>(std::min<std::size_t>(kBlockRows, whole->region.size()));
  EXPECT_EQ(store->region.size(), whole->region.size() - lost);
  EXPECT_EQ(store->kernel.size(), kKernels);
  std::size_t cut = 0;
  for (uint32_t row = 0; row < kKernels; ++row) {
    const uint32_t region = whole->kernel.region[row];
    ASSERT_EQ(store->kernel.region[row], region < lost ? store::kNone : region - lost) << row;
    ASSERT_EQ(store->api.region[row], store->kernel.region[row]) << row;
    cut += region < lost ? 2 : 0;
  }
  EXPECT_EQ(store->find_info("file.lost_blocks"), "1");
  EXPECT_EQ(store->find_info("file.cut_references"), std::to_string(cut));
  EXPECT_EQ(store->find_info("file.lost_rows"),
            "region " + std::to_string(store->region.size()) + " " + std::to_string(whole->region.size()));
}

TEST_F(Gscope, WhatIsSalvagedCanBeSaved) {
  std::string bytes = saved(*fakes::make_small_store());
  bytes[blocks_in(bytes)[4] + 3] ^= 1;
  const auto store = salvage(bytes);
  const std::size_t rows = rows_of(*store);
  EXPECT_EQ(rows_of(*load(saved(*store))), rows);
}

TEST_F(Gscope, WrongValuesBehindALostBlockCostNoMoreThanWithoutSalvage) {
  const std::string bytes = saved(*fakes::make_small_store());
  const std::vector<std::size_t> blocks = blocks_in(bytes);
  std::size_t without_them = 0;
  for (std::size_t block = 3; block + 1 < blocks.size(); ++block) {
    for (std::size_t at = sizeof(BlockHeader); at < blocks[block + 1] - blocks[block]; at += 3) {
      std::string wrong = bytes.substr(blocks[block], blocks[block + 1] - blocks[block]);
      wrong[at] = static_cast<char>(~wrong[at]);
      BlockHeader header;
      std::memcpy(&header, wrong.data(), sizeof header);
      header.body_crc = crc32c(wrong.data() + sizeof header, wrong.size() - sizeof header);
      header.header_crc = crc32c(&header, offsetof(BlockHeader, header_crc));
      std::memcpy(wrong.data(), &header, sizeof header);
      const std::string cut = bytes.substr(0, blocks[block - 1]) + wrong;
      const auto opened = load(cut);  // the block that does not belong there is its tail
      const auto salvaged = salvage(cut);
      ASSERT_GE(rows_of(*salvaged), rows_of(*opened)) << block << " " << at;
      without_them += salvaged->find_info("file.lost_blocks").empty() ? 1 : 0;
    }
  }
  EXPECT_GT(without_them, 10U);
}

TEST_F(Gscope, RowsWithoutBytesAreRefused) {
  std::string bytes = saved(*fakes::make_small_store());
  const std::size_t block = blocks_in(bytes)[2];
  BlockHeader header;
  std::memcpy(&header, bytes.data() + block, sizeof header);
  ASSERT_EQ(header.type, static_cast<uint16_t>(BlockType::Table));
  const std::string name = bytes.substr(block + sizeof header, 1 + bytes[block + sizeof header]);
  std::string body = name;
  body.resize(padded(body.size()));
  header.rows = 3'000'000'000;
  header.directory_bytes = static_cast<uint32_t>(body.size());
  header.payload_bytes = 0;
  header.body_crc = crc32c(body.data(), body.size());
  header.header_crc = crc32c(&header, offsetof(BlockHeader, header_crc));
  bytes.replace(block, blocks_in(bytes)[3] - block,
                std::string(reinterpret_cast<const char*>(&header), sizeof header) + body);
  EXPECT_THAT(failure(bytes), HasSubstr("a block's list of columns is damaged"));
}

// What checksums cannot catch: a file whose writer was wrong, or hostile.
TEST_F(Gscope, WrongContentWithRightChecksumsIsRefusedOrHarmless) {
  const std::string bytes = saved(*fakes::make_small_store());
  std::size_t refused = 0;
  for (const std::size_t block : blocks_in(bytes)) {
    BlockHeader header;
    std::memcpy(&header, bytes.data() + block, sizeof header);
    const std::size_t body = block + sizeof header;
    const std::size_t end = body + header.directory_bytes + header.payload_bytes;
    for (std::size_t at = body; at < end; ++at) {
      for (const int flip : {0x01, 0xFF}) {
        std::string wrong = bytes;
        wrong[at] = static_cast<char>(wrong[at] ^ flip);
        BlockHeader fixed = header;
        fixed.body_crc = crc32c(wrong.data() + body, end - body);
        fixed.header_crc = crc32c(&fixed, offsetof(BlockHeader, header_crc));
        std::memcpy(wrong.data() + block, &fixed, sizeof fixed);
        try {
          export_everything(*load(wrong));
        } catch (const base::Error&) {
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 100U);
}

TEST_F(Gscope, NamesBothVersionsOfANewerFormat) {
  std::string bytes = saved(*fakes::make_small_store());
  FileHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.major = kMajorVersion + 1;
  header.minor = 3;
  header.header_crc = crc32c(&header, offsetof(FileHeader, header_crc));
  std::memcpy(bytes.data(), &header, sizeof header);
  EXPECT_THAT(failure(bytes), HasSubstr("format version 3.3 and this gpuscope reads 2.x"));
}

TEST_F(Gscope, SaysWhatIsNoGscopeFile) {
  EXPECT_THAT(failure("{\"traceEvents\": []}"), HasSubstr("this is no .gscope file"));
}

TEST_F(Gscope, SaysWhyTheSystemCannotOpenAFile) {
  EXPECT_THROW(
      {
        try {
          read_gscope(folder_ / "missing.gscope");
        } catch (const base::Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("missing.gscope: No such file or directory"));
          throw;
        }
      },
      base::Error);
  EXPECT_THROW(read_gscope(folder_.path().string()), base::Error);
}

TEST_F(Gscope, InconsistentStoreIsNotWritten) {
  fakes::StoreBuilder broken;
  broken.track(7);
  broken.kernel(99, 0, 1);
  bool is_written = false;
  EXPECT_THROW(write_gscope(broken.store(), [&](std::string_view) { is_written = true; }), base::Error);
  EXPECT_FALSE(is_written);
}

TEST_F(Gscope, FailedWriteEndsIt) {
  const auto fail = [](std::string_view) { throw base::Error("the disk is full"); };
  EXPECT_THROW(write_gscope(*fakes::make_small_store(), fail), base::Error);
}

}  // namespace
}  // namespace gpuscope::exporters
