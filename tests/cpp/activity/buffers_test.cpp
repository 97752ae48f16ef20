// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace gpuscope::activity {
namespace {

TEST(BufferPool, GivesDistinctZeroedBuffers) {
  BufferPool pool;
  pool.provide(4);
  std::set<uint8_t*> taken;
  for (int count = 0; count < 4; ++count) {
    uint8_t* data = pool.take();
    ASSERT_NE(data, nullptr);
    EXPECT_TRUE(std::all_of(data, data + BufferPool::kBufferBytes, [](uint8_t byte) { return byte == 0; }));
    taken.insert(data);
  }
  EXPECT_EQ(taken.size(), 4U);
  EXPECT_EQ(pool.lent(), 4U);
  EXPECT_EQ(pool.ready(), 0U);
}

TEST(BufferPool, CountsRequestsThatItCannotMeet) {
  BufferPool pool;
  pool.provide(1);
  pool.take();
  EXPECT_EQ(pool.take(), nullptr);
  EXPECT_EQ(pool.take(), nullptr);
  EXPECT_EQ(pool.exhausted(), 2U);
}

TEST(BufferPool, GrowsToItsCapAndNoFurther) {
  BufferPool pool;
  pool.provide(1000);
  EXPECT_EQ(pool.ready(), BufferPool::kMaxBuffers);
}

TEST(BufferPool, HandsBackCompletedBuffersOldestFirst) {
  BufferPool pool;
  pool.provide(3);
  std::vector<uint8_t*> order;
  for (int count = 0; count < 3; ++count) {
    order.push_back(pool.take());
    pool.complete(nullptr, 0, order.back(), 8);
  }
  std::vector<uint8_t*> completed;
  for (BufferPool::Buffer* buffer = pool.take_completed(); buffer != nullptr; buffer = buffer->next) {
    completed.push_back(buffer->data);
  }
  EXPECT_EQ(completed, order);
  EXPECT_EQ(pool.take_completed(), nullptr);
}

TEST(BufferPool, CountsForeignBuffersAndLeavesThemAlone) {
  BufferPool pool;
  pool.provide(1);
  uint8_t foreign[16] = {1};
  pool.complete(nullptr, 0, foreign, sizeof(foreign));
  EXPECT_EQ(pool.foreign(), 1U);
  EXPECT_EQ(pool.take_completed(), nullptr);
}

TEST(BufferPool, TakesABufferBackOnlyOnce) {
  BufferPool pool;
  pool.provide(2);
  uint8_t* data = pool.take();
  pool.complete(nullptr, 0, data, 8);
  pool.complete(nullptr, 0, data, 8);
  BufferPool::Buffer* completed = pool.take_completed();
  ASSERT_NE(completed, nullptr);
  EXPECT_EQ(completed->next, nullptr);
}

TEST(BufferPool, ZeroesWhatWasWrittenOnRelease) {
  BufferPool pool;
  pool.provide(1);
  uint8_t* data = pool.take();
  std::fill_n(data, 100, uint8_t{0xFF});
  pool.complete(nullptr, 0, data, 100);
  pool.release(pool.take_completed());
  EXPECT_EQ(pool.take(), data);
  EXPECT_TRUE(std::all_of(data, data + 100, [](uint8_t byte) { return byte == 0; }));
}

TEST(BufferPool, KeepsTheValidBytesWithinTheBuffer) {
  BufferPool pool;
  pool.provide(1);
  pool.complete(nullptr, 0, pool.take(), SIZE_MAX);
  EXPECT_EQ(pool.take_completed()->valid, BufferPool::kBufferBytes);
}

TEST(BufferPool, LosesNothingBetweenManyThreads) {
  constexpr int kThreads = 4;
  constexpr uint64_t kRounds = 5000;
  BufferPool pool;
  pool.provide(8);
  std::atomic<int> running{kThreads};
  std::atomic<uint64_t> sent{0};
  std::vector<std::thread> writers;
  for (int number = 0; number < kThreads; ++number) {
    writers.emplace_back([&] {
      for (uint64_t round = 1; round <= kRounds; ++round) {
        uint8_t* data = pool.take();
        if (data == nullptr) {
          std::this_thread::yield();
          continue;
        }
        *reinterpret_cast<uint64_t*>(data) = round;
        sent += round;
        pool.complete(nullptr, 0, data, sizeof(round));
      }
      --running;
    });
  }
  uint64_t received = 0;
  const auto collect = [&] {
    for (BufferPool::Buffer* buffer = pool.take_completed(); buffer != nullptr;) {
      BufferPool::Buffer* next = buffer->next;
      received += *reinterpret_cast<uint64_t*>(buffer->data);
      pool.release(buffer);
      buffer = next;
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
  EXPECT_EQ(pool.ready(), 8U);
  EXPECT_EQ(pool.lent(), 0U);
}

}  // namespace
}  // namespace gpuscope::activity
