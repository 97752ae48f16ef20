// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::fakes {

/// A driver with a few devices, contexts and events. Any thread; reset between tests.
struct Cuda {
  struct Event {
    driver::CuContext context;
    bool done;
    float ms;
    unsigned flags = 0;
    bool external = false;  // recorded as a graph's node
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
    state.context_id = 1;
    state.events.clear();
    state.created = state.recorded = 0;
    state.refuse_events = state.refuse_records = false;
    state.done = true;
    state.pushed.clear();
    state.destroyed = state.contexts_retained = 0;
    state.capture_mode_exchanges = 0;
    state.waited_in = nullptr;
    state.refuse_exports = false;
    state.asked = state.synchronized = 0;
    state.mode_when_waited = -1;
    return state;
  }

  std::mutex mutex;
  std::atomic<driver::CuContext> current{nullptr};
  std::atomic<int> capturing{0};
  int devices = 1;
  bool initialized = true;
  std::atomic<int> active_contexts{0};
  std::atomic<unsigned long long> context_id{1};  // of primary contexts; another one once a device was reset
  std::map<driver::CuEvent, Event> events;
  int created = 0;
  int recorded = 0;
  bool refuse_events = false;
  bool refuse_records = false;
  bool done = true;  // whether events that are recorded are reached at once
  std::vector<driver::CuContext> pushed;
  int destroyed = 0;
  int contexts_retained = 0;
  driver::CuContext waited_in = nullptr;  // the context of the stream that last waited for an event
  std::atomic<int> capture_mode_exchanges{0};
  bool refuse_exports = false;
  int asked = 0;         // for the state of events
  int synchronized = 0;  // streams and contexts
  std::atomic<int> mode_when_waited{-1};

  /// The calling thread's: 0 for global, 2 for relaxed.
  static int& capture_mode() {
    thread_local int mode = 0;
    return mode;
  }
  static driver::CuContext context(uintptr_t number) { return reinterpret_cast<driver::CuContext>(number); }
  /// The primary context of a device.
  static driver::CuContext primary(int device) { return context(static_cast<uintptr_t>(device) + 1); }
  /// A stream of a device, other than its default ones.
  static uint64_t stream(int device) { return static_cast<uint64_t>(device + 1) * 1000; }
  static driver::CuContext context_of(driver::CuStream stream) {
    return context(reinterpret_cast<uintptr_t>(stream) / 1000);
  }

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
    table.context_get_id = [](driver::CuContext, unsigned long long* id) {
      constexpr int kContextIsDestroyed = 709;
      *id = instance().context_id;
      return instance().active_contexts != 0 ? 0 : kContextIsDestroyed;
    };
    table.init = [](unsigned) { return instance().initialized ? 0 : 100; };
    table.primary_context_retain = [](driver::CuContext* context, driver::CuDevice device) {
      ++instance().contexts_retained;
      instance().active_contexts = 1;
      *context = primary(device);
      return 0;
    };
    table.primary_context_release = [](driver::CuDevice) {
      --instance().contexts_retained;
      return 0;
    };
    table.context_push = [](driver::CuContext context) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      state.pushed.push_back(state.current.exchange(context));
      return 0;
    };
    table.context_pop = [](driver::CuContext* context) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      *context = state.current.exchange(state.pushed.back());
      state.pushed.pop_back();
      return 0;
    };
    table.context_get_device = [](driver::CuDevice* device) {
      *device = static_cast<driver::CuDevice>(reinterpret_cast<uintptr_t>(instance().current.load())) - 1;
      return 0;
    };
    table.context_synchronize = [] {
      ++instance().synchronized;
      instance().mode_when_waited = capture_mode();
      return 0;
    };
    table.stream_create = [](driver::CuStream* stream, unsigned) {
      *stream = reinterpret_cast<driver::CuStream>(reinterpret_cast<uintptr_t>(instance().current.load()) * 1000 + 999);
      return 0;
    };
    table.stream_synchronize = [](driver::CuStream) {
      ++instance().synchronized;
      instance().mode_when_waited = capture_mode();
      return 0;
    };
    table.stream_get_context = [](driver::CuStream stream, driver::CuContext* context) {
      *context = context_of(stream);
      return 0;
    };
    table.stream_wait_event = [](driver::CuStream stream, driver::CuEvent, unsigned) {
      instance().waited_in = context_of(stream) != nullptr ? context_of(stream) : instance().current.load();
      return 0;
    };
    table.exchange_capture_mode = [](int* mode) {
      ++instance().capture_mode_exchanges;
      if (!instance().initialized) {
        return 3;
      }
      std::swap(*mode, capture_mode());
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
    table.event_create = [](driver::CuEvent* event, unsigned flags) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      if (state.refuse_events) {
        return 2;
      }
      *event = reinterpret_cast<driver::CuEvent>(static_cast<uintptr_t>(++state.created));
      state.events[*event] = {state.current.load(), false, 0, flags};
      return 0;
    };
    table.event_destroy = [](driver::CuEvent event) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      state.destroyed += static_cast<int>(state.events.erase(event));
      return 0;
    };
    table.event_synchronize = [](driver::CuEvent event) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      ++state.asked;
      state.events[event].done = true;
      return 0;
    };
    table.event_export = [](driver::CuIpcEventHandle* handle, driver::CuEvent event) {
      handle->bytes[0] = static_cast<char>(reinterpret_cast<uintptr_t>(event));
      return instance().refuse_exports ? 801 : 0;
    };
    table.event_import = [](driver::CuEvent* event, driver::CuIpcEventHandle handle) {
      *event = reinterpret_cast<driver::CuEvent>(static_cast<uintptr_t>(handle.bytes[0]));
      return 0;
    };
    table.event_record_with_flags = [](driver::CuEvent event, driver::CuStream, unsigned flags) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      state.events[event].external = flags == 1;
      return 0;
    };
    table.event_record = [](driver::CuEvent event, driver::CuStream stream) {
      constexpr driver::CuResult kInvalidHandle = 400;
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      const auto found = state.events.find(event);
      if (state.refuse_records || found == state.events.end() || found->second.context != state.current.load() ||
          (context_of(stream) != nullptr && context_of(stream) != found->second.context)) {
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
      ++state.asked;
      const auto found = state.events.find(event);
      return found == state.events.end() ? 400 : found->second.done ? 0 : kNotReady;
    };
    table.event_elapsed_time = [](float* ms, driver::CuEvent start, driver::CuEvent stop) {
      Cuda& state = instance();
      const std::lock_guard lock(state.mutex);
      ++state.asked;
      if (!state.events[start].done || !state.events[stop].done) {
        return 600;
      }
      *ms = state.events[stop].ms - state.events[start].ms;
      return 0;
    };
    return table;
  }
};

}  // namespace gpuscope::fakes
