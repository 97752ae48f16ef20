// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/buffers.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "fakes/cupti_records.h"

namespace gpuscope::activity {
namespace {

bool is_zero(const uint8_t* data, std::size_t bytes) {
  return std::all_of(data, data + bytes, [](uint8_t byte) { return byte == 0; });
}

void release_completed(BufferPool& pool) {
  for (CompletedBuffers buffers(pool); buffers.first() != nullptr; buffers.release_first()) {
  }
}

std::vector<uint8_t*> take_many(BufferPool& pool, unsigned count) {
  std::vector<uint8_t*> taken;
  std::generate_n(std::back_inserter(taken), count, [&] { return pool.take(); });
  return taken;
}

TEST(BufferPool, GivesDistinctZeroedBuffers) {
  BufferPool pool;
  std::set<uint8_t*> taken;
  for (uint8_t* data : take_many(pool, 4)) {
    ASSERT_NE(data, nullptr);
    EXPECT_TRUE(is_zero(data, BufferPool::kBufferBytes));
    taken.insert(data);
  }
  EXPECT_EQ(taken.size(), 4U);
  EXPECT_EQ(pool.lent(), 4U);
  EXPECT_EQ(pool.ready(), 0U);
  std::ranges::for_each(taken, &std::free);
}

TEST(BufferPool, LendsMemoryThatAnotherToolMayFree) {
  BufferPool pool;
  std::set<const void*> addresses;  // malloc gives the same one again, AddressSanitizer's does not
  for (int count = 0; count < 3; ++count) {
    uint8_t* data = pool.take();
    addresses.insert(data);
    std::free(data);
    EXPECT_EQ(pool.lent(), addresses.size());
    EXPECT_EQ(pool.count(), addresses.size());
  }
}

TEST(BufferPool, HasABufferForThousandsOfThreadsAtOneMoment) {
  BufferPool pool;
  const std::vector<uint8_t*> taken = take_many(pool, 4000);
  EXPECT_EQ(pool.exhausted(), 0U);
  for (const uint8_t* data : taken) {
    pool.complete(nullptr, 0, data, 216);
  }
  EXPECT_EQ(pool.foreign(), 0U);
  EXPECT_EQ(pool.lent(), 0U);
  EXPECT_EQ(pool.unread(), 4000U);
}

TEST(BufferPool, GrowsToItsCapAndCountsWhatItThenRefuses) {
  BufferPool pool;
  const std::vector<uint8_t*> taken = take_many(pool, BufferPool::kMaxBuffers);
  EXPECT_EQ(pool.exhausted(), 0U);
  EXPECT_EQ(pool.take(), nullptr);
  EXPECT_EQ(pool.take(), nullptr);
  EXPECT_EQ(pool.exhausted(), 2U);
  EXPECT_EQ(pool.count(), BufferPool::kMaxBuffers);
  std::ranges::for_each(taken, &std::free);
}

TEST(BufferPool, GivesAgainWhatCameBackAfterTheCap) {
  BufferPool pool;
  const std::vector<uint8_t*> taken = take_many(pool, BufferPool::kMaxBuffers);
  for (const uint8_t* data : taken) {
    pool.complete(nullptr, 0, data, 216);
  }
  release_completed(pool);
  const std::vector<uint8_t*> again = take_many(pool, BufferPool::kMaxBuffers);
  EXPECT_EQ(pool.exhausted(), 0U);
  std::ranges::for_each(again, &std::free);
}

TEST(BufferPool, FreesWhatABurstLeavesBehind) {
  BufferPool pool;
  for (const uint8_t* data : take_many(pool, 4000)) {
    pool.complete(nullptr, 0, data, 216);
  }
  release_completed(pool);
  EXPECT_LE(pool.count(), 512U);
  EXPECT_EQ(pool.ready(), pool.count());
  EXPECT_EQ(pool.unread(), 0U);
}

/// How many of the pages that lie in a buffer the system has memory for.
std::size_t resident_pages(uint8_t* data) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + BufferPool::kBufferBytes) / page * page;
  std::vector<unsigned char> resident((end - begin) / page);
  if (mincore(reinterpret_cast<void*>(begin), end - begin, resident.data()) != 0) {
    return 0;  // it is not mapped any more
  }
  return static_cast<std::size_t>(std::ranges::count_if(resident, [](unsigned char each) { return (each & 1U) != 0; }));
}

TEST(BufferPool, GivesTheSystemBackWhatABurstTook) {
  BufferPool pool;
  std::vector<uint8_t*> taken;
  std::vector<std::unique_ptr<char[]>> between;  // malloc gives nothing back that lies before it
  while (taken.size() != BufferPool::kMaxBuffers) {
    between.emplace_back(new char[64]);
    for (uint8_t* data : take_many(pool, 8)) {
      std::memset(data, 1, BufferPool::kBufferBytes);
      taken.push_back(data);
    }
  }
  const auto pages = [&taken] {
    std::size_t count = 0;
    for (uint8_t* data : taken) {
      count += resident_pages(data);
    }
    return count;
  };
  const std::size_t before = pages();
  ASSERT_GE(before, taken.size() * 3);
  for (uint8_t* data : taken) {
    pool.complete(nullptr, 0, data, BufferPool::kBufferBytes);
  }
  release_completed(pool);
  EXPECT_LE(pages(), before / 4);
}

