// SPDX-License-Identifier: Apache-2.0
// Reads recordings that are wrong in every way a program can think of, with checksums that hold. A fixed number by
// default; GPUSCOPE_FUZZ_SECONDS goes on with other ones for so long, GPUSCOPE_FUZZ_SEED begins with a certain one.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/exporters/file_folder.h"
#include "fakes/stores.h"
#include "gpuscope/analysis/instances.h"
#include "gpuscope/analysis/summary.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/file.h"
#include "gpuscope/exporters/export.h"
#include "gpuscope/exporters/frame.h"
#include "gpuscope/store/gscope.h"

// Of the sanitizers' runtime, where the tests are linked with one.
extern "C" {
__attribute__((weak)) int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, std::size_t),
                                                                    void (*)(const volatile void*));
__attribute__((weak)) std::size_t __sanitizer_get_allocated_size(const volatile void*);
__attribute__((weak)) void __sanitizer_set_death_callback(void (*)());
}

namespace gpuscope::exporters {
namespace {

using base::crc32c;
using store::Damage;
using store::Store;
using namespace store::gscope;

/// How much memory was taken at most at a time since begin(); 0 without a sanitizer, which counts.
class PeakMemory {
 public:
  static void begin() {
    static const bool is_counting =
        __sanitizer_install_malloc_and_free_hooks != nullptr && __sanitizer_get_allocated_size != nullptr &&
        __sanitizer_install_malloc_and_free_hooks(
            [](const volatile void*, std::size_t bytes) {
              now_ += static_cast<std::ptrdiff_t>(bytes);
              peak_ = std::max(peak_, now_);
            },
            [](const volatile void* at) {
              now_ -= at == nullptr ? 0 : static_cast<std::ptrdiff_t>(__sanitizer_get_allocated_size(at));
            }) != 0;
    static_cast<void>(is_counting);
    now_ = peak_ = 0;
  }
  static std::ptrdiff_t bytes() { return peak_; }

 private:
  static thread_local std::ptrdiff_t now_;
  static thread_local std::ptrdiff_t peak_;
};
thread_local std::ptrdiff_t PeakMemory::now_ = 0;
thread_local std::ptrdiff_t PeakMemory::peak_ = 0;

// A row of one byte takes kMostExpansion; columns grow by doubling, and are copied meanwhile.
constexpr std::ptrdiff_t kMostBytesPerByte = 3 * kMostExpansion;
constexpr std::ptrdiff_t kMostBytesAnyway = 128 << 10;

struct Block {
  BlockHeader header;
  std::string body;
};

std::vector<Block> blocks_of(const std::string& bytes) {
  std::vector<Block> blocks;
  for (std::size_t at = sizeof(FileHeader); at + sizeof(BlockHeader) <= bytes.size();) {
    Block block;
    std::memcpy(&block.header, bytes.data() + at, sizeof block.header);
    at += sizeof block.header;
    block.body = bytes.substr(at, block.header.directory_bytes + block.header.payload_bytes);
    at += block.body.size();
    blocks.push_back(std::move(block));
  }
  return blocks;
}

using Seeds = std::vector<std::string>;

std::string saved(const Store& store) {
  std::string bytes;
  store::write_gscope(store, [&](std::string_view more) { bytes += more; });
  return bytes;
}

Seeds make_seeds() {
  Seeds seeds{saved(*fakes::make_small_store())};
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GPUSCOPE_TEST_DATA "/gscope")) {
    names.push_back(entry.path().string());
  }
  std::ranges::sort(names);
  for (const std::string& name : names) {
    seeds.push_back(test::read_file(name));
  }
  return seeds;
}

/// One wrong file for each number.
class Mutation {
 public:
  Mutation(const Seeds& seeds, uint64_t number) : seeds_(seeds), random_(number) {}

