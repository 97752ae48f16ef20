// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpuscope/base/events.h"

// The enumerations of trace columns. X(enumerator, value). Values are stored in files: append only. Python's
// enumerations (_core.CopyKind.HOST_TO_DEVICE) are made from these lists.

#define GPUSCOPE_WORK(X) X(Kernel, 1) X(Memcpy, 2) X(Memset, 3) X(Call, 4) X(Sync, 5) X(GraphLaunch, 6)
#define GPUSCOPE_COPY_KIND(X) \
  X(Unknown, 0)               \
  X(HostToDevice, 1)          \
  X(DeviceToHost, 2)          \
  X(HostToArray, 3)           \
  X(ArrayToHost, 4)           \
  X(ArrayToArray, 5)          \
  X(ArrayToDevice, 6)         \
  X(DeviceToArray, 7)         \
  X(DeviceToDevice, 8)        \
  X(HostToHost, 9)            \
  X(PeerToPeer, 10)
#define GPUSCOPE_MEMORY_KIND(X) \
  X(Unknown, 0)                 \
  X(Pageable, 1)                \
  X(Pinned, 2)                  \
  X(Device, 3)                  \
  X(Array, 4)                   \
  X(Managed, 5)                 \
  X(DeviceStatic, 6)            \
  X(ManagedStatic, 7)
#define GPUSCOPE_POOL_OPERATION(X) X(Unknown, 0) X(Created, 1) X(Destroyed, 2) X(Trimmed, 3)
#define GPUSCOPE_SYNC_KIND(X) X(Unknown, 0) X(Event, 1) X(StreamWaitEvent, 2) X(Stream, 3) X(Context, 4)
#define GPUSCOPE_OVERHEAD_KIND(X)           \
  X(Unknown, 0)                             \
  X(DriverCompiler, 1)                      \
  X(CuptiBufferFlush, 1 << 16)              \
  X(CuptiInstrumentation, 2 << 16)          \
  X(CuptiResource, 3 << 16)                 \
  X(RuntimeTriggeredModuleLoading, 4 << 16) \
  X(LazyFunctionLoading, 5 << 16)           \
  X(CommandBufferFull, 6 << 16)             \
  X(ActivityBufferRequest, 7 << 16)         \
  X(UvmActivityInit, 8 << 16)
#define GPUSCOPE_CALL_KIND(X) \
  X(Other, 0)                 \
  X(Launch, 1)                \
  X(GraphLaunch, 2)           \
  X(Memcpy, 3)                \
  X(Memset, 4)                \
  X(Sync, 5)                  \
  X(Alloc, 6)                 \
  X(Free, 7)
#define GPUSCOPE_PAYLOAD_TYPE(X) \
  X(Unsigned, 0) X(Signed, 1) X(Float, 2) X(Text, 3) X(Bool, 4) X(List, 5) X(None, 6) X(Complex, 7)
#define GPUSCOPE_COLLECTIVE_KIND(X) \
  X(Other, 0)                       \
  X(AllReduce, 1)                   \
  X(AllGather, 2)                   \
  X(ReduceScatter, 3)               \
  X(Broadcast, 4)                   \
  X(Reduce, 5)                      \
  X(AllToAll, 6)                    \
  X(Send, 7)                        \
  X(Recv, 8)                        \
  X(Gather, 9)                      \
  X(Scatter, 10)
#define GPUSCOPE_FLAG(X)                                                            \
  X(ZeroTime, 1 << 0)     /* the GPU gave no timestamps */                          \
  X(BackwardTime, 1 << 1) /* it ended before it began: the duration reads 0 */      \
  X(Incomplete, 1 << 2)   /* still running when collection ended */                 \
  X(NoLaunch, 1 << 3)     /* no launch was seen: begun before profiling, or lost */ \
  X(InGraph, 1 << 4)      /* a node of a CUDA graph: see graph_node */              \
  X(Open, 1 << 5)         /* region, function: still open when recording ended */   \
  X(Clipped, 1 << 6)      /* region, function: was open before recording began */   \
  X(Captured, 1 << 7)     /* call: recorded into a graph instead of run */          \
  X(Async, 1 << 8)        /* region: a start/end range, nested in nothing, which may end on another thread */

