// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fakes/cupti_records.h"
#include "gpuscope/activity/calls.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::fakes {

// Ids of watched driver calls (cupti_driver_cbid.h).
inline constexpr uint32_t kLaunchKernel = 307;
inline constexpr uint32_t kMemcpyAsync = 306;
inline constexpr uint32_t kMemsetAsync = 216;
inline constexpr uint32_t kGraphLaunch = 514;
inline constexpr uint32_t kCtxSynchronize = 17;
inline constexpr uint32_t kMemAlloc = 243;

/// A CUPTI whose answers a test sets, and which records its calls. Any thread; reset between tests.
struct Cupti {
  static Cupti& instance() {
    static Cupti state;
    return state;
  }
  static Cupti& reset() {
    Cupti& state = instance();
    const std::lock_guard lock(state.mutex);
    state.subscribe_code = 0;
    state.holder.clear();
    state.refused_kinds.clear();
    state.refused_attributes = false;
    state.raw_timestamps.clear();
    state.register_code = 0;
    state.subscribed = state.subscriptions = state.unsubscriptions = 0;
    state.flushes = state.forced_flushes = 0;
    state.kinds.clear();
    state.callbacks.clear();
    state.attributes.clear();
    state.names_libraries = false;
    state.waiting.clear();
    state.on_flush = nullptr;
    state.on_next_record = nullptr;
    state.dropped = 0;
    state.callback = nullptr;
    state.requested = nullptr;
    state.completed = nullptr;
    state.lost = 0;
    return state;
  }

  /// Changes what it answers while it is in use.
  template <class F>
  void change(F&& how) {
    const std::lock_guard lock(mutex);
    how();
  }

  std::mutex mutex;
  // What it answers.
  driver::CuptiResult subscribe_code = 0;
  std::string holder;
  std::map<int, driver::CuptiResult> refused_kinds;
  bool refused_attributes = false;
  driver::CuptiResult register_code = 0;
  std::function<void(bool forced)> on_flush;
  std::function<void()> on_next_record;
  size_t dropped = 0;
  // What it was asked.
  int subscribed = 0;
  int subscriptions = 0;
  int unsubscriptions = 0;
  std::atomic<int> flushes{0};
  std::atomic<int> forced_flushes{0};
  std::set<int> kinds;
  std::set<std::pair<int, uint32_t>> callbacks;
  std::map<int, uint8_t> attributes;
  bool names_libraries = false;
  std::vector<int> raw_timestamps;  // each time they were switched
  // What it works with.
  std::atomic<driver::CuptiCallback> callback{nullptr};
  std::atomic<void*> user_data{nullptr};
  driver::CuptiBufferRequested requested = nullptr;
  driver::CuptiBufferCompleted completed = nullptr;
  std::atomic<uint32_t> correlation{0};
  std::vector<Record> waiting;  // to be delivered with the next flush
  std::atomic<uint64_t> lost{0};

