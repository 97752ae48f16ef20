// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/collector.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "gpuscope/activity/calls.h"
#include "gpuscope/activity/layout.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/hooks.h"

namespace gpuscope::activity {
namespace {

using base::EventLog;
using base::EventLogs;
using base::Op;

// CUPTI's buffer callbacks carry no user data.
std::atomic<Collector*> active{nullptr};

// CUPTI before 12.9 (version 27) crashes without a buffer. Such versions get this one, and its content is dropped.
constexpr uint32_t kMayRefuseBuffer = 27;
alignas(64) std::array<uint8_t, std::size_t{64} * 1024> scrap;

// From this version on, cuptiActivityEnableRawTimestamps (in no header) is known to work.
constexpr uint32_t kKnownRawTimestamps = 130000;

// The wait for buffers with running kernels at the end of a recording.
constexpr int kLooks = 8;
constexpr std::chrono::milliseconds kLookInterval{1};

constexpr std::array<ResourceCallback, 3> kRecordedResources = {kGraphNodeCreated, kGraphNodeCloned,
                                                                kModuleUnloadStarting};
constexpr std::array<ResourceCallback, 3> kWatchedResources = {kContextCreated, kContextDestroyStarting, kModuleLoaded};

std::string refusal(const driver::Cupti& cupti, const std::string& call, driver::CuptiResult code) {
  return call + " failed with " + cupti.error_name(code) + " (" + std::to_string(code) + ")";
}

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

void report_context_destroyed(void* context) {
  base::DriverAllocation event;
  event.step = base::AllocationStep::ContextDestroyed;
  event.context = reinterpret_cast<uint64_t>(context);
  if (const base::AllocationSink sink = base::allocation_sink.load(std::memory_order_acquire); sink != nullptr) {
    sink(event);
  }
}

}  // namespace

// -- callbacks inside CUPTI, on the program's threads: append and return ----------------------------------------------

struct Collector::BufferCallbacks {
  static void on_buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
    Collector* self = active.load(std::memory_order_acquire);
    *max_records = 0;
    *size = BufferPool::kBufferBytes;
    *buffer = self != nullptr ? self->buffers_.take() : nullptr;
    if (self != nullptr && *buffer == nullptr) {
      EventLog::wake().release();
    }
    if (*buffer == nullptr) {
      const bool refuse = self == nullptr || self->cupti_.version >= kMayRefuseBuffer;
      *buffer = refuse ? nullptr : scrap.data();
      *size = refuse ? 0 : scrap.size();
    }
  }

  static void on_buffer_completed(void* context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
    Collector* self = active.load(std::memory_order_acquire);
    if (self != nullptr && buffer != nullptr && buffer != scrap.data()) {
      self->buffers_.complete(context, stream, buffer, valid);
      if (self->buffers_.unread() % BufferPool::kManyUnread == 0) {
        EventLog::wake().release();
      }
    }
  }

  static uint64_t on_timestamp() { return static_cast<uint64_t>(base::Clock::process().now_ns()); }
};

