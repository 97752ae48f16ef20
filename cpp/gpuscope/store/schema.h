// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "gpuscope/store/column.h"
#include "gpuscope/store/values.h"

// Every table and column of a trace, declared once: a new one needs only a line here. These lists define rows and their
// appending, eviction in the ring, the .gscope file and its checks, NumPy, Arrow and pandas views, and Python's Trace
// with its documentation.
//
// X(type, column, meaning, documentation). Times are ns since the Unix epoch, sizes bytes. The meaning is one of
//   number             a number
//   time               the time of an event
//   duration           a duration; those of a recording can be added
//   amount             a count or quantity; those of a column can be added
//   minimum, maximum   of a total: kept when totals are merged; their other 8-byte numbers are added
//   text               a string id
//   row(Table)         a row number of that table
//   histogram          the id shared by rows of `histogram`
//   event_of_kind      a row number of the table named by the column `kind`, a Work
//   value_of_type      interpreted by the column `type`, a PayloadType
//   values<Enum>       a number of that enumeration
// optional(...): kNone means none. A file without the column reads as kNone (other columns read as 0).
// owner(...): the row belongs to that row, and the ring evicts both together. Tables without times have one.

// -- events -----------------------------------------------------------------------------------------------------------
#define GPUSCOPE_KERNEL(X)                                                               \
  X(int64_t, start_ns, time, "when it began")                                            \
  X(int64_t, duration_ns, duration, "how long it ran")                                   \
  X(uint32_t, correlation, number, "correlation id of the driver call that launched it") \
  X(uint32_t, variant, row(Variants), "the kernel and how it was launched")              \
  X(uint32_t, region, optional(row(Regions)), "where it was launched")                   \
  X(uint16_t, track, row(Tracks), "the stream that it ran on")                           \
  X(uint16_t, flags, values<Flag>, "what is special about it")
#define GPUSCOPE_GRAPH_NODE(X)                                                                          \
  X(uint32_t, event, owner(event_of_kind), "the row of its kernel, copy or fill")                       \
  X(uint32_t, graph, number, "the executable graph's number")                                           \
  X(uint64_t, node, number, "CUPTI's number of the node")                                               \
  X(uint32_t, path, optional(row(Paths)), "where it was captured; none when that was before profiling") \
  X(uint16_t, kind, values<Work>, "the table of `event`: kernel, memcpy or memset")                     \
  X(uint16_t, flags, values<Flag>, "what is special about it")
#define GPUSCOPE_GRAPH_LAUNCH(X)                                                         \
  X(int64_t, start_ns, time, "when its first node began")                                \
  X(int64_t, duration_ns, duration, "until its last node ended")                         \
  X(uint32_t, correlation, number, "correlation id of the driver call that launched it") \
  X(uint32_t, graph, number, "the executable graph's number")                            \
  X(uint32_t, region, optional(row(Regions)), "where it was launched")                   \
  X(uint16_t, track, row(Tracks), "the stream that it ran on")                           \
  X(uint16_t, flags, values<Flag>, "what is special about it")
#define GPUSCOPE_MEMCPY(X)                                                                \
  X(int64_t, start_ns, time, "when it began")                                             \
  X(int64_t, duration_ns, duration, "how long it ran")                                    \
  X(uint64_t, bytes, amount, "how much was copied")                                       \
  X(uint32_t, correlation, number, "correlation id of the driver call that asked for it") \
  X(uint32_t, region, optional(row(Regions)), "where it was asked for")                   \
  X(uint16_t, track, row(Tracks), "the stream that it ran on")                            \
  X(uint16_t, flags, values<Flag>, "what is special about it")                            \
  X(uint8_t, kind, values<CopyKind>, "from where to where")                               \
  X(uint8_t, source, values<MemoryKind>, "what memory it read")                           \
  X(uint8_t, destination, values<MemoryKind>, "what memory it wrote")                     \
  X(uint8_t, peer, number, "the other device of a copy between two, 255 otherwise")
#define GPUSCOPE_MEMSET(X)                                                                \
  X(int64_t, start_ns, time, "when it began")                                             \
  X(int64_t, duration_ns, duration, "how long it ran")                                    \
  X(uint64_t, bytes, amount, "how much was filled")                                       \
  X(uint32_t, value, number, "what it was filled with")                                   \
  X(uint32_t, correlation, number, "correlation id of the driver call that asked for it") \
  X(uint32_t, region, optional(row(Regions)), "where it was asked for")                   \
  X(uint16_t, track, row(Tracks), "the stream that it ran on")                            \
  X(uint16_t, flags, values<Flag>, "what is special about it")
#define GPUSCOPE_SYNC(X)                                                            \
  X(int64_t, start_ns, time, "when the wait began")                                 \
  X(int64_t, duration_ns, duration, "how long it was")                              \
  X(uint32_t, correlation, number, "correlation id of the driver call that waited") \
  X(uint32_t, region, optional(row(Regions)), "where it waited")                    \
  X(uint16_t, track, row(Tracks), "what was waited for")                            \
  X(uint16_t, kind, values<SyncKind>, "what kind of wait it was")
#define GPUSCOPE_OVERHEAD(X)                                          \
  X(int64_t, start_ns, time, "when it began")                         \
  X(int64_t, duration_ns, duration, "how long it held the thread up") \
  X(uint32_t, kind, values<OverheadKind>, "what did")                 \
  X(uint32_t, system_id, number, "Linux's id of the thread; 0 where it is of none")
