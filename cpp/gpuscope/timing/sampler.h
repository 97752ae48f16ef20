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

/// Holds a stream until the host has queued its work: a kernel of one thread polls a word of the host. It ends by
/// itself after a timeout, so no wait for it is endless. It reads the SM's cycle counter and the GPU's clock at both
/// ends, and so also measures the SM's frequency. One thread at a time.
class Gate {
 public:
  /// Words shared by host and GPU. The kernel knows their offsets.
  struct Words {
    uint32_t open;     // written by the host: not 0 releases the stream
    uint32_t outcome;  // written by the GPU, like the following
    uint64_t start_ns;
    uint64_t start_cycles;
    uint64_t end_ns;
    uint64_t end_cycles;
  };
  static constexpr uint32_t kOpened = 1;
  static constexpr uint32_t kTimedOut = 2;

  /// The context must outlive the gate.
  explicit Gate(const PrimaryContext& context);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// Stops the stream, at most for `timeout_ns`. Waits for an earlier close first.
  void close(uint64_t stream, uint64_t timeout_ns);
  /// Any thread. Idempotent.
  void open() noexcept;
  /// Only measures the frequency. Takes 20 us.
  void measure(uint64_t stream);

  // Results of the last kernel, after a wait for it.
  /// Whether the host released the stream, and no timeout.
  bool held() const noexcept;
  /// The SM's frequency while the kernel ran. NaN if that was too short.
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

/// Fills the L2 cache with clean, unused lines: writes a large buffer, then reads another. Reading is last, as written
/// lines would be written back during the next kernel and slow it down. One thread.
class L2Flush {
 public:
  static constexpr uint64_t kTwiceTheL2 = UINT64_MAX;

  /// Writes `bytes`, and reads three quarters as many. The context must outlive the flush.
  L2Flush(const PrimaryContext& context, int device, uint64_t bytes);
  ~L2Flush();
  L2Flush(const L2Flush&) = delete;
  L2Flush& operator=(const L2Flush&) = delete;

  uint64_t l2_bytes() const noexcept { return l2_bytes_; }

  /// Before a row of flushes: makes the buffers the first time, and resets persisting lines. May wait for the GPU.
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

/// The measured functions, in any language. One thread.
class Program {
 public:
  virtual ~Program() = default;

  /// Calls a function `times` times in a row. Exceptions end the row and pass through to the caller of the measurement.
  virtual void call(uint32_t function, uint32_t times) = 0;
  /// Whether several calls are one loop of the function's own, which takes time to begin.
  virtual bool loops(uint32_t /*function*/) const { return false; }
  /// Between two calls, outside of the timed part. May throw to end the measurement.
  virtual void check() {}
  /// Runs a blocking function with the program's lock (Python's GIL) released. `blocking` does not throw.
  virtual void wait(const std::function<void()>& blocking) { blocking(); }
};

/// Pairs of timing events, made once and reused. One thread, with the context current.
class EventPairs {
 public:
  /// The context must outlive the pairs.
  explicit EventPairs(const PrimaryContext& context) : context_(context) {}
  ~EventPairs();
  EventPairs(const EventPairs&) = delete;
  EventPairs& operator=(const EventPairs&) = delete;

  /// Makes the missing ones of `pairs` pairs.
  void reserve(std::size_t pairs);
  void start(std::size_t pair, uint64_t stream);
  void stop(std::size_t pair, uint64_t stream);
  /// Time between the two, after both have been reached.
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

/// One row per call, in call order. Times are ns since the Unix epoch, on the process's clock.
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
  double clock_hz = 0;           // the SMs' frequency; NaN if unknown
};

/// Calls measured one by one.
struct WallChunk : CallTimes {
  explicit WallChunk(std::size_t calls) : CallTimes(calls), done_ns(calls) {}

  std::vector<int64_t> done_ns;
  double clock_hz = 0;
};

/// Calls functions and measures them on one stream. One thread at a time: a concurrent call, or a call by the program
/// itself, gets an Error.
class Sampler {
 public:
  /// Throws NotAvailable without such a device. Flushes write `flush_bytes`; 0 disables them.
  Sampler(const driver::Cuda& cuda, int device, uint64_t stream, uint64_t flush_bytes = L2Flush::kTwiceTheL2);

  uint64_t l2_bytes() const noexcept { return flush_.l2_bytes(); }

  /// Queues all calls behind a closed gate, opens it, and waits for all. The program's exceptions pass through after
  /// the gate is open and the GPU is done. The sampler is then usable again.
  Chunk sample(Program& program, std::span<const uint32_t> order, const SampleOptions& options);
  /// Makes one call at a time on an idle GPU and waits for it.
  WallChunk sample_wall(Program& program, std::span<const uint32_t> order, bool flush);
  /// Waits for the device.
  void synchronize();

 private:
  void begin(bool flush);
  void queue(Program& program, std::span<const uint32_t> order, const SampleOptions& options, Chunk& chunk);
  /// Waits through Program::wait. Returns the driver's result code, and the time when the GPU was done.
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

/// Rows of calls of one function, each between two clock readings. One row per number in the order.
struct RowTimes : CallTimes {
  explicit RowTimes(std::size_t rows) : CallTimes(rows), calls(rows) {}

  std::vector<uint32_t> calls;  // made in the row
};

/// The maximum number of calls between two clock readings: with fewer, readings would exceed 1 % of an empty call.
inline constexpr uint32_t kUnwatched = 64;
/// The growth factor for functions with their own loop: a Python loop takes 200 ns to begin.
inline constexpr uint32_t kLoopGrowth = 16;

/// Calls functions on the CPU, each `repeat` times in a row. A row that has taken longer than `longest_ns` ends early:
/// after at most kUnwatched more calls, or kLoopGrowth times as many for functions with their own loop.
RowTimes time_calls(Program& program, std::span<const uint32_t> order, uint32_t repeat, int64_t longest_ns);

/// Work captured from a stream, for repeated launches on it. One thread at a time.
class Graph {
 public:
  /// Captures `calls` calls of the program's function 0. Throws InvalidArgument for the legacy default stream,
  /// CudaError if the capture became invalid or cannot be launched. The program's exceptions pass through after the
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
