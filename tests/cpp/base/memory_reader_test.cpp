// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/memory_reader.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace gpuscope::base {
namespace {

constexpr std::size_t kPage = 4096;

/// The reader gives up the files of its thread.
template <class F>
void with_reader(F&& use) {
  std::thread([&] {
    MemoryReader reader;
    ASSERT_TRUE(reader.open());
    use(reader);
  }).join();
}

uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

TEST(MemoryReader, CopiesPiecesOneBehindTheOther) {
  with_reader([](MemoryReader& reader) {
    const std::array<uint32_t, 4> values{1, 2, 3, 4};
    const std::array pieces{MemoryReader::Piece{address_of(&values[2]), 8},
                            MemoryReader::Piece{address_of(&values), 4}};
    ASSERT_EQ(reader.copy(pieces), 2U);
    std::array<uint32_t, 3> copied{};
    std::memcpy(copied.data(), reader.data(), sizeof(copied));
    EXPECT_EQ(copied, (std::array<uint32_t, 3>{3, 4, 1}));
  });
}

TEST(MemoryReader, ItsFileCannotBeCut) {
  with_reader([](MemoryReader&) {
    for (int number = 0; number < 64; ++number) {  // of this thread
      std::array<char, 64> name{};
      const std::string link = "/proc/thread-self/fd/" + std::to_string(number);
      if (readlink(link.c_str(), name.data(), name.size() - 1) > 0 && std::strstr(name.data(), "memfd:gpuscope")) {
        EXPECT_NE(ftruncate(number, 0), 0);
      }
    }
  });
}

TEST(MemoryReader, WhatIsNotThereIsNotCopied) {
  auto* pages =
      static_cast<char*>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  munmap(pages + kPage, kPage);
  with_reader([pages](MemoryReader& reader) {
    const auto copied = [&](uintptr_t address, uint32_t bytes) {
      const std::array pieces{MemoryReader::Piece{address_of(pages), 8}, MemoryReader::Piece{address, bytes}};
      return reader.copy(pieces);
    };
    EXPECT_EQ(copied(address_of(pages) + 16, 16), 2U);
    EXPECT_EQ(copied(address_of(pages) + kPage, 8), 1U);
    EXPECT_EQ(copied(address_of(pages) + kPage - 8, 16), 1U) << "half of a piece is none";
    for (const uintptr_t address : {uintptr_t{0}, uintptr_t{8}, UINTPTR_MAX - 7, uintptr_t{1} << 47, uintptr_t{1} << 48,
                                    uintptr_t{0xDDDDDDDDDDDDDDDD}, uintptr_t{0xFFFF800000000000}}) {
      EXPECT_EQ(copied(address, 8), 1U) << address;
    }
    uint64_t value = 0;
    EXPECT_FALSE(reader.read(8, value));
  });
  munmap(pages, kPage);
}

TEST(MemoryReader, MemoryMayGoWhileItIsCopied) {
  std::atomic<char*> shared{nullptr};
  std::atomic<bool> ends{false};
  std::thread mapper([&] {
    while (!ends) {
      auto* page = static_cast<char*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      shared = page;
      munmap(page, kPage);
    }
  });
  with_reader([&](MemoryReader& reader) {
    for (int round = 0; round < 20'000; ++round) {
      const std::array pieces{MemoryReader::Piece{address_of(shared), 64}};
      EXPECT_LE(reader.copy(pieces), 1U);
    }
  });
  ends = true;
  mapper.join();
}

TEST(MemoryReader, TakesNoMoreThanItHasRoomFor) {
  with_reader([](MemoryReader& reader) {
    const std::vector<char> much(MemoryReader::kMaxBytes, 'x');
    const std::array two{MemoryReader::Piece{address_of(much.data()), MemoryReader::kMaxBytes},
                         MemoryReader::Piece{address_of(much.data()), 1}};
    EXPECT_EQ(reader.copy(two), 1U);
    const std::vector<MemoryReader::Piece> many(MemoryReader::kMaxPieces + 5, {address_of(much.data()), 1});
    EXPECT_EQ(reader.copy(many), MemoryReader::kMaxPieces);
    EXPECT_EQ(reader.copy({}), 0U);
  });
}

TEST(MemoryReader, AnUnopenedOneCopiesNothing) {
  MemoryReader reader;
  const int value = 1;
  const std::array pieces{MemoryReader::Piece{address_of(&value), sizeof(value)}};
  EXPECT_EQ(reader.copy(pieces), 0U);
}

int count_files() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) {
    ++count;
  }
  closedir(folder);
  return count;
}

TEST(MemoryReader, TheProgramsFilesAreAsTheyWere) {
  const int before = count_files();
  with_reader([&](MemoryReader&) { std::thread([&] { SUCCEED(); }).join(); });
  EXPECT_EQ(count_files(), before);
}

}  // namespace
}  // namespace gpuscope::base