#define GPUSCOPE_API(X)                                                                  \
  X(int64_t, start_ns, time, "when it was called")                                       \
  X(int64_t, duration_ns, duration, "until it returned")                                 \
  X(uint32_t, correlation, number, "CUPTI's number of the call, which its work has too") \
  X(uint32_t, region, optional(row(Regions)), "where it was called")                     \
  X(uint16_t, call, row(Calls), "the function, and what it returned")                    \
  X(uint16_t, thread, row(Threads), "the thread that called")
#define GPUSCOPE_REGION(X)                                                      \
  X(int64_t, start_ns, time, "when it was entered")                             \
  X(int64_t, duration_ns, duration, "until it was left")                        \
  X(uint32_t, parent, optional(row(Regions)), "the region around it")           \
  X(uint32_t, path, row(Paths), "its name, and those of the regions around it") \
  X(uint16_t, thread, row(Threads), "the thread that entered it")               \
  X(uint16_t, flags, values<Flag>, "what is special about it")
#define GPUSCOPE_REGION_GPU(X)                                                             \
  X(uint32_t, region, optional(owner(row(Regions))), "the region; none in aggregate mode") \
  X(uint32_t, path, optional(row(Paths)), "its path")                                      \
  X(int64_t, duration_ns, duration, "how long the GPU took, a sum in aggregate mode")
#define GPUSCOPE_MARK(X)                                       \
  X(int64_t, start_ns, time, "when it was")                    \
  X(uint32_t, name, text, "what it says")                      \
  X(uint32_t, region, optional(row(Regions)), "where it was")  \
  X(uint16_t, thread, row(Threads), "the thread that made it") \
  X(uint16_t, flags, values<Flag>, "what is special about it")
#define GPUSCOPE_DETAIL(X)                                                                \
  X(int64_t, sequence, number, "autograd's number of the operator, -1 for none")          \
  X(uint32_t, region, optional(owner(row(Regions))), "the region that this is about")     \
  X(uint32_t, types, optional(text), "the types of its inputs, as torch writes them")     \
  X(uint32_t, results, optional(text), "the shapes of its results, likewise")             \
  X(uint32_t, shapes, optional(text), "the shapes of its inputs, likewise")               \
  X(uint32_t, strides, optional(text), "the strides of its inputs, likewise")             \
  X(uint32_t, concrete_inputs, optional(text), "the numbers among its inputs, likewise")  \
  X(uint32_t, overload, optional(text), "which of the operators of its name it is")       \
  X(uint32_t, forward, optional(row(Regions)), "of a backward operator, its forward one") \
  X(uint32_t, op, number, "torch's number of the operator, 0 for none")                   \
  X(uint32_t, producer, number, "`op` of the one that made its first tensor, 0 for none") \
  X(uint32_t, stack, optional(row(Stacks)), "the Python call stack that it was called with")
#define GPUSCOPE_RESUMPTION(X)                                                                     \
  X(int64_t, suspended_ns, duration, "how long the call was suspended then; 0 where it had ended") \
  X(uint32_t, region, owner(row(Regions)), "what ran of the call, up to a suspension or its end")  \
  X(uint32_t, first, optional(row(Regions)), "the first that ran of the call; none where it was dropped")
#define GPUSCOPE_PAYLOAD(X)                                                                \
  X(uint64_t, value, value_of_type, "the bits of a number, or a string id")                \
  X(uint32_t, region, optional(owner(row(Regions))), "the region that it was given along") \
  X(uint32_t, name, text, "what the value is called")                                      \
  X(uint16_t, type, values<PayloadType>, "how to read `value`")
#define GPUSCOPE_COLLECTIVE(X)                                                              \
  X(int64_t, start_ns, time, "when it was called")                                          \
  X(uint64_t, communicator, number, "the library's id of the communicator")                 \
  X(uint64_t, sequence, number, "the number of the call on its communicator, from 0")       \
  X(uint64_t, bytes, amount, "the size of the message; 0 where it is not told")             \
  X(uint32_t, epoch, number, "how many communicators had this id before")                   \
  X(uint32_t, region, optional(row(Regions)), "the call, in which its kernel was launched") \
  X(uint16_t, kind, values<CollectiveKind>, "what it does")
#define GPUSCOPE_COMMUNICATOR(X)                                                     \
  X(int64_t, start_ns, time, "when it was created, or first used in the recording")  \
  X(uint64_t, id, number, "the library's id, which all ranks have")                  \
  X(uint64_t, calls, amount, "collectives called on it until the end of the window") \
  X(uint32_t, epoch, number, "how many communicators had this id before")            \
  X(uint32_t, ranks, number, "how many it has; 0 where it was created before")       \
  X(uint32_t, rank, number, "this process's rank in it; NONE likewise")
#define GPUSCOPE_ANCHOR(X)                                             \
  X(int64_t, start_ns, time, "a moment on the recording's clock")      \
  X(int64_t, realtime_ns, number, "CLOCK_REALTIME of the same moment") \
  X(int64_t, monotonic_ns, number, "CLOCK_MONOTONIC of the same moment")
#define GPUSCOPE_LOSS(X)                                                    \
  X(int64_t, start_ns, time, "from when on rows are missing")               \
  X(int64_t, duration_ns, duration, "for how long")                         \
  X(uint64_t, lost_rows, amount, "how many rows of all tables are missing") \
  X(uint32_t, reason, text, "why they could not be written")
