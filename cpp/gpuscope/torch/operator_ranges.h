// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "gpuscope/driver/torch.h"

namespace gpuscope::torch {

/// Takes torch's operator ranges, and what its allocators report, into the event logs. What they report goes to the
/// memory history too while one is recorded, and to the open memory::Peaks.
///
/// torch's profiler has a mode that sends every operator to the methods which a device registered, as NVTX ranges are
/// made. We register ourselves in that place, once a process and for good: while nothing is wanted everything is passed
/// on to who was there before, so that other tools find what they would have found. Works with and without CUDA, and
/// however late; nothing else of libtorch is touched, and no header of it is needed.
///
/// install, want, use: one thread, with torch's profiler off. The rest is called by torch on any thread.
class OperatorRanges {
 public:
  enum Want : uint32_t {
    kNothing = 0,
    kRanges = 1,
    kOperands = 2,  // who made an operator's first tensor
    kMemory = 4,
  };
  struct Counts {
    uint32_t pushes = 0;  // whose text is an operator's
    uint32_t pops = 0;
    uint32_t reports = 0;  // of kProbeBytes
  };
  static constexpr int64_t kProbeBytes = 12'345'664;

  static OperatorRanges& process();

  /// Registers with torch, unless done before. False when this libtorch offers no such place.
  bool install(const driver::Torch& torch);
  void want(uint32_t what) noexcept;
  /// Whether operators and allocations of kProbeBytes are counted, and not logged.
  void probe(bool on) noexcept;
  /// Whether torch's profiler is on for us on some thread, whatever is wanted: without a GPU torch asks before it
  /// switches its ranges on.
  void use(bool used) noexcept;
  /// From now on the allocations of the calling thread, on which torch's profiler has just been switched on, are
  /// reported, and its ranges only if they are kept. False when that cannot be had.
  bool watch_memory(const driver::Torch& torch, bool keep_ranges = false) noexcept;
  /// What came since the last call.
  Counts take_counts() noexcept;
};

}  // namespace gpuscope::torch
