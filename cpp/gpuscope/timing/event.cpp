// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/event.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "gpuscope/timing/context.h"

namespace gpuscope::timing {
namespace {

// CUresult
constexpr int kInvalidHandle = 400;
// CUevent_flags, and CU_EVENT_RECORD_EXTERNAL = CU_EVENT_WAIT_EXTERNAL
constexpr unsigned kBlockingSync = 1;
constexpr unsigned kDisableTiming = 2;
constexpr unsigned kInterprocess = 4;
constexpr unsigned kExternal = 1;

unsigned flags_of(const EventOptions& options) {
  return (options.blocking ? kBlockingSync : 0) | (options.timing ? 0 : kDisableTiming) |
         (options.interprocess ? kInterprocess : 0);
}

/// Whether a stream of the current context is captured. Throws for the legacy default stream during a capture: it is
/// never captured, but using it would invalidate the other stream's capture.
bool captures(const driver::Cuda& cuda, uint64_t stream) {
  constexpr uint64_t kLegacy = 1;  // or 0
  const bool capturing = is_capturing(cuda, driver::as_stream(stream));
  if (capturing && stream <= kLegacy) {
    throw base::InvalidArgument(
        "stream is the default stream while another stream, which it waits for, is being captured into a CUDA graph; "
        "accepted is the stream that is captured");
  }
  return capturing;
}

constexpr int kTries = 3;  // in the first the GPU's front end may be asleep

int64_t host_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

driver::CuEvent EventPool::take() {
  if (process_ != getpid()) {
    throw base::NotAvailable("a CUDA event", "this process was forked from one that used CUDA, which ends at a fork",
                             "start processes by spawn");
  }
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    const driver::CuEvent event = free_.back();
    free_.pop_back();
    return event;
  }
  free_.reserve(created_ + 1);  // so that give_back never allocates
  const PrimaryContext::Current current(context_);
  const RelaxedCapture relaxed(context_.cuda());
  driver::CuEvent event = nullptr;
  GPUSCOPE_CUDA(context_.cuda(), event_create, &event, 0);
  ++created_;
  return event;
}

void EventPool::give_back(driver::CuEvent event) noexcept {
  if (process_ != getpid()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

EventPool::Counts EventPool::counts() const {
  const std::lock_guard lock(mutex_);
  return {created_, created_ - free_.size(), free_.size()};
}

std::shared_ptr<EventPool> EventPools::of(int ordinal) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<EventPool>& pool = pools_[ordinal];
  if (!pool || pool->context().was_reset()) {
    pool = std::make_shared<EventPool>(cuda_, ordinal);
  }
  return pool;
}

EventPool::Counts EventPools::counts(int ordinal) const {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(ordinal);
  return found == pools_.end() || !found->second ? EventPool::Counts{} : found->second->counts();
}

Event::Event(std::shared_ptr<EventPool> pool, EventOptions options) : pool_(std::move(pool)), options_(options) {
  if (options_.interprocess && options_.timing) {
    throw base::InvalidArgument(
        "interprocess is True; an event that processes share cannot time, so timing must be False");
  }
  if (pooled()) {
    event_ = pool_->take();
    return;
  }
  const PrimaryContext::Current current(pool_->context());
  const RelaxedCapture relaxed(cuda());
  GPUSCOPE_CUDA(cuda(), event_create, &event_, flags_of(options_));
}

Event::Event(std::shared_ptr<EventPool> pool, const std::string& ipc_handle)
    : pool_(std::move(pool)), options_{.timing = false, .interprocess = true}, recorded_(true) {
  driver::CuIpcEventHandle handle;
  if (ipc_handle.size() != sizeof handle.bytes) {
    throw base::InvalidArgument("handle has " + std::to_string(ipc_handle.size()) + " bytes; accepted are the " +
                                std::to_string(sizeof handle.bytes) + " bytes that ipc_handle() gave");
  }
  std::memcpy(handle.bytes, ipc_handle.data(), sizeof handle.bytes);
  const PrimaryContext::Current current(pool_->context());
  const RelaxedCapture relaxed(cuda());
  GPUSCOPE_CUDA(cuda(), event_import, &event_, handle);
}

Event::~Event() {
  if (pooled()) {
    pool_->give_back(event_);
    return;
  }
  pool_->context().release_in([&](const driver::Cuda& cuda) {
    const RelaxedCapture relaxed(cuda);
    cuda.event_destroy(event_);
  });
}

bool Event::pooled() const noexcept { return options_.timing && !options_.blocking && !options_.interprocess; }

bool Event::record(uint64_t stream, bool into_graphs) {
  const PrimaryContext::Current current(pool_->context());
  if (!into_graphs && is_capturing(cuda(), driver::as_stream(stream))) {
    return false;
  }
  const bool capturing = into_graphs && captures(cuda(), stream);
  const bool external = options_.external && capturing;
  const int code = external ? cuda().event_record_with_flags(event_, driver::as_stream(stream), kExternal)
                            : cuda().event_record(event_, driver::as_stream(stream));
  if (code == kInvalidHandle) {
    if (const int other = stream_device(cuda(), stream); other != device()) {
      throw base::InvalidArgument("stream is of device " + std::to_string(other) + "; this event is of device " +
                                  std::to_string(device()) + " and records on that device's streams only");
    }
  }
  if (code != 0) {
    throw base::CudaError("cuEventRecord", code, cuda().error_name(code));
  }
  captured_.store(capturing && !external, std::memory_order_release);
  recorded_.store(true, std::memory_order_release);
  return true;
}

void Event::check_not_captured(const char* name) const {
  if (captured_.load(std::memory_order_acquire)) {
    throw base::InvalidArgument(std::string(name) +
                                " was recorded into a CUDA graph and has no time of its own; record it outside of a "
                                "capture, or make it with external");
  }
}

void Event::wait(uint64_t stream, int device) const {
  if (!recorded()) {  // a pooled event still contains its previous record
    return;
  }
  const PrimaryContext::Current own(pool_->context());
  const auto wait = [&] {
    const unsigned flags = captures(cuda(), stream) && options_.external ? kExternal : 0;
    GPUSCOPE_CUDA(cuda(), stream_wait_event, driver::as_stream(stream), event_, flags);
  };
  if (device == this->device() || !is_default_stream(stream)) {
    wait();
    return;
  }
  const PrimaryContext context(cuda(), device);
  const PrimaryContext::Current current(context);
  wait();
}

bool Event::query() const {
  if (!recorded()) {
    return true;
  }
  check_not_captured("the event");
  const PrimaryContext::Current current(pool_->context());
  const RelaxedCapture relaxed(cuda());
  const int code = cuda().event_query(event_);
  if (code != 0 && code != driver::kNotReady) {
    throw base::CudaError("cuEventQuery", code, cuda().error_name(code));
  }
  return code == 0;
}

double Event::synchronize() const {
  if (!recorded()) {
    return 0;
  }
  check_not_captured("the event");
  const auto start = std::chrono::steady_clock::now();
  const PrimaryContext::Current current(pool_->context());
  const RelaxedCapture relaxed(cuda());
  GPUSCOPE_CUDA(cuda(), event_synchronize, event_);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Event::elapsed_time(const Event& end) const {
  for (const auto& [event, name] : {std::pair(this, "the start event"), std::pair(&end, "end")}) {
    if (!event->options_.timing) {
      throw base::InvalidArgument(std::string(name) + " was made without timing; make both events with timing");
    }
    if (!event->recorded()) {
      throw base::InvalidArgument(std::string(name) + " has not been recorded; record both events first");
    }
    event->check_not_captured(name);
  }
  if (device() != end.device()) {
    throw base::InvalidArgument("end is of device " + std::to_string(end.device()) + "; the start event is of device " +
                                std::to_string(device()) + ", and only events of one device can be compared");
  }
  const PrimaryContext::Current current(pool_->context());
  const RelaxedCapture relaxed(cuda());
  float milliseconds = 0;
  const int code = cuda().event_elapsed_time(&milliseconds, event_, end.event_);
  if (code == driver::kNotReady) {
    throw base::InvalidArgument("end or the start event has not been reached by the GPU yet; synchronize() end first");
  }
  if (code != 0) {
    throw base::CudaError("cuEventElapsedTime", code, cuda().error_name(code));
  }
  return milliseconds;
}

std::string Event::ipc_handle() const {
  if (!options_.interprocess) {
    throw base::InvalidArgument(
        "interprocess was False when this event was made; only events made with it have handles");
  }
  const PrimaryContext::Current current(pool_->context());
  const RelaxedCapture relaxed(cuda());
  driver::CuIpcEventHandle handle{};
  GPUSCOPE_CUDA(cuda(), event_export, &handle, event_);
  return {handle.bytes, sizeof handle.bytes};
}

HostAnchors::HostAnchors(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)) {
  const PrimaryContext::Current current(pool_->context());
  const RelaxedCapture relaxed(pool_->context().cuda());
  GPUSCOPE_CUDA(pool_->context().cuda(), stream_create, &stream_, kNonBlocking);
}

HostAnchor HostAnchors::take(int64_t timeout_ns) const {
  HostAnchor best;
  const int64_t end = host_now() + timeout_ns;
  for (int count = 0; count < kTries; ++count) {
    auto event = std::make_unique<Event>(pool_, EventOptions{});
    const int64_t before = host_now();
    event->record(reinterpret_cast<uint64_t>(stream_));
    bool reached = false;
    int64_t after = 0;
    do {
      reached = event->query();
      after = host_now();
    } while (!reached && after < end);
    if (!reached) {
      break;
    }
    const int64_t error = (after - before + 1) / 2;
    if (best.event == nullptr || error < best.error_ns) {
      best = {std::move(event), before + error, error};
    }
  }
  return best;
}

}  // namespace gpuscope::timing