#define GPUSCOPE_ALLOCATION(X)                                                                 \
  X(int64_t, start_ns, time, "when it was")                                                    \
  X(int64_t, bytes, amount, "how much, negative when given back")                              \
  X(uint64_t, address, number, "where it lies")                                                \
  X(uint64_t, allocated_bytes, amount, "what the allocator then had given out on that device") \
  X(uint64_t, reserved_bytes, amount, "what it then held on that device")                      \
  X(uint32_t, region, optional(row(Regions)), "where it was asked for")                        \
  X(uint32_t, ordinal, number, "of the device; NONE for host memory")                          \
  X(uint16_t, thread, row(Threads), "the thread that asked")                                   \
  X(uint16_t, flags, values<Flag>, "what is special about it")
#define GPUSCOPE_FAILED_ALLOCATION(X)                                                          \
  X(int64_t, start_ns, time, "when it was")                                                    \
  X(int64_t, bytes, amount, "how much was asked for")                                          \
  X(uint64_t, allocated_bytes, amount, "what the allocator then had given out on that device") \
  X(uint64_t, reserved_bytes, amount, "what it then held on that device")                      \
  X(uint32_t, region, optional(row(Regions)), "where it was asked for")                        \
  X(uint32_t, ordinal, number, "of the device; NONE for host memory")                          \
  X(uint16_t, thread, row(Threads), "the thread that asked")
#define GPUSCOPE_DEVICE_MEMORY(X)                                                                                 \
  X(int64_t, start_ns, time, "when it was")                                                                       \
  X(int64_t, bytes, amount, "how much, negative when given back")                                                 \
  X(uint64_t, address, number, "where it lies")                                                                   \
  X(uint64_t, pool, number, "address of the CUDA pool that it lies in, 0 for none")                               \
  X(uint64_t, pool_reserved_bytes, number, "what that pool then held, 0 where it does not say")                   \
  X(uint64_t, pool_used_bytes, number, "what of that it had given out")                                           \
  X(uint32_t, correlation, number, "correlation id of the call, a row of `api`")                                  \
  X(uint32_t, region, optional(row(Regions)), "where the call was made")                                          \
  X(uint32_t, library, optional(text), "path of the file whose code asked; none before CUDA 12.6 and off x86-64") \
  X(uint16_t, track, row(Tracks), "its stream, NONE for calls that take effect at once, as cudaMalloc")           \
  X(uint16_t, flags, values<Flag>, "what is special about it")                                                    \
  X(uint8_t, kind, values<MemoryKind>, "what memory it is")
#define GPUSCOPE_MEMORY_POOL(X)                                                         \
  X(int64_t, start_ns, time, "when it was")                                             \
  X(uint64_t, pool, number, "the pool's address")                                       \
  X(uint64_t, reserved_bytes, number, "what it then held, 0 where it does not say")     \
  X(uint64_t, used_bytes, number, "what of that it had given out")                      \
  X(uint64_t, release_threshold_bytes, number, "what it keeps when it is synchronized") \
  X(uint32_t, correlation, number, "correlation id of the call, a row of `api`")        \
  X(uint32_t, region, optional(row(Regions)), "where the call was made")                \
  X(uint32_t, device, number, "CUDA's number of its device")                            \
  X(uint16_t, flags, values<Flag>, "what is special about it")                          \
  X(uint8_t, operation, values<PoolOperation>, "what was done to it")
#define GPUSCOPE_PYTHON_FUNCTION(X)                                                             \
  X(int64_t, start_ns, time, "when it was called")                                              \
  X(int64_t, duration_ns, duration, "until it returned")                                        \
  X(uint32_t, name, text, "as torch writes it: `file.py(12): function`, `nn.Module: Linear_0`") \
  X(uint32_t, parent, optional(row(PythonFunctions)), "the one that called it")                 \
  X(uint32_t, module, optional(number), "of a call of a module, which of its class it is")      \
  X(uint16_t, thread, row(Threads), "the thread that called")                                   \
  X(uint16_t, flags, values<Flag>, "what is special about it")                                  \
  X(uint8_t, kind, values<FunctionKind>, "what was called")
#define GPUSCOPE_PYTHON_SAMPLE(X)                                                                               \
  X(int64_t, start_ns, time, "from when on the thread counts as being there; in aggregate mode the first time") \
  X(int64_t, duration_ns, duration, "until it was seen there last, a sum in aggregate mode")                    \
  X(int64_t, cpu_ns, duration, "of that, on a CPU")                                                             \
  X(uint32_t, stack, row(Stacks), "the Python call stack that it was in")                                       \
  X(uint64_t, count, amount, "how many samples found it there")                                                 \
  X(uint16_t, thread, row(Threads), "the thread")
#define GPUSCOPE_COUNTER_SAMPLE(X)                                   \
  X(int64_t, start_ns, time, "when it began")                        \
  X(int64_t, duration_ns, duration, "how long the counters counted") \
  X(uint32_t, device, number, "CUDA's number of the device")
#define GPUSCOPE_COUNTER_VALUE(X)                               \
  X(uint32_t, sample, owner(row(CounterSamples)), "its sample") \
  X(uint16_t, counter, row(Counters), "what it is a value of")  \
  X(float, value, number, "in the counter's unit, of the whole sample")
