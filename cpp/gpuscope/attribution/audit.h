// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpuscope::attribution {

// clang-format off
/// The audit's facts about a window: X(type, name, description). Each is a member of Counters, an info row
/// "audit.<name>", and an attribute of Python's Audit.
#define GPUSCOPE_AUDIT(X)                                                                                            \
  X(uint64_t, launches, "launches seen in the driver.")                                                              \
  X(uint64_t, kernels, "kernel records received.")                                                                   \
  X(uint64_t, graph_launches, "launches of CUDA graphs.")                                                            \
  X(uint64_t, graph_nodes, "kernels, copies and fills that ran as nodes of graphs.")                                 \
  X(uint64_t, missing, "launches whose kernel record never came.")                                                   \
  X(uint64_t, dropped, "records that CUPTI dropped.")                                                                \
  X(uint64_t, pool_exhausted, "how often no buffer was free for CUPTI.")                                             \
  X(uint64_t, zero_time, "records without timestamps.")                                                              \
  X(uint64_t, backward_time, "records that ended before they began.")                                                \
  X(uint64_t, foreign_buffers, "buffers that another user of CUPTI supplied or received.")                           \
  X(uint64_t, incomplete, "kernels still running when recording ended.")                                             \
  X(uint64_t, unattributed, "GPU records whose launch was not seen.")                                                \
  X(uint64_t, log_dropped, "regions and calls that did not fit into a thread's log.")                                \
  X(uint64_t, unmatched_exits, "exits from regions that were never entered.")                                        \
  X(uint64_t, copies_without_record, "copies and fills without a record, such as copies between host buffers.")      \
  X(uint64_t, evicted, "rows overwritten in the ring.")                                                              \
  X(uint64_t, refused, "rows that the memory cap kept out.")                                                         \
  X(uint64_t, unnamed, "rows that read \"(more names)\": there was no room for their names.")                        \
  X(uint64_t, gpu_off, "how often launches and GPU work were left out (`toggle_collection_dynamic`).")               \
  X(int64_t, gpu_off_ns, "for how long in all.")                                                                     \
  X(uint64_t, regions_off, "the same for regions, operators and marks.")                                             \
  X(int64_t, regions_off_ns, "for how long in all.")                                                                 \
  X(uint64_t, unread_bytes, "bytes of CUPTI's buffers that made no record.")                                         \
  X(int64_t, decode_lag_max_ns, "the longest a record waited to be decoded.")                                        \
  X(int64_t, decode_cpu_ns, "CPU time of the decode thread.")                                                        \
  X(int64_t, flush_cpu_ns, "CPU time of flushes of CUPTI's buffers, on a thread of their own.")                      \
  X(int64_t, flush_max_ns, "the longest flush.")                                                                     \
  X(uint64_t, callbacks, "driver calls observed.")                                                                   \
  X(int64_t, overhead_ns, "time added to the program's threads by gpuscope and CUPTI.")                              \
  X(int64_t, overhead_own_ns, "gpuscope's part, including the calls into it by torch and CPython.")                  \
  X(int64_t, overhead_cupti_ns, "CUPTI's part: two callbacks a call, and the record of each kernel.")                \
  X(int64_t, calibration_ns, "duration of the overhead measurement, once per process and after the recording.")
// clang-format on

/// The audit's counters. Reset with each window.
struct Counters {
#define GPUSCOPE_MEMBER(type, name, description) type name = 0;
  GPUSCOPE_AUDIT(GPUSCOPE_MEMBER)
#undef GPUSCOPE_MEMBER
  uint64_t later_calls = 0;     // begun after the end of the window
  uint64_t matched = 0;         // launches whose kernel arrived
  uint64_t copies = 0;          // calls that copy or fill
  uint64_t matched_copies = 0;  // copies with a record; some, such as between host buffers, have none
  uint64_t matched_graphs = 0;  // graph launches whose first record arrived
  uint64_t gpu_records = 0;
  uint64_t region_events = 0;
  uint64_t function_events = 0;   // calls and returns of Python functions
  uint64_t work_ns = 0;           // callbacks' work for their events, except appending
  uint64_t function_work_ns = 0;  // likewise, of Python functions
  uint64_t samples = 0;           // of Python
  uint64_t samples_dropped = 0;   // no room in the queue
  uint64_t counter_samples = 0;
  uint64_t device_samples = 0;
  uint64_t device_samples_thinned = 0;  // left out in aggregate mode
};

}  // namespace gpuscope::attribution