  std::string make() {
    const std::string& seed = seeds_[below(seeds_.size())];
    std::vector<Block> blocks = blocks_of(seed);
    for (std::size_t left = 1 + below(4); left > 0; --left) {
      change(blocks);
    }
    const bool renumbers = below(2) == 0;
    const bool repairs = below(16) != 0;
    std::string bytes = seed.substr(0, sizeof(FileHeader));
    uint32_t number = 0;
    for (Block& block : blocks) {
      block.header.number = renumbers ? number++ : block.header.number;
      if (repairs) {
        block.header.body_crc = crc32c(block.body.data(), block.body.size());
        block.header.header_crc = crc32c(&block.header, offsetof(BlockHeader, header_crc));
      }
      bytes.append(reinterpret_cast<const char*>(&block.header), sizeof block.header).append(block.body);
    }
    if (below(4) == 0) {
      damage(bytes);
    }
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : static_cast<std::size_t>(random_() % limit); }

  uint64_t number() {
    static constexpr uint64_t kTelling[] = {0,
                                            1,
                                            2,
                                            0x7F,
                                            0xFF,
                                            0x7FFF,
                                            0xFFFF,
                                            0x7FFF'FFFF,
                                            0xFFFF'FFFE,
                                            0xFFFF'FFFF,
                                            (uint64_t{1} << 61) + 1,
                                            (uint64_t{1} << 62) - 1,
                                            uint64_t{1} << 62,
                                            uint64_t{1} << 63,
                                            UINT64_MAX};
    return below(3) == 0 ? below(16) : kTelling[below(std::size(kTelling))];
  }

  void change(std::vector<Block>& blocks) {
    if (blocks.empty()) {
      return;
    }
    const std::size_t at = below(blocks.size());
    const auto place = blocks.begin() + static_cast<std::ptrdiff_t>(at);
    Block& block = blocks[at];
    switch (below(16)) {
      case 0:
        blocks.erase(place);
        break;
      case 1:
        blocks.insert(place, Block(block));
        break;
      case 2:
        std::swap(block, blocks[below(blocks.size())]);
        break;
      case 3: {
        const std::vector<Block> others = blocks_of(seeds_[below(seeds_.size())]);
        blocks.insert(place, others[below(others.size())]);
        break;
      }
      case 4:
        change_header(block.header);
        break;
      case 5:
        resize(block);
        break;
      default:
        change_body(block.body);
    }
  }

  void change_header(BlockHeader& header) {
    const uint64_t value = number();
    switch (below(7)) {
      case 0:
        header.type = static_cast<uint16_t>(below(5));
        break;
      case 1:
        header.number = static_cast<uint32_t>(value);
        break;
      case 2:
        header.first_row = static_cast<uint32_t>(value);
        break;
      case 3:
        header.directory_bytes = static_cast<uint32_t>(value);
        break;
      case 4:
        header.payload_bytes = value;
        break;
      default:
        header.rows = static_cast<uint32_t>(value);
    }
  }

  void resize(Block& block) {
    block.body.resize(below(2 * block.body.size() + 8) / 8 * 8);
    block.header.directory_bytes =
        std::min<uint32_t>(block.header.directory_bytes, static_cast<uint32_t>(block.body.size()));
    block.header.payload_bytes = block.body.size() - block.header.directory_bytes;
  }

  void change_body(std::string& body) {
    if (body.size() < sizeof(uint64_t)) {
      return;
    }
    const std::size_t width = std::size_t{1} << below(4);
    const std::size_t at = below(body.size() / width) * width;
    const uint64_t value = below(4) == 0 ? random_() : number();
    std::memcpy(body.data() + at, &value, width);
  }

  void damage(std::string& bytes) {
    const std::size_t at = below(bytes.size());
    switch (below(4)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        bytes.erase(at, below(64));
        break;
      case 2:
        bytes.insert(at, below(64), static_cast<char>(below(256)));
        break;
      default:
        bytes[at] = static_cast<char>(bytes[at] ^ static_cast<char>(1 << below(8)));
    }
  }