#define GPUSCOPE_DEVICE_SAMPLE(X)                                                                       \
  X(int64_t, start_ns, time, "when it was read; in every other column -1 where that was not read then") \
  X(int64_t, memory_used_bytes, number, "memory in use, by all processes")                              \
  X(int64_t, throttle_reasons, number, "what holds clocks back: bits of nvmlClocksEventReasons")        \
  X(uint32_t, device, number, "CUDA's number of the device")                                            \
  X(int32_t, power_mw, number, "power, as the driver averages it")                                      \
  X(int32_t, power_limit_mw, number, "what it may be")                                                  \
  X(int32_t, power_limit_default_mw, number, "what it might be if nobody had changed that")             \
  X(int32_t, sm_mhz, number, "clock of the multiprocessors")                                            \
  X(int32_t, sm_max_mhz, number, "what it may be")                                                      \
  X(int32_t, memory_mhz, number, "clock of the memory")                                                 \
  X(int32_t, temperature_c, number, "degrees Celsius")                                                  \
  X(int32_t, busy_percent, number, "of the driver's latest interval, in which kernels ran")             \
  X(int32_t, memory_busy_percent, number, "likewise, in which memory was read or written")
#define GPUSCOPE_DEVICE_COUNTER(X)                                                                                 \
  X(int64_t, start_ns, time, "when it was read; in every other column -1 where that was not read then")            \
  X(int64_t, energy_mj, number, "what the GPU had used since its driver was loaded, at the counter's latest tick") \
  X(int64_t, tick_ns, number, "about when that tick was")                                                          \
  X(int64_t, tick_error_ns, number, "by how much it may have been earlier or later")                               \
  X(int64_t, sw_power_cap_ns, number, "how long the limit of its power had held clocks back since then")           \
  X(int64_t, sync_boost_ns, number, "how long other GPUs of its group had")                                        \
  X(int64_t, sw_thermal_slowdown_ns, number, "how long its temperature had")                                       \
  X(int64_t, hw_thermal_slowdown_ns, number, "how long its temperature had, near to damage")                       \
  X(int64_t, hw_power_brake_slowdown_ns, number, "how long the power supply had")                                  \
  X(uint32_t, device, number, "CUDA's number of the device")
#define GPUSCOPE_THREAD_WAIT(X)                                                                           \
  X(int64_t, start_ns, time, "from when on the thread was not on a CPU all the time")                     \
  X(int64_t, duration_ns, duration, "until it was seen there again")                                      \
  X(int64_t, cpu_ns, duration, "of that, on a CPU")                                                       \
  X(int64_t, wait_ns, duration, "of that, it could run and waited for a CPU, as Linux' schedstat has it") \
  X(uint16_t, thread, row(Threads), "the thread")
#define GPUSCOPE_PROCESS_USAGE(X)                                                                        \
  X(int64_t, start_ns, time, "from when on")                                                             \
  X(int64_t, duration_ns, duration, "for how long")                                                      \
  X(int64_t, cpu_ns, duration, "how long its threads were on CPUs, added up")                            \
  X(int64_t, wait_ns, number, "how long its first thread waited for a CPU; -1 where Linux does not say") \
  X(int64_t, read_bytes, number, "what it had read from storage; -1 where Linux does not say")           \
  X(uint32_t, process, number, "Linux's process id: the program's own, or of a process that it started")
#define GPUSCOPE_CONTROL_GROUP_USAGE(X)                                                                     \
  X(int64_t, start_ns, time, "from when on")                                                                \
  X(int64_t, duration_ns, duration, "for how long")                                                         \
  X(int64_t, throttled_ns, number, "how long CPUs were kept from it by its limit, added up; -1: not known") \
  X(int64_t, throttled_periods, number, "in how many periods of that limit; -1 where Linux does not say")   \
  X(int64_t, io_wait_ns, number, "how long some task waited for storage; -1 where Linux does not say")
#define GPUSCOPE_CALL_STACK(X)                          \
  X(uint32_t, api, owner(row(Apis)), "the driver call") \
  X(uint32_t, stack, optional(row(Stacks)), "the Python call stack that it was made with")

// -- totals: one row per call path, in aggregate mode -----------------------------------------------------------------
#define GPUSCOPE_REGION_TOTAL(X)                                                     \
  X(uint32_t, path, optional(row(Paths)), "the regions that this is about")          \
  X(uint32_t, histogram, optional(histogram), "how their durations are distributed") \
  X(uint64_t, count, amount, "how many there were")                                  \
  X(int64_t, total_ns, duration, "their durations together")                         \
  X(int64_t, child_ns, duration, "of that, spent in regions and calls inside")       \
  X(int64_t, min_ns, minimum, "the shortest duration")                               \
  X(int64_t, max_ns, maximum, "the longest")                                         \
  X(int64_t, suspended_ns, duration, "beside `total_ns`, spent suspended")
#define GPUSCOPE_WORK_TOTAL(X)                                                                \
  X(uint32_t, path, optional(row(Paths)), "where it was launched; none outside every region") \
  X(uint32_t, name, text, "of the kernel, copy, fill or call")                                \
  X(uint32_t, histogram, optional(histogram), "how the durations are distributed")            \
  X(uint32_t, kind, values<Work>, "what it is")                                               \
  X(uint64_t, count, amount, "how many there were")                                           \
  X(uint64_t, bytes, amount, "what they moved")                                               \
  X(int64_t, total_ns, duration, "their durations together")                                  \
  X(int64_t, min_ns, minimum, "the shortest duration")                                        \
  X(int64_t, max_ns, maximum, "the longest")
