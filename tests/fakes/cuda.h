// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "gpuscope/driver/cuda.h"

namespace gpuscope::fakes {

/// A driver with a few devices, contexts and events. Any thread; reset between tests.
struct Cuda {
  struct Event {
    driver::CuContext context;
    bool done;
    float ms;
  };

  static Cuda& instance() {
    static Cuda state;
    return state;
  }
  static Cuda& reset() {
    Cuda& state = instance();
    const std::lock_guard lock(state.mutex);
    state.current = nullptr;
    state.capturing = 0;
    state.devices = 1;
    state.initialized = true;
    state.active_contexts = 0;
    state.events.clear();
    state.created = state.recorded = 0;
    state.refuse_events = state.refuse_records = false;
    state.done = true;
    return state;
  }

  std::mutex mutex;
  std::atomic<driver::CuContext> current{nullptr};
  std::atomic<int> capturing{0};
  int devices = 1;
  bool initialized = true;
  int active_contexts = 0;
  std::map<driver::CuEvent, Event> events;
  int created = 0;
  int recorded = 0;
  bool refuse_events = false;
  bool refuse_records = false;
  bool done = true;  // whether events that are recorded are reached at once

  static driver::CuContext context(uintptr_t number) { return reinterpret_cast<driver::CuContext>(number); }

  driver::Cuda table() {
    driver::Cuda table;
    // Any library that is there stands for the driver's.
    table.library = driver::Library::open({"libc.so.6"}, {});
    table.driver_get_version = [](int* version) {
      *version = 13000;
      return 0;
    };
    table.get_error_name = [](driver::CuResult, const char** name) {
      *name = "CUDA_ERROR_FAKE";
      return 0;
    };
    table.device_get_count = [](int* count) {
      *count = instance().devices;
      return instance().initialized ? 0 : 3;
    };
    table.device_get = [](driver::CuDevice* device, int ordinal) {
      *device = ordinal;
      return 0;
    };
    table.device_get_name = [](char* name, int size, driver::CuDevice) {
      std::string("fake GPU").copy(name, static_cast<std::size_t>(size) - 1);
      return 0;
    };
    table.device_get_uuid = [](driver::CuUuid* uuid, driver::CuDevice device) {
      uuid->bytes[0] = static_cast<unsigned char>(device);
      return 0;
    };
    table.device_get_attribute = [](int* value, int attribute, driver::CuDevice) {
      *value = attribute;
      return 0;
    };
    table.device_total_mem = [](size_t* bytes, driver::CuDevice) {
      *bytes = size_t{80} << 30;
      return 0;
    };
    table.primary_context_state = [](driver::CuDevice, unsigned* flags, int* active) {
      *flags = 0;
      *active = instance().active_contexts;
      return 0;
    };
    table.context_get_current = [](driver::CuContext* context) {
      *context = instance().current.load();
      return 0;
    };
    table.stream_is_capturing = [](driver::CuStream, int* capturing) {
      *capturing = instance().capturing.load();
      return 0;
    };
    table.event_create = [](driver::CuEvent* event, unsigned) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      if (state.refuse_events) {
        return 2;
      }
      *event = reinterpret_cast<driver::CuEvent>(static_cast<uintptr_t>(++state.created));
      state.events[*event] = {state.current.load(), false, 0};
      return 0;
    };
    table.event_record = [](driver::CuEvent event, driver::CuStream) {
      constexpr driver::CuResult kInvalidHandle = 400;
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      const auto found = state.events.find(event);
      if (state.refuse_records || found == state.events.end() || found->second.context != state.current.load()) {
        return kInvalidHandle;
      }
      found->second.done = state.done;
      found->second.ms = static_cast<float>(++state.recorded);
      return 0;
    };
    table.event_query = [](driver::CuEvent event) {
      constexpr driver::CuResult kNotReady = 600;
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      const auto found = state.events.find(event);
      return found == state.events.end() ? 400 : found->second.done ? 0 : kNotReady;
    };
    table.event_elapsed_time = [](float* ms, driver::CuEvent start, driver::CuEvent stop) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      *ms = state.events[stop].ms - state.events[start].ms;
      return 0;
    };
    return table;
  }
};

}  // namespace gpuscope::fakes
