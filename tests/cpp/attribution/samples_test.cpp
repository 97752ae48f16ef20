// SPDX-License-Identifier: Apache-2.0
// Samples of Python on their way from the log to rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "fakes/cupti.h"
#include "gpuscope/attribution/decoder.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/host_usage.h"
#include "gpuscope/base/sample_log.h"

namespace gpuscope::attribution {
namespace {

constexpr int64_t kMs = 1'000'000;

uint32_t stack_of(const std::string& function, uint32_t parent = 0) {
  base::Names& names = base::Names::process();
  return base::Stacks::process().intern({parent, names.intern(function), names.intern("run.py"), 1});
}

class Samples : public testing::Test {
 protected:
  explicit Samples(const Settings& settings = {})
      : decoder_(settings, fakes::Cupti::instance().table(), 0), began_ns_(base::Clock::process().now_ns()) {
    base::SampleLog::process().begin();
    decoder_.discard_logs();
    decoder_.window().open_ns = began_ns_;
  }

  /// Times in ms since the window opened.
  void sample(int64_t begin, int64_t end, const std::string& function, uint64_t thread = 1, bool ends = false) {
    const base::Clock& clock = base::Clock::process();
    base::SampleLog::process().append({clock.to_ticks(began_ns_ + begin * kMs), clock.to_ticks(began_ns_ + end * kMs),
                                       (end - begin) * kMs / 2, thread, static_cast<uint32_t>(1000 + thread),
                                       stack_of(function), 4, ends});
  }
  std::unique_ptr<store::Store> finish(int64_t end = 1000) {
    decoder_.window().close_ns = began_ns_ + end * kMs;
    decoder_.decode(pool_);
    return decoder_.finish(began_ns_ + end * kMs);
  }