#define GPUSCOPE_HISTOGRAM(X)                                                 \
  X(uint32_t, histogram, histogram, "the histogram that this bin belongs to") \
  X(uint32_t, bin, number, "which durations: store::histogram_bin of them")   \
  X(uint64_t, count, amount, "how many of them there were")

// -- dictionaries: distinct rows; they refer to earlier rows and to earlier dictionaries in the list ------------------
#define GPUSCOPE_PATH(X)                                                        \
  X(uint32_t, parent, optional(row(Paths)), "the path of the region around it") \
  X(uint32_t, name, text, "the region's name")                                  \
  X(uint32_t, depth, number, "how many regions are around it")                  \
  X(uint32_t, kind, values<RegionKind>, "what opened it")                       \
  X(uint32_t, domain, text, "of an NVTX range")
#define GPUSCOPE_STACK(X)                                               \
  X(uint32_t, parent, optional(row(Stacks)), "the stack of its caller") \
  X(uint32_t, function, text, "the function's name")                    \
  X(uint32_t, file, text, "where it is defined")                        \
  X(uint32_t, line, number, "the line that was running")                \
  X(uint32_t, instruction, optional(number), "of a sample's innermost frame, which instruction of the function ran")
#define GPUSCOPE_VARIANT(X)                                                                     \
  X(uint32_t, name, text, "mangled, as the driver gives it")                                    \
  X(uint32_t, grid_x, number, "blocks of the grid")                                             \
  X(uint32_t, grid_y, number, "likewise")                                                       \
  X(uint32_t, grid_z, number, "likewise")                                                       \
  X(uint32_t, block_x, number, "threads of a block")                                            \
  X(uint32_t, block_y, number, "likewise")                                                      \
  X(uint32_t, block_z, number, "likewise")                                                      \
  X(uint32_t, cluster_x, number, "blocks of a cluster")                                         \
  X(uint32_t, cluster_y, number, "likewise")                                                    \
  X(uint32_t, cluster_z, number, "likewise")                                                    \
  X(uint32_t, static_shared_bytes, number, "shared memory of a block that the kernel declares") \
  X(uint32_t, dynamic_shared_bytes, number, "shared memory of a block that the launch added")   \
  X(uint32_t, local_bytes, number, "local memory of a thread")                                  \
  X(uint32_t, registers, number, "registers of a thread")
#define GPUSCOPE_TRACK(X)                                       \
  X(uint32_t, device, number, "CUDA's number of the device")    \
  X(uint32_t, context, number, "CUPTI's number of the context") \
  X(uint32_t, stream, number, "CUPTI's number of the stream")
#define GPUSCOPE_THREAD(X)                            \
  X(uint64_t, system_id, number, "Linux's thread id") \
  X(uint32_t, name, text, "as the program named it")  \
  X(uint32_t, flags, number, "none yet")
#define GPUSCOPE_CALL(X)                                                             \
  X(uint32_t, name, text, "the function's name")                                     \
  X(uint16_t, kind, values<CallKind>, "what it does")                                \
  X(uint16_t, flags, values<Flag>, "CAPTURED: recorded into a graph instead of run") \
  X(int32_t, result, number, "the CUresult that it returned")
#define GPUSCOPE_COUNTER(X)                                                    \
  X(uint32_t, name, text, "as CUPTI and Nsight Compute write it")              \
  X(uint32_t, unit, text, "of its values: percent, byte, ...; empty for none") \
  X(uint32_t, description, text, "what it counts, as CUPTI says")
#define GPUSCOPE_DEVICE(X)                                                     \
  X(uint32_t, ordinal, number, "CUDA's number of it")                          \
  X(uint32_t, name, text, "the product's name")                                \
  X(uint32_t, uuid, text, "the device's UUID")                                 \
  X(uint32_t, multiprocessors, number, "how many it has")                      \
  X(uint32_t, capability_major, number, "compute capability before the point") \
  X(uint32_t, capability_minor, number, "and behind it")                       \
  X(uint64_t, memory_bytes, number, "the memory that it has")
#define GPUSCOPE_INFO(X)                           \
  X(uint32_t, key, text, "what the fact is about") \
  X(uint32_t, value, text, "what it says")

