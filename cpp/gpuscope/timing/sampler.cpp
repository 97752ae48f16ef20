// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/sampler.h"

#include <algorithm>

#include "gpuscope/base/clock.h"

namespace gpuscope::timing {
namespace {

constexpr unsigned kTimingEvent = 0;  // CU_EVENT_DEFAULT: with time, waits spin

class OpenAtEnd {
 public:
  explicit OpenAtEnd(Gate& gate) : gate_(gate) {}
  ~OpenAtEnd() { gate_.open(); }
  OpenAtEnd(const OpenAtEnd&) = delete;
  OpenAtEnd& operator=(const OpenAtEnd&) = delete;

 private:
  Gate& gate_;
};

class BusyGuard {
 public:
  explicit BusyGuard(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      throw base::Error("this Sampler is measuring already; give each thread one of its own");
    }
  }
  ~BusyGuard() { busy_.store(false, std::memory_order_release); }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  std::atomic<bool>& busy_;
};

void time_call(Program& program, std::span<const uint32_t> order, std::size_t row, CallTimes& times) {
  const base::Clock& clock = base::Clock::process();
  times.called_ns[row] = clock.now_ns();
  program.call(order[row], 1);
  times.returned_ns[row] = clock.now_ns();
}

}  // namespace

EventPairs::~EventPairs() {
  context_.release_in([&](const driver::Cuda& cuda) {
    for (const driver::CuEvent event : events_) {
      cuda.event_destroy(event);
    }
  });
}

void EventPairs::reserve(std::size_t pairs) {
  events_.reserve(2 * pairs);
  while (events_.size() < 2 * pairs) {
    driver::CuEvent event = nullptr;
    GPUSCOPE_CUDA(context_.cuda(), event_create, &event, kTimingEvent);
    events_.push_back(event);
  }
}

void EventPairs::start(std::size_t pair, uint64_t stream) {
  GPUSCOPE_CUDA(context_.cuda(), event_record, events_[2 * pair], driver::as_stream(stream));
}

void EventPairs::stop(std::size_t pair, uint64_t stream) {
  GPUSCOPE_CUDA(context_.cuda(), event_record, events_[2 * pair + 1], driver::as_stream(stream));
}

double EventPairs::seconds(std::size_t pair) const {
  constexpr double kSecondsPerMs = 1e-3;
  float ms = 0;
  GPUSCOPE_CUDA(context_.cuda(), event_elapsed_time, &ms, events_[2 * pair], events_[2 * pair + 1]);
  return static_cast<double>(ms) * kSecondsPerMs;
}

Sampler::Sampler(const driver::Cuda& cuda, int device, uint64_t stream, uint64_t flush_bytes)
    : context_(cuda, device),
      stream_(stream),
      gate_(context_),
      flush_(context_, device, flush_bytes),
      events_(context_) {}

int Sampler::synchronize_through(Program& program, int64_t* done_ns) {
  int code = 0;
  const base::Clock& clock = base::Clock::process();
  program.wait([&] {
    driver::CuContext popped = nullptr;
    code = context_.cuda().context_push(context_.handle());
    if (code == 0) {
      code = context_.cuda().context_synchronize();
      if (done_ns != nullptr) {
        *done_ns = clock.now_ns();
      }
      context_.cuda().context_pop(&popped);
    }
  });
  return code;
}

void Sampler::wait(Program& program, int64_t* done_ns) {
  if (const int code = synchronize_through(program, done_ns); code != 0) {
    throw base::CudaError("context_synchronize", code, context_.cuda().error_name(code));
  }
}

void Sampler::begin(bool flush) {
  const PrimaryContext::Current current(context_);
  int capturing = 0;
  GPUSCOPE_CUDA(context_.cuda(), stream_is_capturing, driver::as_stream(stream_), &capturing);
  if (capturing != 0) {
    throw base::InvalidArgument("stream is being captured into a graph; accepted are streams that run their work");
  }
  if (flush) {
    flush_.prepare();
  }
}

double Sampler::measure_clock(Program& program) {
  {
    const PrimaryContext::Current current(context_);
    gate_.measure(stream_);
  }
  wait(program);
  return gate_.clock_hz();
}

// The context is current only for our own calls: the functions find their thread unchanged.
void Sampler::queue(Program& program, std::span<const uint32_t> order, const SampleOptions& options, Chunk& chunk) {
  const OpenAtEnd open(gate_);
  if (options.gate) {
    const PrimaryContext::Current current(context_);
    gate_.close(stream_, options.timeout_ns);
  }
  for (std::size_t row = 0; row < order.size(); ++row) {
    program.check();
    if (options.flush || options.events) {
      const PrimaryContext::Current current(context_);
      if (options.flush) {
        flush_.run(stream_);
      }
      if (options.events) {
        events_.start(row, stream_);
      }
    }
    time_call(program, order, row, chunk);
    if (options.events) {
      const PrimaryContext::Current current(context_);
      events_.stop(row, stream_);
    }
  }
}