// X(Type, underlying type, LIST, documentation)
#define GPUSCOPE_SCOPED_ENUMS(X)                                                                                    \
  X(Work, uint16_t, GPUSCOPE_WORK, "What the GPU or the driver did.")                                               \
  X(CopyKind, uint8_t, GPUSCOPE_COPY_KIND, "Between what a copy went; CUpti_ActivityMemcpyKind's numbers.")         \
  X(MemoryKind, uint8_t, GPUSCOPE_MEMORY_KIND, "What memory is; CUpti_ActivityMemoryKind's numbers.")               \
  X(PoolOperation, uint8_t, GPUSCOPE_POOL_OPERATION,                                                                \
    "What was done to a CUDA memory pool; CUpti_ActivityMemoryPoolOperationType's numbers.")                        \
  X(SyncKind, uint16_t, GPUSCOPE_SYNC_KIND, "What was waited for; CUpti_ActivitySynchronizationType's numbers.")    \
  X(OverheadKind, uint32_t, GPUSCOPE_OVERHEAD_KIND, "What held a thread up; CUpti_ActivityOverheadKind's numbers.") \
  X(CallKind, uint16_t, GPUSCOPE_CALL_KIND, "What a driver call does.")                                             \
  X(PayloadType, uint16_t, GPUSCOPE_PAYLOAD_TYPE,                                                                   \
    "How to read the 64 bits of a payload; TEXT, LIST and COMPLEX are string ids.")                                 \
  X(CollectiveKind, uint16_t, GPUSCOPE_COLLECTIVE_KIND, "What a collective operation does.")
#define GPUSCOPE_ENUMS(X)                                               \
  GPUSCOPE_SCOPED_ENUMS(X)                                              \
  X(RegionKind, uint8_t, GPUSCOPE_REGION_KIND, "What opened a region.") \
  X(FunctionKind, uint8_t, GPUSCOPE_FUNCTION_KIND, "What a row of `python_function` is a call of.")
#define GPUSCOPE_FLAG_DOC "What is special about a row; CAPTURED belongs to calls, the last others to regions."

namespace gpuscope::store {

inline constexpr uint32_t kNone = UINT32_MAX;

using base::FunctionKind;
using base::RegionKind;

/// The name of an enumeration.
template <class Enum>
inline constexpr std::string_view kEnumName;

#define GPUSCOPE_ENUMERATOR(name, value) name = value,
#define GPUSCOPE_DECLARE_ENUM(Type, Underlying, LIST, doc) enum class Type : Underlying { LIST(GPUSCOPE_ENUMERATOR) };
GPUSCOPE_SCOPED_ENUMS(GPUSCOPE_DECLARE_ENUM)
#undef GPUSCOPE_DECLARE_ENUM
#undef GPUSCOPE_ENUMERATOR

#define GPUSCOPE_ENUMERATOR(name, value) k##name = (value),
enum Flag : uint16_t { GPUSCOPE_FLAG(GPUSCOPE_ENUMERATOR) };
#undef GPUSCOPE_ENUMERATOR

#define GPUSCOPE_NAME(Type, ...) \
  template <>                    \
  inline constexpr std::string_view kEnumName<Type> = #Type;
GPUSCOPE_ENUMS(GPUSCOPE_NAME)
GPUSCOPE_NAME(Flag)
#undef GPUSCOPE_NAME

// Durations binned by size, 16 bins per octave. A quantile from the bins is within 1/32 (3.1 %) of the true one.
inline constexpr uint32_t kBinBits = 4;

/// The bin of a duration in ns. Negative durations count as 0. Bins below 16 hold one ns each.
constexpr uint32_t histogram_bin(int64_t duration_ns) noexcept {
  const auto value = static_cast<uint64_t>(duration_ns > 0 ? duration_ns : 0);
  if (value < (1U << kBinBits)) {
    return static_cast<uint32_t>(value);
  }
  const auto octave = static_cast<uint32_t>(std::bit_width(value)) - 1 - kBinBits;
  return ((octave + 1) << kBinBits) + static_cast<uint32_t>((value >> octave) - (1U << kBinBits));
}

/// The middle of a bin, in ns.
constexpr int64_t histogram_middle(uint32_t bin) noexcept {
  if (bin < (1U << kBinBits)) {
    return bin;
  }
  const uint32_t octave = (bin >> kBinBits) - 1;
  const int64_t low = static_cast<int64_t>((bin & ((1U << kBinBits) - 1)) + (1U << kBinBits)) << octave;
  return low + (int64_t{1} << octave) / 2;
}

// torch.profiler's names for work without its own name, for readers and tools that expect these names. Unknown values
// read as unknown.

/// `Memcpy HtoD (Pageable -> Device)`.
std::string copy_name(CopyKind kind, MemoryKind source, MemoryKind destination);

inline constexpr std::string_view kMemsetName = "Memset (Device)";
inline constexpr std::string_view kGraphName = "CUDA graph";

/// `Stream Sync`, `Context Sync`, ...
std::string_view sync_name(SyncKind kind) noexcept;

/// The name of a graph traced as a whole: kGraphName and its number.
std::string graph_name(uint32_t graph);

// Names of torch's own ranges.

/// The name of a step, before its number, and of all steps together.
inline constexpr std::string_view kStepPrefix = "ProfilerStep#";
inline constexpr std::string_view kAllSteps = "ProfilerStep*";

/// Info of a file of another tool: the nesting of regions was derived from their times.
inline constexpr std::string_view kNestedByTime = "session.nested_by_time";
/// The name of the range around each backward operator, before the operator's name.
inline constexpr std::string_view kAutogradPrefix = "autograd::engine::evaluate_function: ";

}  // namespace gpuscope::store