  /// A driver call on this thread, as its subscriber sees it; its correlation id.
  uint32_t call(uint32_t id, int result = 0, const std::function<void()>& inside = {}) {
    const uint32_t number = ++correlation;
    activity::ApiCallback data{};
    data.correlation = number;
    data.result = &result;
    const auto tell = [&](activity::Site site) {
      data.site = site;
      if (const driver::CuptiCallback to = callback.load(); to != nullptr) {
        to(user_data, activity::kDriverDomain, id, &data);
      }
    };
    tell(activity::kEnterSite);
    if (inside) {
      inside();
    }
    tell(activity::kExitSite);
    return number;
  }
  /// A driver call that takes or gives memory, as its subscriber sees it when it asked for that call.
  void allocation(uint32_t id, const void* params, int result = 0, void* context = nullptr,
                  const std::function<void()>& inside = {}) {
    const Subscriber to = subscriber_of(activity::kDriverDomain, id);
    uint64_t kept = 0;
    activity::ApiCallback data{};
    data.correlation = ++correlation;
    data.result = &result;
    data.function_params = params;
    data.context = context;
    data.correlation_data = &kept;
    for (const activity::Site site : {activity::kEnterSite, activity::kExitSite}) {
      data.site = site;
      if (site == activity::kExitSite && inside) {
        inside();
      }
      if (to.callback != nullptr) {
        to.callback(to.user_data, activity::kDriverDomain, id, &data);
      }
    }
  }
  /// Something comes to be or goes, as its subscriber sees it when it asked for that.
  void resource(uint32_t id, void* context, const void* descriptor = nullptr) {
    const activity::ResourceCallbackData data{context, nullptr, descriptor};
    if (const Subscriber to = subscriber_of(activity::kResourceDomain, id); to.callback != nullptr) {
      to.callback(to.user_data, activity::kResourceDomain, id, &data);
    }
  }
  /// A graph node comes to be, or is cloned from `origin`.
  void node(uint64_t id, uint64_t origin = 0) {
    activity::GraphCallbackData graph{};
    graph.node = reinterpret_cast<void*>(id);
    graph.original_node = reinterpret_cast<void*>(origin);
    const activity::ResourceCallbackData data{nullptr, nullptr, &graph};
    if (const driver::CuptiCallback to = callback.load(); to != nullptr) {
      to(user_data, activity::kResourceDomain, origin != 0 ? activity::kGraphNodeCloned : activity::kGraphNodeCreated,
         &data);
    }
  }
  /// The GPU has done some work: its record comes with a flush.
  void finish(const Record& record) {
    const std::lock_guard lock(mutex);
    waiting.push_back(record);
  }
  /// A launch on this thread and the kernel that it brings, with times on our clock.
  uint32_t launch(const char* name = "kernel") {
    const uint32_t number = call(kLaunchKernel);
    const auto now = static_cast<uint64_t>(base::Clock::process().now_ns());
    finish(kernel_record({.correlation = number, .start = now, .end = now + 1}, name));
    return number;
  }
  /// Hands over what waits, in as many buffers as it takes.
  void deliver() {
    std::vector<Record> records;
    driver::CuptiBufferRequested request = nullptr;
    driver::CuptiBufferCompleted complete = nullptr;
    {
      const std::lock_guard lock(mutex);
      records.swap(waiting);
      request = requested;
      complete = completed;
    }
    for (std::size_t next = 0; next < records.size() && request != nullptr;) {
      uint8_t* buffer = nullptr;
      size_t size = 0;
      size_t most = 0;
      request(&buffer, &size, &most);
      if (buffer == nullptr) {
        lost += records.size() - next;
        return;
      }
      size_t used = 0;
      for (; next < records.size() && used + records[next].size <= size; ++next) {
        std::memcpy(buffer + used, records[next].bytes, records[next].size);
        used += records[next].size;
      }
      complete(nullptr, 0, buffer, size, used);
    }
  }