Chunk Sampler::sample(Program& program, std::span<const uint32_t> order, const SampleOptions& options) {
  const BusyGuard guard(busy_);
  Chunk chunk(order.size());
  begin(options.flush);
  if (options.events) {
    const PrimaryContext::Current current(context_);
    events_.reserve(order.size());
  }
  if (!options.gate) {
    chunk.clock_hz = measure_clock(program);
  }
  try {
    queue(program, order, options, chunk);
  } catch (...) {
    synchronize_through(program);  // its result matters less than why the program stopped
    throw;
  }
  wait(program);
  if (options.gate) {
    chunk.held = gate_.held();
    chunk.clock_hz = gate_.clock_hz();
  }
  if (options.events) {
    const PrimaryContext::Current current(context_);
    for (std::size_t row = 0; row < order.size(); ++row) {
      chunk.stream_s[row] = events_.seconds(row);
    }
  }
  return chunk;
}

WallChunk Sampler::sample_wall(Program& program, std::span<const uint32_t> order, bool flush) {
  const BusyGuard guard(busy_);
  WallChunk chunk(order.size());
  begin(flush);
  chunk.clock_hz = measure_clock(program);
  try {
    for (std::size_t row = 0; row < order.size(); ++row) {
      program.check();
      if (flush) {
        {
          const PrimaryContext::Current current(context_);
          flush_.run(stream_);
        }
        wait(program);
      }
      time_call(program, order, row, chunk);
      wait(program, &chunk.done_ns[row]);
    }
  } catch (...) {
    synchronize_through(program);
    throw;
  }
  return chunk;
}

void Sampler::synchronize() {
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), context_synchronize);
}

RowTimes time_calls(Program& program, std::span<const uint32_t> order, uint32_t repeat, int64_t longest_ns) {
  const base::Clock& clock = base::Clock::process();
  RowTimes times(order.size());
  for (std::size_t row = 0; row < order.size(); ++row) {
    program.check();
    uint32_t calls = 0;
    const int64_t called_ns = clock.now_ns();
    int64_t now_ns = called_ns;
    // Doubles the calls: if calls suddenly take long, few more are made before it is noticed.
    const bool loops = program.loops(order[row]);
    while (calls < repeat && now_ns - called_ns <= longest_ns) {
      const uint32_t further = loops ? std::max(kLoopGrowth * calls, 1U) : std::clamp(calls, 1U, kUnwatched);
      const uint32_t more = std::min(further, repeat - calls);
      program.call(order[row], more);
      now_ns = clock.now_ns();
      calls += more;
    }
    times.called_ns[row] = called_ns;
    times.returned_ns[row] = now_ns;
    times.calls[row] = calls;
  }
  return times;
}

namespace {

constexpr uint64_t kLegacyStream = 1;  // CU_STREAM_LEGACY; 0 is the same
constexpr int kThreadLocal = 1;        // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

/// An active capture, and its graph. One thread, which must also end it.
class Capture {
 public:
  Capture(const PrimaryContext& context, uint64_t stream) : context_(context), stream_(driver::as_stream(stream)) {
    const PrimaryContext::Current current(context_);
    GPUSCOPE_CUDA(context_.cuda(), stream_begin_capture, stream_, kThreadLocal);
  }
  ~Capture() {
    context_.release_in([&](const driver::Cuda& cuda) {
      if (!ended_) {
        cuda.stream_end_capture(stream_, &graph_);
      }
      if (graph_ != nullptr) {
        cuda.graph_destroy(graph_);
      }
    });
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  driver::CuGraph end() {
    const PrimaryContext::Current current(context_);
    ended_ = true;
    GPUSCOPE_CUDA(context_.cuda(), stream_end_capture, stream_, &graph_);
    return graph_;
  }

 private:
  const PrimaryContext& context_;
  driver::CuStream stream_;
  driver::CuGraph graph_ = nullptr;
  bool ended_ = false;
};

uint64_t capturable(uint64_t stream) {
  if (stream <= kLegacyStream) {
    throw base::InvalidArgument(
        "stream is the legacy default stream, which cannot be captured; accepted are other streams");
  }
  return stream;
}

}  // namespace

Graph::Graph(const driver::Cuda& cuda, int device, uint64_t stream, Program& program, uint64_t calls)
    : stream_(capturable(stream)), context_(cuda, device) {
  Capture capture(context_, stream_);
  for (uint64_t call = 0; call < calls; ++call) {
    program.check();
    program.call(0, 1);
  }
  const driver::CuGraph graph = capture.end();
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), graph_get_nodes, graph, nullptr, &nodes_);
  GPUSCOPE_CUDA(context_.cuda(), graph_instantiate, &exec_, graph, 0);
}

Graph::~Graph() {
  context_.release_in([&](const driver::Cuda& cuda) { cuda.graph_exec_destroy(exec_); });
}

void Graph::launch() {
  const PrimaryContext::Current current(context_);
  GPUSCOPE_CUDA(context_.cuda(), graph_launch, exec_, driver::as_stream(stream_));
}

}  // namespace gpuscope::timing