TEST(BufferPool, HandsBackCompletedBuffersOldestFirst) {
  BufferPool pool;
  const std::vector<uint8_t*> order = take_many(pool, 3);
  for (const uint8_t* data : order) {
    pool.complete(nullptr, 0, data, 8);
  }
  std::vector<uint8_t*> completed;
  for (CompletedBuffers buffers(pool); buffers.first() != nullptr; buffers.release_first()) {
    completed.push_back(buffers.first()->data);
  }
  EXPECT_EQ(completed, order);
  EXPECT_EQ(pool.take_completed(), nullptr);
}

TEST(BufferPool, CountsForeignBuffersAndLeavesThemAlone) {
  BufferPool pool;
  uint8_t foreign[16] = {1};
  pool.complete(nullptr, 0, foreign, sizeof(foreign));
  EXPECT_EQ(pool.foreign(), 1U);
  EXPECT_EQ(pool.take_completed(), nullptr);
}

TEST(BufferPool, TakesABufferBackOnlyOnce) {
  BufferPool pool;
  const uint8_t* data = pool.take();
  pool.complete(nullptr, 0, data, 8);
  pool.complete(nullptr, 0, data, 8);
  const CompletedBuffers completed(pool);
  ASSERT_NE(completed.first(), nullptr);
  EXPECT_EQ(completed.first()->next, nullptr);
}

TEST(BufferPool, ZeroesWhatWasWrittenOnRelease) {
  BufferPool pool;
  uint8_t* data = pool.take();
  std::fill_n(data, 100, uint8_t{0xFF});
  pool.complete(nullptr, 0, data, 100);
  pool.release(pool.take_completed());
  EXPECT_EQ(pool.take(), data);
  EXPECT_TRUE(is_zero(data, 100));
  std::free(data);
}

TEST(BufferPool, KeepsTheValidBytesWithinTheBuffer) {
  BufferPool pool;
  pool.complete(nullptr, 0, pool.take(), SIZE_MAX);
  const CompletedBuffers completed(pool);
  EXPECT_EQ(completed.first()->valid, BufferPool::kBufferBytes);
}

TEST(BufferPool, LosesNothingBetweenManyThreads) {
  constexpr int kThreads = 4;
  constexpr uint64_t kRounds = 5000;
  BufferPool pool;
  std::atomic<int> running{kThreads};
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> written{0};  // before it was given
  std::vector<std::thread> writers;
  for (int number = 0; number < kThreads; ++number) {
    writers.emplace_back([&] {
      for (uint64_t round = 1; round <= kRounds; ++round) {
        auto* data = reinterpret_cast<uint64_t*>(pool.take());
        for (; data == nullptr; data = reinterpret_cast<uint64_t*>(pool.take())) {
          std::this_thread::yield();  // the cap: the writers are far ahead of the reader
        }
        written += *data;
        *data = round;
        sent += round;
        pool.complete(nullptr, 0, reinterpret_cast<uint8_t*>(data), sizeof(round));
      }
      --running;
    });
  }
  uint64_t received = 0;
  const auto collect = [&] {
    for (CompletedBuffers buffers(pool); buffers.first() != nullptr; buffers.release_first()) {
      received += *reinterpret_cast<uint64_t*>(buffers.first()->data.load());
    }
  };
  while (running != 0) {
    collect();
  }
  for (std::thread& writer : writers) {
    writer.join();
  }
  collect();
  EXPECT_EQ(received, sent);
  EXPECT_EQ(written, 0U);
  EXPECT_EQ(pool.foreign(), 0U);
  EXPECT_EQ(pool.lent(), 0U);
}

using fakes::Record;

int questions = 0;

Walker make_walker() {
  questions = 0;
  driver::Cupti table;
  table.get_next_record = [](uint8_t* buffer, size_t valid, void** record) {
    ++questions;
    return fakes::next_record(buffer, valid, record);
  };
  return Walker(table);
}

