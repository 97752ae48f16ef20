// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "gpuscope/driver/library.h"

namespace gpuscope::driver {

// CUPTI's types in its own layout (checked against the headers in activity/layout.cpp).
using CuptiResult = int;
using CuptiSubscriber = void*;
using CuptiCallback = void (*)(void* user_data, int domain, uint32_t callback, const void* data);
using CuptiBufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* max_records);
using CuptiBufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);
using CuptiTimestamp = uint64_t (*)();

struct CuptiSubscriberParams {
  size_t struct_size;
  const char* name;
  char* holder;  // out: who has the slot
  size_t holder_size;
};

// Result codes that are handled by name (cupti_result.h).
inline constexpr CuptiResult kCuptiSuccess = 0;
inline constexpr CuptiResult kCuptiMaxLimitReached = 12;
inline constexpr CuptiResult kCuptiNotInitialized = 15;
inline constexpr CuptiResult kCuptiMultipleSubscribers = 39;

// X(symbol in libcupti, member, return type and arguments)
#define GPUSCOPE_CUPTI_FUNCTIONS(X)                                                                                 \
  X("cuptiGetVersion", get_version, CuptiResult(uint32_t*))                                                         \
  X("cuptiGetResultString", get_result_string, CuptiResult(CuptiResult, const char**))                              \
  X("cuptiGetTimestamp", get_timestamp, CuptiResult(uint64_t*))                                                     \
  X("cuptiSubscribe", subscribe, CuptiResult(CuptiSubscriber*, CuptiCallback, void*))                               \
  X("cuptiSubscribe_v2", subscribe_v2, CuptiResult(CuptiSubscriber*, CuptiCallback, void*, CuptiSubscriberParams*)) \
  X("cuptiUnsubscribe", unsubscribe, CuptiResult(CuptiSubscriber))                                                  \
  X("cuptiEnableCallback", enable_callback, CuptiResult(uint32_t, CuptiSubscriber, int, uint32_t))                  \
  X("cuptiActivityRegisterCallbacks", register_callbacks, CuptiResult(CuptiBufferRequested, CuptiBufferCompleted))  \
  X("cuptiActivityRegisterTimestampCallback", register_timestamp, CuptiResult(CuptiTimestamp))                      \
  X("cuptiActivityEnable", activity_enable, CuptiResult(int))                                                       \
  X("cuptiActivityDisable", activity_disable, CuptiResult(int))                                                     \
  X("cuptiActivityFlushAll", flush_all, CuptiResult(uint32_t))                                                      \
  X("cuptiActivityGetNextRecord", get_next_record, CuptiResult(uint8_t*, size_t, void**))                           \
  X("cuptiActivityGetNumDroppedRecords", get_num_dropped, CuptiResult(void*, uint32_t, size_t*))                    \
  X("cuptiActivityGetAttribute", get_attribute, CuptiResult(int, size_t*, void*))                                   \
  X("cuptiActivitySetAttribute", set_attribute, CuptiResult(int, size_t*, void*))                                   \
  X("cuptiActivityEnableAllocationSource", enable_allocation_source, CuptiResult(uint8_t))                          \
  X("cuptiSetThreadIdType", set_thread_id_type, CuptiResult(int))                                                   \
  X("cuptiGetGraphNodeId", get_graph_node_id, CuptiResult(void*, uint64_t*))                                        \
  X("cuptiGetDeviceId", get_device_id, CuptiResult(void*, uint32_t*))

/// libcupti as a value: one pointer a function, nullptr where this version lacks it.
struct Cupti {
#define GPUSCOPE_MEMBER(symbol, member, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
  GPUSCOPE_CUPTI_FUNCTIONS(GPUSCOPE_MEMBER)
#undef GPUSCOPE_MEMBER
  Library library;
  uint32_t version = 0;  // as cuptiGetVersion counts: 18 is CUDA 11.8's, 28 is 12.9.1's, then 130000 for 13.0

  /// `wheel_paths`: libcupti files of Python wheels, tried after a copy that is already loaded.
  static Cupti open(const std::vector<std::string>& wheel_paths);
  std::string error_name(CuptiResult code) const;
};

/// Why this table cannot trace: "" when it can.
std::string cupti_shortcoming(const Cupti& table);

}  // namespace gpuscope::driver