  driver::Cupti table(uint32_t version = 130001) {
    driver::Cupti table;
    table.version = version;
    table.get_version = [](uint32_t*) { return 0; };
    table.get_result_string = [](driver::CuptiResult, const char** text) {
      *text = "CUPTI_ERROR_FAKE";
      return 0;
    };
    table.get_timestamp = [](uint64_t* now) {
      *now = static_cast<uint64_t>(base::Clock::process().now_ns());
      return 0;
    };
    table.subscribe = [](driver::CuptiSubscriber* subscriber, driver::CuptiCallback to, void* data) {
      return instance().subscribe(subscriber, to, data);
    };
    table.subscribe_v2 = [](driver::CuptiSubscriber* subscriber, driver::CuptiCallback to, void* data,
                            driver::CuptiSubscriberParams* params) {
      const driver::CuptiResult code = instance().subscribe(subscriber, to, data);
      if (code != 0) {
        std::strncpy(params->holder, instance().holder.c_str(), params->holder_size - 1);
      }
      return code;
    };
    table.unsubscribe = [](driver::CuptiSubscriber) {
      Cupti& state = instance();
      const std::lock_guard lock(state.mutex);
      --state.subscribed;
      ++state.unsubscriptions;
      state.callback = nullptr;
      state.callbacks.clear();
      return 0;
    };
    table.enable_callback = [](uint32_t on, driver::CuptiSubscriber, int domain, uint32_t id) {
      const std::lock_guard lock(instance().mutex);
      if (on != 0) {
        instance().callbacks.insert({domain, id});
      } else {
        instance().callbacks.erase({domain, id});
      }
      return 0;
    };
    table.register_callbacks = [](driver::CuptiBufferRequested request, driver::CuptiBufferCompleted complete) {
      Cupti& state = instance();
      const std::lock_guard lock(state.mutex);
      if (state.register_code == 0) {
        state.requested = request;
        state.completed = complete;
      }
      return state.register_code;
    };
    table.register_timestamp = [](driver::CuptiTimestamp) { return 0; };
    table.enable_raw_timestamps = [](uint8_t on) {
      instance().raw_timestamps.push_back(on);
      return 0;
    };
    table.activity_enable = [](int kind) {
      Cupti& state = instance();
      const std::lock_guard lock(state.mutex);
      if (const auto refused = state.refused_kinds.find(kind); refused != state.refused_kinds.end()) {
        return refused->second;
      }
      state.kinds.insert(kind);
      return 0;
    };
    table.activity_disable = [](int kind) {
      const std::lock_guard lock(instance().mutex);
      instance().kinds.erase(kind);
      return 0;
    };
    table.flush_all = [](uint32_t forced) {
      Cupti& state = instance();
      ++(forced != 0 ? state.forced_flushes : state.flushes);
      std::function<void(bool)> action;
      state.change([&] { action = state.on_flush; });
      if (action) {
        action(forced != 0);
      } else {
        state.deliver();
      }
      return 0;
    };
    table.get_next_record = [](uint8_t* buffer, size_t valid, void** record) {
      std::function<void()> action;
      instance().change([&] { action = instance().on_next_record; });
      if (action) {
        action();
      }
      return next_record(buffer, valid, record);
    };
    table.get_num_dropped = [](void*, uint32_t, size_t* count) {
      instance().change([&] { *count = std::exchange(instance().dropped, 0); });
      return 0;
    };
    table.get_attribute = [](int attribute, size_t*, void* value) {
      const std::lock_guard lock(instance().mutex);
      if (instance().refused_attributes) {
        return 1;
      }
      *static_cast<uint8_t*>(value) = instance().attributes[attribute];
      return 0;
    };
    table.set_attribute = [](int attribute, size_t*, void* value) {
      const std::lock_guard lock(instance().mutex);
      if (instance().refused_attributes) {
        return 1;
      }
      instance().attributes[attribute] = *static_cast<uint8_t*>(value);
      return 0;
    };
    table.enable_allocation_source = [](uint8_t on) {
      const std::lock_guard lock(instance().mutex);
      instance().names_libraries = on != 0;
      return 0;
    };
    table.set_thread_id_type = [](int) { return 0; };
    table.get_device_id = [](void* context, uint32_t* device) {  // as fakes::Cuda::primary numbers them
      *device = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(context) - 1);
      return context != nullptr ? 0 : 1;
    };
    table.get_graph_node_id = [](void* node, uint64_t* id) {
      *id = reinterpret_cast<uint64_t>(node);
      return *id != 0 ? 0 : 1;
    };
    return table;
  }

 private:
  struct Subscriber {
    driver::CuptiCallback callback = nullptr;
    void* user_data = nullptr;
  };
  /// Nobody when that was not asked for.
  Subscriber subscriber_of(int domain, uint32_t id) {
    const std::lock_guard lock(mutex);
    return callbacks.contains({domain, id}) ? Subscriber{callback.load(), user_data.load()} : Subscriber{};
  }
  driver::CuptiResult subscribe(driver::CuptiSubscriber* subscriber, driver::CuptiCallback to, void* data) {
    const std::lock_guard lock(mutex);
    ++subscriptions;
    if (subscribe_code == 0) {
      ++subscribed;
      user_data = data;
      callback = to;
      *subscriber = this;
    }
    return subscribe_code;
  }
};

}  // namespace gpuscope::fakes