#ifndef GPUSCOPE_EXTRA_TABLES  // a test has a table of its own
#define GPUSCOPE_EXTRA_TABLES(X)
#endif
// X(Type, table, LIST, role, attribute of Python's Trace, documentation)
#define GPUSCOPE_TABLES(X)                                                                                           \
  X(Kernels, kernel, GPUSCOPE_KERNEL, Event, kernels, "Kernels that ran.")                                           \
  X(GraphNodes, graph_node, GPUSCOPE_GRAPH_NODE, Event, graph_nodes,                                                 \
    "The kernels, copies and fills that ran as nodes of CUDA graphs.")                                               \
  X(GraphLaunches, graph_launch, GPUSCOPE_GRAPH_LAUNCH, Event, graph_launches,                                       \
    "Launches of CUDA graphs, where graphs are traced as a whole.")                                                  \
  X(Memcpys, memcpy, GPUSCOPE_MEMCPY, Event, memcpy, "Copies of memory.")                                            \
  X(Memsets, memset, GPUSCOPE_MEMSET, Event, memset, "Fills of memory.")                                             \
  X(Overheads, overhead, GPUSCOPE_OVERHEAD, Event, overheads,                                                        \
    "What the driver and CUPTI take of the program's threads for themselves, with `overheads`.")                     \
  X(Syncs, sync, GPUSCOPE_SYNC, Event, sync, "Waits for the GPU.")                                                   \
  X(Regions, region, GPUSCOPE_REGION, Event, regions, "Regions of the program, operators and ranges.")               \
  X(RegionGpus, region_gpu, GPUSCOPE_REGION_GPU, Event, region_gpu,                                                  \
    "GPU time between a region's two CUDA events, where CUPTI is not to be had.")                                    \
  X(Marks, mark, GPUSCOPE_MARK, Event, marks, "Instants that the program marked.")                                   \
  X(Details, detail, GPUSCOPE_DETAIL, Event, details,                                                                \
    "What is known of some regions beyond their name, in the order of `region`.")                                    \
  X(Resumptions, resumption, GPUSCOPE_RESUMPTION, Event, resumptions,                                                \
    "Which regions are parts of one call of a decorated coroutine or generator, in the order of `region`.")          \
  X(Payloads, payload, GPUSCOPE_PAYLOAD, Event, payloads,                                                            \
    "Numbers and texts that a region was given along, as an NVTX payload has them.")                                 \
  X(Collectives, collective, GPUSCOPE_COLLECTIVE, Event, collectives,                                                \
    "Calls of NCCL's collective operations and of its sends and receives, by NVTX.")                                 \
  X(Communicators, communicator, GPUSCOPE_COMMUNICATOR, Event, communicators,                                        \
    "NCCL's communicators, by NVTX; calls of one id and epoch have the same sequence number on all ranks.")          \
  X(Anchors, anchor, GPUSCOPE_ANCHOR, Event, anchors, "Readings of the system's clocks, one a second.")              \
  X(Losses, loss, GPUSCOPE_LOSS, Event, losses, "Rows that could not be written to the disk, with `spool`.")         \
  X(Allocations, allocation, GPUSCOPE_ALLOCATION, Event, memory,                                                     \
    "Memory that frameworks' allocators handed out and took back, with `profile_memory`.")                           \
  X(FailedAllocations, failed_allocation, GPUSCOPE_FAILED_ALLOCATION, Event, failed_allocations,                     \
    "What those allocators were asked for and had no memory for, with `profile_memory`.")                            \
  X(DeviceMemories, device_memory, GPUSCOPE_DEVICE_MEMORY, Event, device_memory,                                     \
    "Memory that libraries took from the driver and gave back, with `profile_memory` and CUPTI; what they hold and " \
    "hand out in pieces is one row.")                                                                                \
  X(MemoryPools, memory_pool, GPUSCOPE_MEMORY_POOL, Event, memory_pools,                                             \
    "What was done to CUDA memory pools as a whole.")                                                                \
  X(Apis, api, GPUSCOPE_API, Event, api, "Calls of the CUDA driver that launch, copy, synchronize or allocate.")     \
  X(CallStacks, call_stack, GPUSCOPE_CALL_STACK, Event, call_stacks,                                                 \
    "Where in the program a driver call was made, in the order of `api`.")                                           \
  X(PythonFunctions, python_function, GPUSCOPE_PYTHON_FUNCTION, Event, python_functions,                             \
    "Calls of Python functions, with `with_stack`; no regions, so that nothing is attributed to them.")              \
  X(PythonSamples, python_sample, GPUSCOPE_PYTHON_SAMPLE, Event, python_samples,                                     \
    "Where threads were in Python, looked at every so often, with `python_samples`: a row as long as one stays "     \
    "there.")                                                                                                        \
  X(CounterSamples, counter_sample, GPUSCOPE_COUNTER_SAMPLE, Event, counter_samples,                                 \
    "Spans over which each GPU's hardware counters counted, with `counters`; of all that ran on it.")                \
  X(CounterValues, counter_value, GPUSCOPE_COUNTER_VALUE, Event, counter_values,                                     \
    "What they counted: rows of one sample follow each other, in the order of `counters`.")                          \
  X(DeviceSamples, device_sample, GPUSCOPE_DEVICE_SAMPLE, Event, device_samples,                                     \
    "What NVML told of each GPU from time to time, with `device_samples`.")                                          \
  X(DeviceCounters, device_counter, GPUSCOPE_DEVICE_COUNTER, Event, device_counters,                                 \
    "NVML's counters of each GPU as they were read, with `device_samples`: differences tell of the time between.")   \
  X(ThreadWaits, thread_wait, GPUSCOPE_THREAD_WAIT, Event, thread_waits,                                             \
    "When threads waited for a CPU, with `python_samples`.")                                                         \
  X(ProcessUsages, process_usage, GPUSCOPE_PROCESS_USAGE, Event, process_usages,                                     \
    "What the program and the processes that it started used, ten times a second, with `python_samples`.")           \
  X(ControlGroupUsages, control_group_usage, GPUSCOPE_CONTROL_GROUP_USAGE, Event, control_group_usages,              \
    "What held up the program's control group, a container's, ten times a second, with `python_samples`.")           \
  X(RegionTotals, region_total, GPUSCOPE_REGION_TOTAL, Total, region_totals,                                         \
    "Regions by call path, in aggregate mode.")                                                                      \
  X(WorkTotals, work_total, GPUSCOPE_WORK_TOTAL, Total, work_totals,                                                 \
    "GPU work and driver calls by name and call path, in aggregate mode.")                                           \
  X(Histograms, histogram, GPUSCOPE_HISTOGRAM, Histogram, histograms, "Durations of totals counted by size.")        \
  X(Devices, device, GPUSCOPE_DEVICE, Dictionary, devices, "GPUs.")                                                  \
  X(Tracks, track, GPUSCOPE_TRACK, Dictionary, tracks, "Streams that work ran on.")                                  \
  X(Threads, thread, GPUSCOPE_THREAD, Dictionary, threads, "Threads of the program.")                                \
  X(Calls, call, GPUSCOPE_CALL, Dictionary, calls, "Functions of the driver, by what they returned.")                \
  X(Variants, variant, GPUSCOPE_VARIANT, Dictionary, variants, "Kernels, each with one launch configuration.")       \
  X(Paths, path, GPUSCOPE_PATH, Dictionary, paths,                                                                   \
    "Call paths: the regions open around a point in the program, outermost first.")                                  \
  X(Stacks, stack, GPUSCOPE_STACK, Dictionary, stacks, "Call stacks: a frame, and the stack of its caller.")         \
  X(Counters, counter, GPUSCOPE_COUNTER, Dictionary, counters, "Hardware counters that were sampled.")               \
  GPUSCOPE_EXTRA_TABLES(X)                                                                                           \
  X(Infos, info, GPUSCOPE_INFO, Info, info, "Facts about the run, by key.")

