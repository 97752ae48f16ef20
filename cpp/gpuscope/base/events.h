// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuscope::base {

/// The kind of a logged event. Each line gives the meaning of an Event's `word`, `id` and `detail`.
enum class Op : uint8_t {
  Enter = 1,           // a region opens: ticks, name id, EnterDetail
  Exit = 2,            // the innermost open region of that name closes: ticks, name id, ExitDetail
  Mark = 3,            // an instant: ticks, name id
  Strand = 4,          // the next events belong to this task: its key, number of its origin, StrandDetail
  CallEnter = 5,       // a driver call begins: ticks, correlation id, callback id
  CallExit = 6,        // it ends: ticks, CUresult, callback id
  Node = 7,            // a graph node was created: its id
  NodeOrigin = 8,      // the node logged just before is a clone of this one: its id
  GpuTime = 9,         // GPU time of the region that closes next: index into the event ring
  Argument = 10,       // attribute of the next event: value, second value, Argument
  Pop = 11,            // the range that its source pushed last closes: ticks, -, the source's EnterDetail
  RangeStart = 12,     // a range opens that any thread may end: ticks, name id, EnterDetail. After a RangeId
  RangeEnd = 13,       // it closes: ticks. After a RangeId
  Allocation = 14,     // memory was allocated or freed: ticks, -, whether it failed. After Address, Bytes and totals
  FunctionEnter = 15,  // a Python function is called: ticks, name id, FunctionDetail
  FunctionExit = 16,   // it returns: ticks, -, FunctionDetail
  Origin = 17,         // the origin of tasks that this task creates, until the next Origin: -, its number
};

/// Whether an event's word is a time.
constexpr bool has_time(Op op) noexcept {
  switch (op) {
    case Op::Enter:
    case Op::Exit:
    case Op::Mark:
    case Op::CallEnter:
    case Op::CallExit:
    case Op::Pop:
    case Op::RangeStart:
    case Op::RangeEnd:
    case Op::Allocation:
    case Op::FunctionEnter:
    case Op::FunctionExit:
      return true;
    default:
      return false;
  }
}

/// The kind of an Argument. Each line gives the meaning of `word` and `id`.
enum class Argument : uint8_t {
  Operator = 1,    // autograd's sequence number, -1 for none; Names id of the input shapes, 0 for none
  Operands = 2,    // torch's number of the operator; number of the operator that made its first tensor, 0 for none
  Stack = 3,       // Stacks id of the Python frames
  RangeId = 4,     // number of a start/end range
  Unsigned = 5,    // payload; Names id of its name
  Signed = 6,      // likewise
  Float = 7,       // likewise, the bits of a double
  Text = 8,        // likewise, a Names id
  Address = 9,     // of the memory
  Bytes = 10,      // allocated, negative if freed; the device, UINT32_MAX for the host
  Allocated = 11,  // total bytes in use on that device, including this one
  Inputs = 13,     // of an operator: Names id of its input strides, 0 for none; Names id of its input types, 0 for none
  Results = 14,    // of the range that ends next: Names id of the result shapes
  Reserved = 12,   // bytes that the allocator holds on that device
  Concrete = 15,   // Names id of the numbers among an operator's inputs
  Overload = 16,   // Names id of the operator's overload
  Bool = 17,       // as Unsigned
  List = 18,       // as Text, of numbers
  Module = 19,     // of a call of a module: its number within its class, from 1
  None = 20,       // as Unsigned: it is None
  Complex = 21,    // as Text, of the two parts of a complex number
};
inline constexpr std::size_t kArguments = 22;

// X(enumerator, value). Values are stored in files: append only.
#define GPUSCOPE_REGION_KIND(X)                 \
  X(Region, 0) /* record_function's */          \
  X(Op, 1)     /* an operator of a framework */ \
  X(Range, 2)  /* an annotation of a library */ \
  X(Module, 3) /* a torch.nn.Module */

/// The kind of an opened region.
#define GPUSCOPE_ENUMERATOR(name, value) name = value,
enum class RegionKind : uint8_t { GPUSCOPE_REGION_KIND(GPUSCOPE_ENUMERATOR) };
#undef GPUSCOPE_ENUMERATOR