  activity::BufferPool pool_;
  Decoder decoder_;
  const int64_t began_ns_;
};

std::string function_of(const store::Store& store, std::size_t row) {
  return std::string(store.strings[store.stack.function[store.python_sample.stack[row]]]);
}

TEST_F(Samples, BecomeRows) {
  sample(1, 5, "f");
  sample(5, 9, "g");
  const auto store = finish();
  const store::PythonSamples& rows = store->python_sample;
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(function_of(*store, 0), "f");
  EXPECT_EQ(function_of(*store, 1), "g");
  EXPECT_NEAR(static_cast<double>(rows.duration_ns[0]), 4 * kMs, 1000);
  EXPECT_NEAR(static_cast<double>(rows.cpu_ns[0]), 2 * kMs, 1000);
  EXPECT_EQ(rows.count[0], 4U);
  EXPECT_EQ(store->thread.system_id[rows.thread[0]], 1001U);
}

TEST_F(Samples, AreClippedToTheWindow) {
  sample(-10, 10, "f");
  sample(90, 110, "g");
  sample(-5, -1, "before");
  sample(101, 102, "after");
  const auto store = finish(100);
  const store::PythonSamples& rows = store->python_sample;
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows.start_ns[0], began_ns_);
  EXPECT_NEAR(static_cast<double>(rows.duration_ns[0]), 10 * kMs, 1000);
  EXPECT_NEAR(static_cast<double>(rows.cpu_ns[0]), 5 * kMs, 1000);
  EXPECT_EQ(rows.start_ns[1] + rows.duration_ns[1], began_ns_ + 100 * kMs);
}

TEST_F(Samples, ThreadsThatFollowOneAnotherAreTwo) {
  sample(1, 2, "f", 1, true);
  base::SampleLog::process().append({0, 0, 0, 3, 1001, 0, 0, true});  // of one that was in no Python
  sample(3, 4, "f", 2);
  const auto store = finish();
  EXPECT_EQ(store->thread.size(), 2U);
  EXPECT_NE(store->python_sample.thread[0], store->python_sample.thread[1]);
}

TEST_F(Samples, AThreadThatBeginsWithTheNumberOfItsCreatorHasItsOwnRowOnceItRuns) {
  sample(1, 2, "main", 1);
  const base::Clock& clock = base::Clock::process();
  base::SampleLog::process().append({clock.to_ticks(began_ns_ + 2 * kMs), clock.to_ticks(began_ns_ + 3 * kMs), 0, 2,
                                     1001, stack_of("begins"), 1, false});
  sample(3, 9, "works", 2);
  const auto store = finish();
  const store::PythonSamples& rows = store->python_sample;
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(store->thread.size(), 2U) << "no second row of the creator";
  EXPECT_EQ(store->thread.system_id[rows.thread[0]], 1001U);
  EXPECT_EQ(store->thread.system_id[rows.thread[2]], 1002U);
}

TEST_F(Samples, OfTheNextWindowHaveTheirOwnThreads) {
  sample(1, 2, "f");
  EXPECT_EQ(finish()->thread.size(), 1U);
  decoder_.window().open_ns = began_ns_ + 2000 * kMs;
  sample(2001, 2002, "g");
  const auto second = finish(3000);
  ASSERT_EQ(second->python_sample.size(), 1U);
  EXPECT_EQ(function_of(*second, 0), "g");
  EXPECT_EQ(second->thread.size(), 1U);
  EXPECT_EQ(second->stack.size(), 1U) << "what the first window had is not carried on";
}

class SampledUsages : public Samples {
 protected:
  /// Times in ms since the window opened.
  void usage(base::HostUsage::Of what, int64_t begin, int64_t end, int64_t wait_ms, uint64_t thread = 1) const {
    const base::Clock& clock = base::Clock::process();
    base::HostUsage usage;
    usage.of = what;
    usage.begin_ticks = clock.to_ticks(began_ns_ + begin * kMs);
    usage.end_ticks = clock.to_ticks(began_ns_ + end * kMs);
    usage.cpu_ns = kMs;
    usage.wait_ns = usage.throttled_ns = wait_ms * kMs;
    usage.thread = thread;
    usage.system_id = static_cast<uint32_t>(1000 + thread);
    base::HostLog::process().begin();
    base::HostLog::process().append(usage);
  }
};

TEST_F(SampledUsages, BecomeRows) {
  sample(1, 5, "f");
  usage(base::HostUsage::Of::Thread, 1, 5, 3);
  usage(base::HostUsage::Of::Process, 1, 100, 4);
  usage(base::HostUsage::Of::ControlGroup, 1, 100, 20);
  const auto store = finish();
  ASSERT_EQ(store->thread_wait.size(), 1U);
  EXPECT_EQ(store->thread_wait.wait_ns[0], 3 * kMs);
  EXPECT_EQ(store->thread_wait.thread[0], store->python_sample.thread[0]) << "of the same thread";
  ASSERT_EQ(store->process_usage.size(), 1U);
  EXPECT_EQ(store->process_usage.process[0], 1001U);
  EXPECT_EQ(store->process_usage.read_bytes[0], -1) << "not known, and not zero";
  ASSERT_EQ(store->control_group_usage.size(), 1U);
  EXPECT_EQ(store->control_group_usage.throttled_ns[0], 20 * kMs);
  EXPECT_EQ(store->control_group_usage.io_wait_ns[0], -1);
}

TEST_F(SampledUsages, AreClippedToTheWindow) {
  usage(base::HostUsage::Of::Thread, -10, 10, 8);
  usage(base::HostUsage::Of::Process, -10, -5, 8);
  const auto store = finish();
  ASSERT_EQ(store->thread_wait.size(), 1U);
  EXPECT_EQ(store->thread_wait.start_ns[0], began_ns_);
  EXPECT_NEAR(static_cast<double>(store->thread_wait.wait_ns[0]), 4 * kMs, 1000);
  EXPECT_EQ(store->process_usage.size(), 0U);
}

Settings with(Mode mode, uint64_t max_bytes = uint64_t{1} << 30, int64_t ring_ns = 10'000'000'000) {
  Settings settings;
  settings.mode = mode;
  settings.max_bytes = max_bytes;
  settings.ring_ns = ring_ns;
  return settings;
}

class AggregatedSamples : public Samples {
 protected:
  AggregatedSamples() : Samples(with(Mode::Aggregate)) {}
};

TEST_F(AggregatedSamples, AreOneRowAStack) {
  for (int64_t at = 0; at < 100; at += 2) {
    sample(at, at + 1, "f");
    sample(at + 1, at + 2, "g");
  }
  const auto store = finish();
  ASSERT_EQ(store->python_sample.size(), 2U);
  EXPECT_EQ(store->python_sample.count[0], 200U);
  EXPECT_NEAR(static_cast<double>(store->python_sample.duration_ns[1]), 50 * kMs, 100'000);
}

class FullSamples : public Samples {
 protected:
  static constexpr uint64_t kCap = uint64_t{1} << 20;
  FullSamples() : Samples(with(Mode::Full, kCap)) {}
};

TEST_F(FullSamples, KeepToTheMemoryCap) {
  int64_t at = 0;
  for (int round = 0; round < 10; ++round) {
    for (int number = 0; number < 10'000; ++number, ++at) {
      sample(at, at + 1, "f");
    }
    decoder_.decode(pool_);
  }
  EXPECT_GT(decoder_.state().counters.refused, 10'000U);
  const auto store = finish(at);
  EXPECT_LT(event_bytes(*store), 2 * kCap);
  EXPECT_GT(store->python_sample.size(), 10'000U);
}

class RingSamples : public Samples {
 protected:
  RingSamples() : Samples(with(Mode::Ring, uint64_t{1} << 30, 1000 * kMs)) {}
};

TEST_F(RingSamples, TheOldestGo) {
  for (int64_t at = 0; at < 20'000; ++at) {
    sample(at, at + 1, at < 10'000 ? "early" : "late");
    if (at % 1000 == 0) {
      decoder_.decode(pool_);
    }
  }
  const auto store = finish(20'000);
  const store::PythonSamples& rows = store->python_sample;
  ASSERT_GT(rows.size(), 500U);
  EXPECT_GE(*std::ranges::min_element(rows.start_ns), began_ns_ + 17'000 * kMs);
  EXPECT_EQ(function_of(*store, 0), "late");
}

}  // namespace
}  // namespace gpuscope::attribution