namespace gpuscope::store {

/// The value of columns of `device_sample` and `device_counter` without a reading.
inline constexpr int64_t kNotRead = -1;

/// The target of a column's numbers. Histograms: the id shared by rows of `histogram`.
enum class Target : uint8_t {
  Nothing,
  Strings,
  EventOfKind,
  ValueOfType,
#define GPUSCOPE_TARGET(Type, ...) Type,
  GPUSCOPE_TABLES(GPUSCOPE_TARGET)
#undef GPUSCOPE_TARGET
};
inline constexpr std::size_t kTargets = static_cast<std::size_t>(Target::Infos) + 1;

#define GPUSCOPE_ROLE(X) X(Event, 0) X(Total, 1) X(Histogram, 2) X(Dictionary, 3) X(Info, 4)
#define GPUSCOPE_ENUMERATOR(name, value) name = value,
enum class Role : uint8_t { GPUSCOPE_ROLE(GPUSCOPE_ENUMERATOR) };
#undef GPUSCOPE_ENUMERATOR
enum class Merge : uint8_t { Add, Minimum, Maximum };
enum class Quantity : uint8_t { Number, Time, Duration, Amount };

struct Meaning {
  Target target = Target::Nothing;
  bool optional = false;
  bool owner = false;
  Quantity quantity = Quantity::Number;
  Merge merge = Merge::Add;
  std::string_view enumeration = {};  // NOLINT(readability-redundant-member-init): gcc warns without it
};

struct ColumnInfo {
  std::string_view name;
  std::size_t bytes;
  bool is_signed;
  bool is_float;
  Meaning meaning;
  std::string_view doc;
};

struct TableInfo {
  std::string_view name;
  Target target;
  Role role;
  std::string_view attribute;
  std::string_view doc;
  std::span<const ColumnInfo> columns;
};

/// The meanings used in the lists.
struct Meanings {
  static constexpr Meaning number = {};
  static constexpr Meaning time = {.quantity = Quantity::Time};
  static constexpr Meaning duration = {.quantity = Quantity::Duration};
  static constexpr Meaning amount = {.quantity = Quantity::Amount};
  static constexpr Meaning minimum = {.merge = Merge::Minimum};
  static constexpr Meaning maximum = {.merge = Merge::Maximum};
  static constexpr Meaning text = {.target = Target::Strings};
  static constexpr Meaning histogram = {.target = Target::Histograms};
  static constexpr Meaning event_of_kind = {.target = Target::EventOfKind};
  static constexpr Meaning value_of_type = {.target = Target::ValueOfType};
  template <class Enum>
  static constexpr Meaning values = {.enumeration = kEnumName<Enum>};
  static constexpr Meaning row(Target target) { return {.target = target}; }
  static constexpr Meaning optional(Meaning meaning) {
    meaning.optional = true;
    return meaning;
  }
  static constexpr Meaning owner(Meaning meaning) {
    meaning.owner = true;
    return meaning;
  }
};

#define GPUSCOPE_FIELD(type, name, meaning, doc) type name;
#define GPUSCOPE_COLUMN(type, name, meaning, doc) Column<type> name;
#define GPUSCOPE_INFO_OF(type, name, meaning, doc) \
  ColumnInfo{#name, sizeof(type), std::is_signed_v<type>, std::is_floating_point_v<type>, meaning, doc},
#define GPUSCOPE_PUSH(type, name, meaning, doc) name.push_back(values.name);
#define GPUSCOPE_AT(type, name, meaning, doc) name[index],
#define GPUSCOPE_VISIT(type, name, meaning, doc) visit(kColumns[column++], name);
#define GPUSCOPE_PAIR(type, name, meaning, doc) visit(kColumns[column++], one.name, other.name);
#define GPUSCOPE_DROP(type, name, meaning, doc) name.drop_front(rows);
#define GPUSCOPE_TRUNCATE(type, name, meaning, doc) name.truncate(rows);
#define GPUSCOPE_BYTES(type, name, meaning, doc) +sizeof(type)
#define GPUSCOPE_COUNT(type, name, meaning, doc) rows = name.size();
#define GPUSCOPE_DECLARE_TABLE(Type, table, LIST, role, attribute, doc)                            \
  struct Type##Columns : Meanings {                                                                \
    static constexpr auto describe() {                                                             \
      using enum Target;                                                                           \
      return std::array{LIST(GPUSCOPE_INFO_OF)};                                                   \
    }                                                                                              \
  };                                                                                               \
  struct Type {                                                                                    \
    struct Row {                                                                                   \
      LIST(GPUSCOPE_FIELD)                                                                         \
    };                                                                                             \
    static constexpr auto kColumns = Type##Columns::describe();                                    \
    static constexpr TableInfo kInfo{#table, Target::Type, Role::role, #attribute, doc, kColumns}; \
    static constexpr std::size_t kRowBytes = 0 LIST(GPUSCOPE_BYTES);                               \
    LIST(GPUSCOPE_COLUMN)                                                                          \
    std::size_t size() const noexcept {                                                            \
      std::size_t rows = 0;                                                                        \
      LIST(GPUSCOPE_COUNT)                                                                         \
      return rows;                                                                                 \
    }                                                                                              \
    /* Returns the new row's number. */                                                            \
    uint32_t append(const Row& values) {                                                           \
      const std::size_t before = size();                                                           \
      try {                                                                                        \
        LIST(GPUSCOPE_PUSH)                                                                        \
      } catch (...) { /* out of memory: no column may be ahead */                                  \
        truncate(before);                                                                          \
        throw;                                                                                     \
      }                                                                                            \
      return static_cast<uint32_t>(before);                                                        \
    }                                                                                              \
    Row operator[](std::size_t index) const { return {LIST(GPUSCOPE_AT)}; }                        \
    void drop_front(std::size_t rows) { LIST(GPUSCOPE_DROP) }                                      \
    void truncate(std::size_t rows) { LIST(GPUSCOPE_TRUNCATE) }                                    \
    /* visit(const ColumnInfo&, column) */                                                         \
    template <class F>                                                                             \
    void each_column(F&& visit) {                                                                  \
      std::size_t column = 0;                                                                      \
      LIST(GPUSCOPE_VISIT)                                                                         \
    }                                                                                              \
    template <class F>                                                                             \
    void each_column(F&& visit) const {                                                            \
      std::size_t column = 0;                                                                      \
      LIST(GPUSCOPE_VISIT)                                                                         \
    }                                                                                              \
    /* visit(const ColumnInfo&, column of one, column of the other) */                             \
    template <class Self, class F>                                                                 \
    static void each_pair(Self& one, const Type& other, F&& visit) {                               \
      std::size_t column = 0;                                                                      \
      LIST(GPUSCOPE_PAIR)                                                                          \
    }                                                                                              \
  };
GPUSCOPE_TABLES(GPUSCOPE_DECLARE_TABLE)
#undef GPUSCOPE_FIELD
#undef GPUSCOPE_COLUMN
#undef GPUSCOPE_INFO_OF
#undef GPUSCOPE_PUSH
#undef GPUSCOPE_AT
#undef GPUSCOPE_VISIT
#undef GPUSCOPE_PAIR
#undef GPUSCOPE_DROP
#undef GPUSCOPE_TRUNCATE
#undef GPUSCOPE_BYTES
#undef GPUSCOPE_COUNT
#undef GPUSCOPE_DECLARE_TABLE

inline constexpr std::array kTables = {
#define GPUSCOPE_TABLE_INFO(Type, ...) Type::kInfo,
    GPUSCOPE_TABLES(GPUSCOPE_TABLE_INFO)
#undef GPUSCOPE_TABLE_INFO
};

/// The table of a target. Null for other targets.
constexpr const TableInfo* find_table(Target target) noexcept {
  for (const TableInfo& table : kTables) {
    if (table.target == target) {
      return &table;
    }
  }
  return nullptr;
}

/// The table with that name. Null if there is none.
constexpr const TableInfo* find_table(std::string_view name) noexcept {
  for (const TableInfo& table : kTables) {
    if (table.name == name) {
      return &table;
    }
  }
  return nullptr;
}

/// Whether a column names the row to which a row belongs.
constexpr bool has_owner(const TableInfo& table) noexcept {
  return std::ranges::any_of(table.columns, [](const ColumnInfo& column) { return column.meaning.owner; });
}

/// Tables whose rows have times. The ring drops the oldest rows.
template <class Table>
concept Timed = requires(const Table& table) {
  table.start_ns;
};

/// The target of one row's number in a column.
template <class Table>
Target target_of(const Table& table, const ColumnInfo& column, std::size_t row) noexcept {
  if constexpr (requires { table.kind; }) {
    if (column.meaning.target == Target::EventOfKind) {
      switch (static_cast<Work>(table.kind[row])) {
        case Work::Kernel:
          return Target::Kernels;
        case Work::Memcpy:
          return Target::Memcpys;
        case Work::Memset:
          return Target::Memsets;
        default:
          return Target::Nothing;
      }
    }
  }
  if constexpr (requires { table.type; }) {
    if (column.meaning.target == Target::ValueOfType) {
      const auto type = static_cast<PayloadType>(table.type[row]);
      return type == PayloadType::Text || type == PayloadType::List || type == PayloadType::Complex ? Target::Strings
                                                                                                    : Target::Nothing;
    }
  }
  return column.meaning.target;
}

}  // namespace gpuscope::store