/// The `detail` of an Enter: kind, how the region closes, and the Names id of its domain, 0 for none.
///
/// Regions close by name, with Exit. A part of a coroutine or generator between two suspensions has the number of its
/// call instead of the domain. Popped ranges close by Pop, the last of their source first. The source is the detail
/// without the kind.
struct EnterDetail {
  static constexpr uint32_t kKindMask = 7;
  static constexpr uint32_t kPopped = 8;
  static constexpr uint32_t kTorch = 16;  // from torch's own operator ranges, not from NVTX
  static constexpr uint32_t kTorchRange = kPopped | kTorch;
  static constexpr uint32_t kDomainShift = 5;
  static constexpr uint32_t kDomains = 1U << (24 - kDomainShift);

  static constexpr uint32_t make(RegionKind kind, uint32_t flags = 0, uint32_t domain = 0) noexcept {
    return static_cast<uint32_t>(kind) | flags | ((domain < kDomains ? domain : 0) << kDomainShift);
  }
  static constexpr RegionKind kind(uint32_t detail) noexcept {
    return RegionKind{static_cast<uint8_t>(detail & kKindMask)};
  }
  static constexpr uint32_t domain(uint32_t detail) noexcept { return detail >> kDomainShift; }
  /// The call that contains the region as a part. 0 for whole regions.
  static constexpr uint32_t call(uint32_t detail) noexcept {
    return (detail & kPopped) != 0 ? 0 : detail >> kDomainShift;
  }
  static constexpr uint32_t source(uint32_t detail) noexcept { return detail & ~kKindMask; }
};

/// The `detail` of an Exit: whether an exception ended the region, whether another thread entered it, and the call, as
/// in EnterDetail.
struct ExitDetail {
  static constexpr uint32_t kByException = 1;
  static constexpr uint32_t kElsewhere = 2;

  static constexpr uint32_t of_call(uint32_t enter_detail) noexcept {
    return EnterDetail::call(enter_detail) << EnterDetail::kDomainShift;
  }
  static constexpr uint32_t call(uint32_t detail) noexcept { return detail >> EnterDetail::kDomainShift; }
};

#define GPUSCOPE_FUNCTION_KIND(X)          \
  X(Python, 0)  /* a function of Python */ \
  X(BuiltIn, 1) /* one written in C */     \
  X(Garbage, 2) /* a garbage collection */

/// The kind of the called function.
#define GPUSCOPE_ENUMERATOR(name, value) name = value,
enum class FunctionKind : uint8_t { GPUSCOPE_FUNCTION_KIND(GPUSCOPE_ENUMERATOR) };
#undef GPUSCOPE_ENUMERATOR

/// The `detail` of a FunctionEnter and of its FunctionExit: kind, and a hash of the Python frame's address (of the
/// caller's frame for C functions). The hash matches the two events if events between them were lost.
struct FunctionDetail {
  static constexpr uint32_t kKindMask = 3;
  static constexpr uint32_t kRunning = 4;  // of an enter: the call began before the recording
  static constexpr uint32_t kFrameShift = 3;

  static constexpr uint32_t make(FunctionKind kind, uintptr_t frame, uint32_t flags = 0) noexcept {
    const uint64_t spread = (uint64_t{frame} >> 4) * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
    return static_cast<uint32_t>(kind) | flags | (static_cast<uint32_t>(spread >> (40 + kFrameShift)) << kFrameShift);
  }
  static constexpr FunctionKind kind(uint32_t detail) noexcept {
    return FunctionKind{static_cast<uint8_t>(detail & kKindMask)};
  }
};

/// The `detail` of a Strand.
enum StrandDetail : uint32_t {
  kStrandBegins = 1,  // the task's first event: the origin is its creator's, otherwise its own
  kStrandIsTask = 2,  // a task, not the thread's own code
};

/// One logged event.
struct Event {
  uint64_t word;
  uint32_t id;
  uint32_t op : 8;
  uint32_t detail : 24;
};
static_assert(sizeof(Event) == 16);

}  // namespace gpuscope::base
