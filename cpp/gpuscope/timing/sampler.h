// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "gpuscope/timing/context.h"

namespace gpuscope::timing {

/// Holds a stream until the host has queued all it wants to: a kernel of one thread that watches a word of the host's.
/// It ends by itself after a timeout, so that nothing can wait for it forever. As it reads the SM's cycle counter and
/// the GPU's clock at both ends, it also measures the SM's frequency. One thread at a time.
class Gate {
 public:
  /// The words that host and GPU share; the kernel knows their offsets.
  struct Words {
    uint32_t open;     // the host's: not 0 lets the stream go on
    uint32_t outcome;  // the GPU's from here on
    uint64_t start_ns;
    uint64_t start_cycles;
    uint64_t end_ns;
    uint64_t end_cycles;
  };
  static constexpr uint32_t kOpened = 1;
  static constexpr uint32_t kTimedOut = 2;

  /// The context outlives the gate.
  explicit Gate(const PrimaryContext& context);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// The stream stops here, for at most so long. What was closed before has been waited for.
  void close(uint64_t stream, uint64_t timeout_ns);
  /// Any thread, any number of times.
  void open() noexcept;
  /// Only measures the frequency, in some 20 us.
  void measure(uint64_t stream);

  // Of the last kernel, once it has been waited for.
  /// Whether the stream went on because it was let, not because time was up.
  bool held() const noexcept;
  /// The SM's frequency while the kernel ran; NaN when that was too short to measure.
  double clock_hz() const noexcept;

 private:
  void launch(driver::CuFunction function, uint64_t stream, uint32_t open, uint64_t timeout_ns);

  const PrimaryContext& context_;
  Module module_;
  driver::CuFunction gate_ = nullptr;
  driver::CuFunction meter_ = nullptr;
  Words* words_ = nullptr;
  driver::CuPointer address_ = 0;  // of the words, for the GPU
};

/// Fills the L2 cache with clean lines that nobody wants: writes a large buffer, then reads another. Reading comes last
/// because lines that were only written are written back while the next kernel runs, at its expense. One thread.
class L2Flush {
 public:
  static constexpr uint64_t kTwiceTheL2 = UINT64_MAX;

  /// Writes so many bytes, and reads three quarters as many. The context outlives the flush.
  L2Flush(const PrimaryContext& context, int device, uint64_t bytes);
  ~L2Flush();
  L2Flush(const L2Flush&) = delete;
  L2Flush& operator=(const L2Flush&) = delete;

  uint64_t l2_bytes() const noexcept { return l2_bytes_; }

  /// Before a row of flushes: makes the buffers the first time, and takes back lines that were set to persist. May wait
  /// for the GPU.
  void prepare();
  /// Queues one flush.
  void run(uint64_t stream);

 private:
  const PrimaryContext& context_;
  Module module_;
  driver::CuFunction write_ = nullptr;
  driver::CuFunction read_ = nullptr;
  uint64_t l2_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  uint64_t read_bytes_ = 0;
  unsigned blocks_ = 1;
  uint32_t salt_ = 0;
  driver::CuPointer memory_ = 0;  // the part to read, then the part to write
};

/// The functions that are measured, whatever language they are written in. One thread.
class Program {
 public:
  virtual ~Program() = default;

  /// Calls a function so many times in a row, by its number. What it throws ends the row and goes through to whoever
  /// asked for the measurement.
  virtual void call(uint32_t function, uint32_t times) = 0;
  /// Whether several calls of it are a loop of its own, which takes some time to begin.
  virtual bool loops(uint32_t /*function*/) const { return false; }
  /// Between two calls, outside of what is timed; may throw to end the measurement.
  virtual void check() {}
  /// Runs something that blocks, with the program's lock (Python's GIL) released. `blocking` does not throw.
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
struct CallTimes {
  explicit CallTimes(std::size_t calls) : called_ns(calls), returned_ns(calls) {}

  std::vector<int64_t> called_ns;
  std::vector<int64_t> returned_ns;
};

/// Calls measured behind a gate.
struct Chunk : CallTimes {
  explicit Chunk(std::size_t calls) : CallTimes(calls), stream_s(calls, std::numeric_limits<double>::quiet_NaN()) {}

  std::vector<double> stream_s;  // between the call's events; NaN without
  bool held = false;             // the gate stayed closed until everything was queued
  double clock_hz = 0;           // the SMs' frequency; NaN where unknown
};

/// Calls measured one by one.
struct WallChunk : CallTimes {
  explicit WallChunk(std::size_t calls) : CallTimes(calls), done_ns(calls) {}

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
  /// Waits through Program::wait; the driver's result code, and when the GPU was done.
  int synchronize_through(Program& program, int64_t* done_ns = nullptr);
  void wait(Program& program, int64_t* done_ns = nullptr);
  double measure_clock(Program& program);

  PrimaryContext context_;
  uint64_t stream_;
  Gate gate_;
  L2Flush flush_;
  EventPairs events_;
  std::atomic<bool> busy_{false};
};

/// Rows of calls of one function, each between two readings of the clock: one row a number in the order.
struct RowTimes : CallTimes {
  explicit RowTimes(std::size_t rows) : CallTimes(rows), calls(rows) {}

  std::vector<uint32_t> calls;  // made in the row
};

/// Calls of a row between two looks at the clock, at most: with fewer, looking would be more than 1 % of an empty call.
inline constexpr uint32_t kUnwatched = 64;
/// Where they loop by themselves, so many times those that were made: a loop of Python takes some 200 ns to begin.
inline constexpr uint32_t kLoopGrowth = 16;

/// Calls functions on the CPU alone, each `repeat` times in a row. A row that has taken longer than `longest_ns` ends
/// early, after kUnwatched more calls at the latest, or kLoopGrowth times as many where they loop by themselves.
RowTimes time_calls(Program& program, std::span<const uint32_t> order, uint32_t repeat, int64_t longest_ns);

/// Work captured from a stream, to be launched again and again on it. One thread at a time.
class Graph {
 public:
  /// Captures so many calls of the program's function 0. Throws InvalidArgument for the legacy default stream,
  /// CudaError when the capture became invalid or cannot be launched. What the program throws comes through after the
  /// capture has ended.
  Graph(const driver::Cuda& cuda, int device, uint64_t stream, Program& program, uint64_t calls);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch();
  std::size_t nodes() const noexcept { return nodes_; }

 private:
  uint64_t stream_;
  PrimaryContext context_;
  std::size_t nodes_ = 0;
  driver::CuGraphExec exec_ = nullptr;
};

}  // namespace gpuscope::timing
