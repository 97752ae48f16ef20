// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gpuscope/timing/context.h"
#include "gpuscope/timing/gate.h"
#include "gpuscope/timing/l2_flush.h"
#include "gpuscope/timing/sampler.h"

namespace gpuscope::timing {

/// The functions that are measured, whatever language they are written in. One thread.
class Program {
 public:
  virtual ~Program() = default;

  /// Calls a function by its number. What it throws goes through to whoever asked for the measurement.
  virtual void call(uint32_t function) = 0;
  /// Between two calls, outside of what is timed; may throw to end the measurement.
  virtual void check() {}
  /// Runs something that blocks, with whatever the program's threads share let go. `blocking` does not throw.
  virtual void wait(const std::function<void()>& blocking) { blocking(); }
};

/// Pairs of timing events, made once and recorded again and again. One thread, with the context current.
class EventPairs {
 public:
  /// The context outlives the pairs.
  explicit EventPairs(const PrimaryContext& context) : context_(context) {}
  ~EventPairs();
  EventPairs(const EventPairs&) = delete;
  EventPairs& operator=(const EventPairs&) = delete;

  /// Makes what is missing of so many pairs.
  void reserve(std::size_t pairs);
  void start(std::size_t pair, uint64_t stream);
  void stop(std::size_t pair, uint64_t stream);
  /// Between the two, once both have been reached.
  double seconds(std::size_t pair) const;

 private:
  const PrimaryContext& context_;
  std::vector<driver::CuEvent> events_;
};

struct SampleOptions {
  bool gate = true;
  bool flush = true;
  bool events = true;
  uint64_t timeout_ns = 100'000'000;
};

/// One row a call, in the order called. Times are ns since the Unix epoch, on the process's clock.
struct Chunk {
  std::vector<int64_t> called_ns;
  std::vector<int64_t> returned_ns;
  std::vector<double> stream_s;  // between the call's events; NaN without
  bool held = false;             // the gate stayed closed until everything was queued
  double clock_hz = 0;           // the SMs' frequency; NaN where unknown
};

struct WallChunk {
  std::vector<int64_t> called_ns;
  std::vector<int64_t> returned_ns;
  std::vector<int64_t> done_ns;
  double clock_hz = 0;
};

/// Calls functions and measures them on one stream. One thread at a time: another that comes meanwhile, or the program
/// itself, gets an Error.
class Sampler {
 public:
  /// Throws NotAvailable without such a device. Flushes write `flush_bytes`, none for 0.
  Sampler(const driver::Cuda& cuda, int device, uint64_t stream, uint64_t flush_bytes = L2Flush::kTwiceTheL2);

  uint64_t l2_bytes() const noexcept { return flush_.l2_bytes(); }

  /// Queues all calls behind a closed gate, opens it, and waits for all. What the program throws comes through after
  /// the gate is open and the GPU is done; a sampler can be used again then.
  Chunk sample(Program& program, std::span<const uint32_t> order, const SampleOptions& options);
  /// Makes each call alone on an idle GPU and waits for it.
  WallChunk sample_wall(Program& program, std::span<const uint32_t> order, bool flush);
  /// Waits for the device.
  void synchronize();

 private:
  void begin(bool flush);
  void queue(Program& program, std::span<const uint32_t> order, const SampleOptions& options, Chunk& chunk);
  /// Waits with the program let go; the driver's code, and when it was done.
  int settle(Program& program, int64_t* done_ns = nullptr);
  void wait(Program& program, int64_t* done_ns = nullptr);
  double measure_clock(Program& program);

  PrimaryContext context_;
  uint64_t stream_;
  Gate gate_;
  L2Flush flush_;
  EventPairs events_;
  std::atomic<bool> busy_{false};
};

/// Calls functions on the CPU alone: called_ns and returned_ns of each call.
struct CallTimes {
  std::vector<int64_t> called_ns;
  std::vector<int64_t> returned_ns;
};
CallTimes time_calls(Program& program, std::span<const uint32_t> order);

}  // namespace gpuscope::timing
