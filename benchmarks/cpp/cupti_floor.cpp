// SPDX-License-Identifier: Apache-2.0
// The floor: CUPTI's CONCURRENT_KERNEL records and nothing else. Buffers are handed out and taken back, never read.
// A C interface for ctypes. Activity API only, no subscription, so that it can take turns with a profiler.
#include <cupti.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kBuffers = 64;

struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush_all;
  decltype(&cuptiActivityGetNextRecord) next_record;
};

Cupti cupti{};
std::mutex pool_mutex;
std::vector<uint8_t*> pool;
std::atomic<uint64_t> delivered_bytes{0};
std::atomic<uint64_t> record_bytes{0};
std::atomic<uint64_t> refused{0};

void CUPTIAPI hand_out(uint8_t** buffer, size_t* size, size_t* max_records) {
  *max_records = 0;
  const std::lock_guard lock(pool_mutex);
  if (pool.empty()) {
    *buffer = nullptr;
    *size = 0;
    ++refused;
    return;
  }
  *buffer = pool.back();
  *size = kBufferBytes;
  pool.pop_back();
}

// All records are of one kind, hence of one size: the first two tell it, and bytes then tell their number.
void CUPTIAPI take_back(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  if (record_bytes == 0) {
    CUpti_Activity* record = nullptr;
    if (cupti.next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
      const auto* const first = reinterpret_cast<uint8_t*>(record);
      record_bytes = cupti.next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS
                         ? static_cast<uint64_t>(reinterpret_cast<uint8_t*>(record) - first)
                         : 0;
    }
  }
  delivered_bytes += valid_bytes;
  const std::lock_guard lock(pool_mutex);
  pool.push_back(buffer);
}

template <class F>
bool resolve(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

#define FLOOR_API extern "C" __attribute__((visibility("default")))

/// Opens CUPTI: the library that the process has already, else `path`. Returns why that failed, or "".
FLOOR_API const char* floor_open(const char* path) {
  void* library = nullptr;
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
    library = library != nullptr ? library : dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  }
  if (library == nullptr) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return dlerror();
  }
  if (!resolve(library, "cuptiActivityRegisterCallbacks", cupti.register_callbacks) ||
      !resolve(library, "cuptiActivityEnable", cupti.enable) ||
      !resolve(library, "cuptiActivityDisable", cupti.disable) ||
      !resolve(library, "cuptiActivityFlushAll", cupti.flush_all) ||
      !resolve(library, "cuptiActivityGetNextRecord", cupti.next_record)) {
    return "this CUPTI lacks a function of the activity API";
  }
  const std::lock_guard lock(pool_mutex);
  while (pool.size() < kBuffers) {
    auto* const buffer = static_cast<uint8_t*>(std::aligned_alloc(4096, kBufferBytes));
    if (buffer == nullptr) {
      return "no memory for the buffers";
    }
    std::memset(buffer, 0, kBufferBytes);  // touched now, so that no page fault falls into a measurement
    pool.push_back(buffer);
  }
  return "";
}

/// Each returns CUPTI's code, 0 for success.
FLOOR_API int floor_start() {
  // Again at each start: a profiler that ran in between has put its own callbacks there.
  const CUptiResult registered = cupti.register_callbacks(hand_out, take_back);
  return registered != CUPTI_SUCCESS ? registered : cupti.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
}

FLOOR_API int floor_stop() {
  const CUptiResult flushed = cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const CUptiResult disabled = cupti.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  return flushed != CUPTI_SUCCESS ? flushed : disabled;
}

FLOOR_API uint64_t floor_records() { return record_bytes == 0 ? 0 : delivered_bytes / record_bytes; }

/// Buffers that could not be handed out; their records are lost, and the floor reads too low.
FLOOR_API uint64_t floor_refused() { return refused; }
