// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/driver/cuda.h"
#include "gpuscope/driver/cupti.h"
#include "gpuscope/store/store.h"

namespace gpuscope::session {

/// What a recording says about itself, for its audit.
struct Facts {
  attribution::Mode mode = attribution::Mode::Full;
  bool merged_graphs = false;
  std::string tier, tier_reason, notes;
  int64_t open_ns = 0, close_ns = 0;
  attribution::Counters counters;
  attribution::Switch::Total gpu_off, regions_off;
  uint64_t dropped = 0, pool_exhausted = 0, foreign_buffers = 0, log_dropped = 0;
  int64_t decode_lag_max_ns = 0, decode_cpu_ns = 0, flush_cpu_ns = 0;
  bool cupti_broke = false;
};

/// Writes the facts as info rows, and the devices that the program uses.
void write_facts(store::Store& store, const Facts& facts, const driver::Cuda& cuda, const driver::Cupti& cupti);

/// Adds the devices of a process that has called cuInit.
void write_devices(store::Store& store, const driver::Cuda& cuda);

/// CUPTI 13.0 crashes when graph tracing is switched on after a graph was instantiated without it: it is safe only as
/// long as the process has no context.
bool graph_trace_is_safe(const driver::Cuda& cuda);

}  // namespace gpuscope::session
