// SPDX-License-Identifier: Apache-2.0
// The collector's subscription to CUPTI's callbacks, which a recording and the watch of allocations share.
#include <unistd.h>

#include <array>
#include <optional>

#include "gpuscope/activity/allocation_calls.h"
#include "gpuscope/activity/calls.h"
#include "gpuscope/activity/collector.h"
#include "gpuscope/activity/cubin.h"
#include "gpuscope/activity/layout.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_log.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/stacks.h"

namespace gpuscope::activity {
namespace {

using base::EventLog;
using base::EventLogs;
using base::Op;

constexpr std::array<ResourceCallback, 3> kRecordedResources = {kGraphNodeCreated, kGraphNodeCloned,
                                                                kModuleUnloadStarting};
constexpr std::array<ResourceCallback, 3> kWatchedResources = {kContextCreated, kContextDestroyStarting, kModuleLoaded};

void log_call(uint32_t callback, const ApiCallback* call) {
  EventLog* log = EventLogs::current();
  if (log == nullptr) [[unlikely]] {
    return;
  }
  if (call->site == kEnterSite) {
    if ((base::listening.load(std::memory_order_relaxed) & base::kListenStacks) != 0) [[unlikely]] {
      base::append_stack(*log);
    }
    log->append(base::ticks(), call->correlation, Op::CallEnter, callback);
  } else {
    const int result = call->result != nullptr ? *call->result : 0;
    log->append(base::ticks(), static_cast<uint32_t>(result), Op::CallExit, callback);
  }
}

void log_node(uint32_t callback, const GraphCallbackData* graph, const driver::Cupti& cupti) {
  EventLog* log = EventLogs::current();
  if (log == nullptr || graph == nullptr || cupti.get_graph_node_id == nullptr) {
    return;
  }
  uint64_t node = 0;
  if (cupti.get_graph_node_id(graph->node, &node) != driver::kCuptiSuccess) {
    return;
  }
  uint64_t origin = 0;
  const bool cloned =
      callback == kGraphNodeCloned && cupti.get_graph_node_id(graph->original_node, &origin) == driver::kCuptiSuccess;
  log->append(node, 0, Op::Node, cloned ? 1 : 0);
  if (cloned) {
    log->append(origin, 0, Op::NodeOrigin);
  }
}

void tell_context_gone(void* context) {
  base::DriverAllocation gone;
  gone.step = base::AllocationStep::ContextGone;
  gone.context = reinterpret_cast<uint64_t>(context);
  if (const base::AllocationSink sink = base::allocation_sink.load(std::memory_order_acquire); sink != nullptr) {
    sink(gone);
  }
}

}  // namespace

// What comes before subscribe runs inside CUPTI, on the program's threads: append and return.

void Collector::on_callback(void* user_data, int domain, uint32_t callback, const void* data) {
  auto* self = static_cast<Collector*>(user_data);
  if (domain == kDriverDomain) [[likely]] {
    const auto* call = static_cast<const ApiCallback*>(data);
    const uint32_t wanted = self->wanted_.load(std::memory_order_relaxed);
    if ((wanted & kAllocations) != 0) [[unlikely]] {
      self->on_allocation_call(callback, *call);
      if (find_call(callback) == nullptr) {
        return;  // of no interest to a recording
      }
    }
    if ((wanted & kRecording) != 0) [[likely]] {
      log_call(callback, call);
    }
  } else if (domain == kResourceDomain) {
    self->on_resource(callback, static_cast<const ResourceCallbackData*>(data));
  } else if (domain == kStateDomain && callback == kFatalError) {
    self->broken_.store(true, std::memory_order_relaxed);
  }
}

void Collector::on_allocation_call(uint32_t callback, const ApiCallback& call) noexcept {
  const base::AllocationSink sink = base::allocation_sink.load(std::memory_order_acquire);
  if (sink == nullptr || !is_allocation_call(callback)) {
    return;
  }
  if (call.site == kEnterSite) {
    if (call.correlation_data != nullptr) {
      *call.correlation_data = base::ticks();  // CUPTI keeps it for us up to the call's end
    }
    return;
  }
  const int result = call.result != nullptr ? *call.result : 0;
  std::optional<base::DriverAllocation> told = decode_allocation(callback, call.function_params, result);
  if (!told.has_value()) {
    return;
  }
  told->ended_ticks = base::ticks();
  told->began_ticks = call.correlation_data != nullptr ? *call.correlation_data : told->ended_ticks;
  told->context = reinterpret_cast<uint64_t>(call.context);
  uint32_t device = 0;
  // One of the few functions that CUPTI allows within its callbacks.
  if (told->device == base::kUnknownDevice && told->step == base::AllocationStep::Taken &&
      cupti_.get_device_id != nullptr && cupti_.get_device_id(call.context, &device) == driver::kCuptiSuccess) {
    told->device = static_cast<int32_t>(device);
  }
  sink(*told);
}

void Collector::on_resource(uint32_t callback, const ResourceCallbackData* data) noexcept {
  switch (callback) {
    case kModuleUnloadStarting:
      unloads_.fetch_add(1, std::memory_order_release);
      return;
    case kModuleLoaded: {
      const auto* module = static_cast<const ModuleCallbackData*>(data->descriptor);
      modules_.fetch_add(1, std::memory_order_relaxed);
      if (module != nullptr) {
        const Cubin cubin = read_cubin(module->cubin, module->cubin_bytes);
        code_bytes_.fetch_add(cubin.device_bytes, std::memory_order_relaxed);
        services_.fetch_or(cubin.services, std::memory_order_relaxed);
      }
      return;
    }
    case kContextCreated:
      contexts_.fetch_add(1, std::memory_order_relaxed);
      return;
    case kContextDestroyStarting:
      return tell_context_gone(data->context);
    default:
      return log_node(callback, static_cast<const GraphCallbackData*>(data->descriptor), cupti_);
  }
}

std::string Collector::subscribe(std::string& found) {
  if (subscriber_ != nullptr) {
    return {};
  }
  int nobody = 0;
  process_.compare_exchange_strong(nobody, getpid());
  broken_.store(false, std::memory_order_relaxed);
  std::array<char, 128> holder{};
  driver::CuptiResult code = driver::kCuptiSuccess;
  if (cupti_.subscribe_v2 != nullptr) {
    driver::CuptiSubscriberParams params{sizeof(params), "gpuscope", holder.data(), holder.size()};
    code = cupti_.subscribe_v2(&subscriber_, &Collector::on_callback, this, &params);
  } else {
    code = cupti_.subscribe(&subscriber_, &Collector::on_callback, this);
  }
  found = holder.data();
  if (code == driver::kCuptiSuccess) {
    cupti_.enable_callback(1, subscriber_, kStateDomain, kFatalError);
    return {};
  }
  subscriber_ = nullptr;
  const bool taken = code == driver::kCuptiMultipleSubscribers || code == driver::kCuptiMaxLimitReached;
  return taken ? "another tool" + (found.empty() ? "" : " (" + found + ")") + " holds CUPTI in this process"
               : "cuptiSubscribe failed with " + cupti_.error_name(code) + " (" + std::to_string(code) + ")";
}

void Collector::switch_callbacks(Wanted who, bool on) noexcept {
  const uint32_t others = wanted_.load(std::memory_order_relaxed) & ~who;
  wanted_.store(on ? others | who : others, std::memory_order_relaxed);
  if (!on && others == 0) {
    cupti_.unsubscribe(subscriber_);
    subscriber_ = nullptr;
    return;
  }
  const bool recording = who == kRecording;
  const auto turn = [&](int domain, uint32_t callback) {
    cupti_.enable_callback(on ? 1 : 0, subscriber_, domain, callback);
  };
  if (recording) {
    for (const DriverCall& call : driver_calls()) {
      if (others == 0 || !is_allocation_call(call.callback)) {
        turn(kDriverDomain, call.callback);
      }
    }
  } else {
    for (const uint32_t callback : allocation_calls()) {
      if (others == 0 || find_call(callback) == nullptr) {
        turn(kDriverDomain, callback);
      }
    }
  }
  for (const uint32_t callback : recording ? kRecordedResources : kWatchedResources) {
    turn(kResourceDomain, callback);
  }
}

std::string Collector::watch_allocations() {
  std::string why = driver::cupti_shortcoming(cupti_);
  if (!why.empty()) {
    return why;
  }
  base::Clock::process();  // measured now, not inside the first allocation
  const std::lock_guard lock(switching_);
  if (!watches_allocations()) {
    std::string holder;
    why = subscribe(holder);
    if (why.empty()) {
      switch_callbacks(kAllocations, true);
    }
  }
  return why;
}

void Collector::unwatch_allocations() noexcept {
  if (left_behind()) {
    return;
  }
  const std::lock_guard lock(switching_);
  if (watches_allocations()) {
    switch_callbacks(kAllocations, false);
  }
}

bool Collector::watches_allocations() const noexcept {
  return (wanted_.load(std::memory_order_relaxed) & kAllocations) != 0;
}

Collector::Loaded Collector::loaded() const noexcept {
  return {contexts_.load(), modules_.load(), code_bytes_.load(), services_.load()};
}

bool Collector::left_behind() const noexcept {
  const int process = process_.load(std::memory_order_relaxed);
  return process != 0 && process != getpid();
}

}  // namespace gpuscope::activity
