// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// What the numbers in a trace's columns stand for. They are stored in files: append only.
namespace gpuscope::store {

inline constexpr uint32_t kNone = UINT32_MAX;

enum class Work : uint16_t { Kernel = 1, Memcpy = 2, Memset = 3, Call = 4, Sync = 5, GraphLaunch = 6 };
// CUpti_ActivityMemcpyKind's numbers.
enum class CopyKind : uint8_t {
  Unknown = 0,
  HostToDevice = 1,
  DeviceToHost = 2,
  HostToArray = 3,
  ArrayToHost = 4,
  ArrayToArray = 5,
  ArrayToDevice = 6,
  DeviceToArray = 7,
  DeviceToDevice = 8,
  HostToHost = 9,
  PeerToPeer = 10
};
// CUpti_ActivityMemoryKind's numbers.
enum class MemoryKind : uint8_t {
  Unknown = 0,
  Pageable = 1,
  Pinned = 2,
  Device = 3,
  Array = 4,
  Managed = 5,
  DeviceStatic = 6,
  ManagedStatic = 7
};
// CUpti_ActivityMemoryPoolOperationType's numbers.
enum class PoolOperation : uint8_t { Unknown = 0, Created = 1, Destroyed = 2, Trimmed = 3 };
// CUpti_ActivitySynchronizationType's numbers.
enum class SyncKind : uint16_t { Unknown = 0, Event = 1, StreamWaitEvent = 2, Stream = 3, Context = 4 };
enum class CallKind : uint16_t {
  Other = 0,
  Launch = 1,
  GraphLaunch = 2,
  Memcpy = 3,
  Memset = 4,
  Sync = 5,
  Alloc = 6,
  Free = 7
};
enum class PayloadType : uint16_t { Unsigned = 0, Signed = 1, Float = 2, Text = 3 };

enum Flag : uint16_t {
  kZeroTime = 1 << 0,      // the GPU gave no timestamps
  kBackwardTime = 1 << 1,  // it ended before it began: the duration reads 0
  kIncomplete = 1 << 2,    // still running when collection ended
  kNoLaunch = 1 << 3,      // no launch was seen: begun before profiling, or lost
  kInGraph = 1 << 4,       // a node of a CUDA graph: see graph_node
  kOpen = 1 << 5,          // region: still open when recording ended
  kClipped = 1 << 6,       // region: was open before recording began
  kCaptured = 1 << 7,      // call: recorded into a graph
  kAsync = 1 << 8,         // region: a start/end range, which nests in nothing and may end on another thread
};

}  // namespace gpuscope::store