// A block of exactly these bytes, so that a read past them is seen.
struct Block {
  explicit Block(const std::vector<uint8_t>& bytes, std::size_t size)
      : data(static_cast<uint8_t*>(::operator new(size))), valid(size) {
    std::copy_n(bytes.begin(), size, data);
  }
  ~Block() { ::operator delete(data); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  uint8_t* data;
  std::size_t valid;
};

std::vector<Record> mixed_records() {
  return {fakes::kernel_record({.correlation = 1}),
          fakes::memcpy_record({.correlation = 2}, 64),
          fakes::peer_record({.correlation = 3}, 64, 0, 1),
          fakes::memset_record({.correlation = 4}, 64),
          fakes::api_record(kDriver, 307, {.correlation = 5}, 1),
          fakes::api_record(kRuntime, 211, {.correlation = 6}, 1),
          fakes::sync_record({.correlation = 7}, 3),
          fakes::graph_record({.correlation = 8}),
          fakes::memory_record({.correlation = 10, .bytes = 64}),
          fakes::pool_record(store::PoolOperation::Created, {.correlation = 11}),
          fakes::kernel_record({.correlation = 9})};
}

std::vector<uint32_t> kinds_in(Walker& walker, const std::vector<uint8_t>& bytes, std::size_t* left = nullptr) {
  const Block block(bytes, bytes.size());
  std::vector<uint32_t> kinds;
  const std::size_t rest =
      walker.walk(block.data, block.valid, [&](uint32_t kind, const uint8_t*) { kinds.push_back(kind); });
  if (left != nullptr) {
    *left = rest;
  }
  return kinds;
}

TEST(Walker, VisitsRecordsOfEveryKindInOrder) {
  Walker walker = make_walker();
  std::vector<uint32_t> expected;
  for (const Record& record : mixed_records()) {
    expected.push_back(record.kind());
  }
  EXPECT_EQ(kinds_in(walker, fakes::join(mixed_records())), expected);
}

TEST(Walker, AsksForTheLengthOfAKindOnce) {
  Walker walker = make_walker();
  const std::vector<Record> kernels(100, fakes::kernel_record({}));
  kinds_in(walker, fakes::join(kernels));
  kinds_in(walker, fakes::join(kernels));
  EXPECT_EQ(questions, 1);
}

TEST(Walker, DoesNotLearnFromALastRecord) {
  Walker walker = make_walker();
  kinds_in(walker, fakes::join({fakes::kernel_record({})}));
  kinds_in(walker, fakes::join({fakes::kernel_record({})}));
  EXPECT_EQ(questions, 2);
}

TEST(Walker, ReadsALastRecordOfAnUnknownLength) {
  Walker walker = make_walker();
  EXPECT_EQ(kinds_in(walker, fakes::join({fakes::memset_record({}, 1)})), std::vector<uint32_t>{kMemset});
}

TEST(Walker, StopsAtTheZeroedRestOfABuffer) {
  Walker walker = make_walker();
  std::vector<uint8_t> bytes = fakes::join({fakes::kernel_record({}), fakes::kernel_record({})});
  const std::size_t records = bytes.size();
  bytes.resize(records + 512);
  std::size_t left = 0;
  EXPECT_EQ(kinds_in(walker, bytes, &left).size(), 2U);
  EXPECT_EQ(left, 512U);
}

TEST(Walker, CountsWhatCuptiCannotRead) {
  Walker walker = make_walker();
  std::vector<uint8_t> bytes = fakes::join({fakes::kernel_record({})});
  const std::size_t garbage = 3 * 216;
  bytes.resize(bytes.size() + garbage, 0x7B);
  std::size_t left = 0;
  EXPECT_EQ(kinds_in(walker, bytes, &left), std::vector<uint32_t>{kConcurrentKernel});
  EXPECT_EQ(left, garbage);
}

TEST(Walker, NeverHandsOverACutOffRecord) {
  const std::vector<uint8_t> bytes = fakes::join(mixed_records());
  Walker trained = make_walker();
  kinds_in(trained, fakes::join({fakes::kernel_record({}), fakes::memcpy_record({}, 1), fakes::kernel_record({})}));
  for (Walker walker : {make_walker(), trained}) {
    for (std::size_t size = 0; size <= bytes.size(); ++size) {
      const Block block(bytes, size);
      uint64_t sum = 0;  // reads every byte that the decoder may read
      walker.walk(block.data, block.valid, [&](uint32_t kind, const uint8_t* record) {
        ASSERT_LE(record + smallest_record(kind), block.data + block.valid);
        for (std::size_t at = 0; at < smallest_record(kind); ++at) {
          sum += record[at];
        }
      });
      EXPECT_LE(sum, UINT64_MAX);
    }
  }
}

TEST(Walker, NeverReadsOutsideOfGarbage) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> bytes(random() % 1024);
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(random() % 4 == 0 ? random() : 0);
    }
    for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {  // kinds that lead further in
      constexpr uint8_t kKinds[] = {1, 2, 4, 5, 10, 17, 22, 38, 51, 200};
      bytes[at] = kKinds[random() % std::size(kKinds)];
      bytes[at + 1] = bytes[at + 2] = bytes[at + 3] = 0;
    }
    Walker walker = make_walker();
    const Block block(bytes, bytes.size());
    uint64_t sum = 0;
    const std::size_t left = walker.walk(block.data, block.valid, [&](uint32_t kind, const uint8_t* record) {
      for (std::size_t at = 0; at < smallest_record(kind); ++at) {
        sum += record[at];
      }
    });
    EXPECT_LE(left, bytes.size()) << sum;
  }
}

}  // namespace

}  // namespace gpuscope::activity
