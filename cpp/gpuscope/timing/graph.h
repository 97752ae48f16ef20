// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpuscope/timing/context.h"
#include "gpuscope/timing/sampler.h"

namespace gpuscope::timing {

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