void Collector::on_callback(void* user_data, int domain, uint32_t callback, const void* data) {
  auto* self = static_cast<Collector*>(user_data);
  if (domain == kDriverDomain) [[likely]] {
    const auto* call = static_cast<const ApiCallback*>(data);
    const uint32_t wanted = self->wanted_.load(std::memory_order_relaxed);
    if ((wanted & kAllocations) != 0) [[unlikely]] {
      self->on_allocation_call(callback, *call);
      if (find_call(callback) == nullptr) {
        return;  // not recorded
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

void Collector::on_allocation_call(uint32_t callback, const ApiCallback& call) const noexcept {
  const base::AllocationSink sink = base::allocation_sink.load(std::memory_order_acquire);
  if (sink == nullptr || !is_allocation_call(callback)) {
    return;
  }
  if (call.site == kEnterSite) {
    if (call.correlation_data != nullptr) {
      *call.correlation_data = base::ticks();  // CUPTI keeps it until the call's end
    }
    return;
  }
  const int result = call.result != nullptr ? *call.result : 0;
  std::optional<base::DriverAllocation> allocation = decode_allocation(callback, call.function_params, result);
  if (!allocation.has_value()) {
    return;
  }
  allocation->ended_ticks = base::ticks();
  allocation->began_ticks = call.correlation_data != nullptr ? *call.correlation_data : allocation->ended_ticks;
  allocation->context = reinterpret_cast<uint64_t>(call.context);
  uint32_t device = 0;
  // One of the few functions that CUPTI allows within its callbacks.
  if (allocation->device == base::kUnknownDevice && allocation->step == base::AllocationStep::Allocated &&
      cupti_.get_device_id != nullptr && cupti_.get_device_id(call.context, &device) == driver::kCuptiSuccess) {
    allocation->device = static_cast<int32_t>(device);
  }
  sink(*allocation);
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
      return report_context_destroyed(data->context);
    default:
      return log_node(callback, static_cast<const GraphCallbackData*>(data->descriptor), cupti_);
  }
}

// -- a recording ------------------------------------------------------------------------------------------------------

Collector::~Collector() {
  unwatch_allocations();
  stop();
  Collector* self = this;
  active.compare_exchange_strong(self, nullptr);
}

Tier Collector::start(const Options& options) {
  why_ = driver::cupti_shortcoming(cupti_);
  if (!why_.empty()) {
    return tier_;
  }
  claim();
  const std::lock_guard lock(switching_);
  stop_recording();
  base::Clock::process();  // calibrated now, not inside CUPTI's first request for a timestamp
  dropped_ = 0;
  memory_why_.clear();
  why_ = subscribe(holder_);
  const bool sole = why_.empty();
  if (!sole && !options.may_share) {
    return tier_;
  }
  tier_ = sole ? Tier::Sole : Tier::Shared;
  if (!first_started_.has_value()) {
    first_started_ = std::chrono::steady_clock::now();
  }
  set_attributes();
  active.store(this, std::memory_order_release);
  const auto registered =
      cupti_.register_callbacks(&BufferCallbacks::on_buffer_requested, &BufferCallbacks::on_buffer_completed);
  if (registered != driver::kCuptiSuccess) {
    return give_up("cuptiActivityRegisterCallbacks", registered);
  }
  if (options.raw_timestamps) {
    switch_raw_timestamps();
  }
  enable_kinds(options);
  return tier_;
}

// CUPTI 13 keeps its knowledge of the GPU's clock as a list, which grows every four seconds during the whole process.
// It scans the list for each kernel's timestamp: 4 to 6 ns more per launch for each second (H100; 13.0 and 13.5). Raw
// timestamps avoid the scan, and save 0.1 us from the beginning.
bool Collector::knows_raw_timestamps() const noexcept {
  return cupti_.enable_raw_timestamps != nullptr && cupti_.version >= kKnownRawTimestamps;
}

void Collector::switch_raw_timestamps() {
  if (tier_ != Tier::Sole || !knows_raw_timestamps()) {
    return;
  }
  cupti_.flush_all(0);  // earlier records are in no buffer of this recording
  is_raw_ = cupti_.enable_raw_timestamps(1) == driver::kCuptiSuccess;
}

void Collector::set_attributes() {
  if (cupti_.get_attribute != nullptr && cupti_.set_attribute != nullptr) {
    // Both may be refused. Then CUPTI zeroes buffers itself, and before 12.3 threads always share buffers.
    size_t size = sizeof(uint8_t);
    uint8_t before = 0;
    uint8_t on = 1;
    if (cupti_.get_attribute(kZeroedBuffers, &size, &before) == driver::kCuptiSuccess &&
        cupti_.set_attribute(kZeroedBuffers, &size, &on) == driver::kCuptiSuccess) {
      zeroed_before_ = before;
    }
    // Per-thread buffers break flushes in CUPTI 13.0.1. After kernels were switched off and on while threads launch,
    // flushes wait minutes for CUPTI's worker. After copies were switched, kernels of some streams are lost. With
    // shared buffers, a flush takes 27 ms after 30 such ends, and nothing is lost (H100, 16 threads). The setting
    // stays, as only this package uses it.
    uint8_t off = 0;
    cupti_.set_attribute(kPerThreadBuffers, &size, &off);
  }
  if (cupti_.set_thread_id_type != nullptr) {
    cupti_.set_thread_id_type(1);  // SYSTEM: gettid
  }
  // Once per process, and never over another client's: a second registration garbles the first records of every later
  // session.
  static bool registered = false;
  if (!registered && tier_ == Tier::Sole && cupti_.register_timestamp != nullptr) {
    registered = cupti_.register_timestamp(&BufferCallbacks::on_timestamp) == driver::kCuptiSuccess;
  }
}

bool Collector::enable_kinds(const Options& options) {
  if (tier_ == Tier::Sole) {
    switch_callbacks(kRecording, true);
  }
  const auto enable = [this](Kind kind) {
    const auto code = cupti_.activity_enable(static_cast<int>(kind));
    if (code == driver::kCuptiSuccess) {
      enabled_kinds_ |= uint64_t{1} << kind;
    }
    return code;
  };
  if (options.graph_trace) {
    enable(kGraphTrace);
  }
  if (const auto code = enable(kConcurrentKernel); code != driver::kCuptiSuccess) {
    give_up("cuptiActivityEnable", code);
    return false;
  }
  for (const Kind kind : {kMemcpy, kMemcpyPeer, kMemset}) {
    enable(kind);
  }
  if (options.synchronization) {
    enable(kSynchronization);
  }
  if (options.overheads) {
    enable(kOverhead);
  }
  if (options.memory) {
    for (const Kind kind : {kMemory, kMemoryPool}) {
      if (const auto code = enable(kind); code != driver::kCuptiSuccess && memory_why_.empty()) {
        memory_why_ = refusal(cupti_, "cuptiActivityEnable", code);
      }
    }
    names_libraries_ = memory_why_.empty() && cupti_.enable_allocation_source != nullptr &&
                       cupti_.enable_allocation_source(1) == driver::kCuptiSuccess;
  }
  if (tier_ == Tier::Shared) {
    enable(kDriver);
    enable(kRuntime);  // records, unlike callbacks, include runtime calls without a driver call
  }
  return true;
}

Tier Collector::give_up(const std::string& call, driver::CuptiResult code) {
  const std::string why = refusal(cupti_, call, code);
  stop_recording();
  why_ = why;
  return tier_;
}

void Collector::flush(bool forced) noexcept {
  if (tier_ != Tier::None) {
    cupti_.flush_all(forced ? 1 : 0);
  }
}

uint64_t Collector::dropped() noexcept {
  size_t more = 0;
  if (tier_ != Tier::None && cupti_.get_num_dropped != nullptr &&
      cupti_.get_num_dropped(nullptr, 0, &more) == driver::kCuptiSuccess) {
    dropped_ += more;  // each query resets CUPTI's count
  }
  return dropped_;
}

void Collector::stop() noexcept {
  if (!in_forked_child()) {
    const std::lock_guard lock(switching_);
    stop_recording();
  }
}

void Collector::disable_kinds() noexcept {
  for (uint32_t kind = 0; kind < 64; ++kind) {
    if ((enabled_kinds_ >> kind & 1) != 0) {
      cupti_.activity_disable(static_cast<int>(kind));
    }
  }
  enabled_kinds_ = 0;
}

// A forced flush during recorded kernels has a permanent cost: CUPTI's thread takes 0.2 us more for each later launch,
// and 10 MB (H200, CUPTI 13.0). So this waits briefly for the kernels, and then forces the rest.
void Collector::bring_buffers_home() noexcept {
  for (int look = 0; look < kLooks && (look == 0 || buffers_.lent() != 0); ++look) {
    if (look != 0) {
      std::this_thread::sleep_for(kLookInterval);
    }
    cupti_.flush_all(0);
  }
  if (buffers_.lent() != 0) {
    cupti_.flush_all(1);
  }
}

void Collector::stop_recording() noexcept {
  disable_kinds();
  if (tier_ != Tier::None) {
    bring_buffers_home();  // after the kinds: launching threads take no more buffers
  }
  if (std::exchange(is_raw_, false)) {
    cupti_.enable_raw_timestamps(0);
  }
  if (std::exchange(names_libraries_, false)) {
    cupti_.enable_allocation_source(0);
  }
  if (tier_ == Tier::Sole) {
    switch_callbacks(kRecording, false);
  }
  if (const std::optional<uint8_t> before = std::exchange(zeroed_before_, std::nullopt); before.has_value()) {
    // A process-wide setting: the next client of CUPTI may provide buffers that are not zeroed.
    size_t size = sizeof(uint8_t);
    uint8_t value = *before;
    cupti_.set_attribute(kZeroedBuffers, &size, &value);
  }
  dropped();  // resets CUPTI's count for the next recording
  tier_ = Tier::None;
}

// -- the subscription, shared by a recording and the watch of allocations ---------------------------------------------

void Collector::claim() noexcept {
  int nobody = 0;
  process_.compare_exchange_strong(nobody, getpid());
}

std::string Collector::subscribe(std::string& found) {
  if (subscriber_ != nullptr) {
    return {};
  }
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
               : refusal(cupti_, "cuptiSubscribe", code);
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
  base::Clock::process();  // calibrated now, not inside the first allocation
  claim();
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
  if (in_forked_child()) {
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

bool Collector::in_forked_child() const noexcept {
  const int process = process_.load(std::memory_order_relaxed);
  return process != 0 && process != getpid();
}

}  // namespace gpuscope::activity
