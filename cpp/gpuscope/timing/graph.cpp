// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/graph.h"

namespace gpuscope::timing {
namespace {

constexpr uint64_t kLegacyStream = 1;  // CU_STREAM_LEGACY; 0 is the same
constexpr int kThreadLocal = 1;        // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

/// A capture under way, and the graph that it made. One thread, which is the one that may end it.
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
    program.call(0);
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