  const Seeds& seeds_;
  std::mt19937_64 random_;
};

/// Whether rows that refer to rows of their own table, as regions do to those around them, come to an end.
bool chains_end(const Store& store) {
  bool good = true;
  store.each_table([&](const auto& table) {
    table.each_column([&](const store::ColumnInfo& info, const auto& values) {
      if (info.meaning.target != table.kInfo.target || info.meaning.target == store::Target::Histograms) {
        return;  // the number of a histogram is no row
      }
      for (std::size_t row = 0; row < values.size(); ++row) {
        std::size_t left = values.size();
        for (auto at = static_cast<uint64_t>(values[row]); at != store::kNone && left != 0; --left) {
          at = static_cast<uint64_t>(values[static_cast<std::size_t>(at)]);
        }
        good = good && left != 0;
      }
    });
  });
  return good;
}

void use(const Store& store) {
  EXPECT_TRUE(chains_end(store));
  const auto ignore = [](std::string_view) {};
  try {
    write_chrome(store, ignore);
    write_perfetto(store, ignore);
  } catch (const base::InvalidArgument&) {  // of aggregate mode
  }
  static_cast<void>(analysis::summarize(store));
  static_cast<void>(analysis::nest_functions(store));
  for (const store::TableInfo& table : store::kTables) {
    static_cast<void>(make_frame(store, table.name));
  }
}

/// Whether the file opens.
bool try_file(const std::string& path, std::size_t size, Damage damage) {
  PeakMemory::begin();
  std::unique_ptr<Store> store;
  try {
    store = store::read_gscope(path, damage);
  } catch (const base::CorruptTrace&) {
  }
  EXPECT_LE(PeakMemory::bytes(), kMostBytesPerByte * static_cast<std::ptrdiff_t>(size) + kMostBytesAnyway);
  if (store == nullptr) {
    return false;
  }
  use(*store);
  test::write_file(path + ".copy", saved(*store));  // what was salvaged is a recording like others
  static_cast<void>(store::read_gscope(path + ".copy"));
  return true;
}

uint64_t variable(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

uint64_t current = 0;  // for the sanitizers' last words

TEST(GscopeFuzz, WrongFilesAreRefusedOrSafeForEveryReader) {
  const auto seconds = std::chrono::seconds(variable("GPUSCOPE_FUZZ_SECONDS", 0));
  const uint64_t first = variable("GPUSCOPE_FUZZ_SEED", seconds.count() != 0 ? std::random_device{}() : 0);
  const auto end = std::chrono::steady_clock::now() + seconds;
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback([] { std::fprintf(stderr, "GPUSCOPE_FUZZ_SEED=%ju\n", uintmax_t{current}); });
  }
  const test::Folder folder;
  const std::string path = folder / "wrong.gscope";
  const Seeds seeds = make_seeds();
  uint64_t opened = 0;
  uint64_t salvaged = 0;
  for (current = first; current < first + 100 || std::chrono::steady_clock::now() < end; ++current) {
    const std::string bytes = Mutation(seeds, current).make();
    test::write_file(path, bytes);
    const bool opens = try_file(path, bytes.size(), Damage::Refuse);
    const bool is_salvaged = try_file(path, bytes.size(), Damage::Salvage);
    EXPECT_LE(opens, is_salvaged);
    ASSERT_FALSE(HasFailure()) << "GPUSCOPE_FUZZ_SEED=" << current;
    opened += opens ? 1 : 0;
    salvaged += is_salvaged ? 1 : 0;
  }
  std::printf("%ju wrong files from seed %ju on: %ju opened, %ju with salvage\n", uintmax_t{current - first},
              uintmax_t{first}, uintmax_t{opened}, uintmax_t{salvaged});
  EXPECT_GT(opened, 0U);
  EXPECT_GT(salvaged, opened);
}

}  // namespace
}  // namespace gpuscope::exporters
