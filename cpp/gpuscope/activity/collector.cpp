// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/collector.h"

#include <array>
#include <utility>

#include "gpuscope/activity/layout.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_log.h"

namespace gpuscope::activity {
namespace {

// CUPTI's buffer callbacks carry no user data.
std::atomic<Collector*> active{nullptr};

// Returning no buffer crashes CUPTI before 12.9 (version 27), so that those get one whose content is thrown away.
constexpr uint32_t kMayRefuseBuffer = 27;
alignas(64) std::array<uint8_t, 64 * 1024> scrap;

constexpr unsigned kFirstBuffers = 8;
constexpr unsigned kFewBuffers = 4;  // threads take one each, and may do so at one moment
constexpr std::array<Attribute, 2> kAttributes = {kZeroedBuffers, kPerThreadBuffers};

using base::EventLogs;

std::string refusal(const driver::Cupti& cupti, const std::string& call, driver::CuptiResult code) {
  return call + " failed with " + cupti.error_name(code) + " (" + std::to_string(code) + ")";
}

}  // namespace

// Everything here runs inside CUPTI, on the program's threads: append and return.
struct Collector::BufferCallbacks {
  static void on_buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
    Collector* self = active.load(std::memory_order_acquire);
    *max_records = 0;
    *size = BufferPool::kBufferBytes;
    *buffer = self != nullptr ? self->buffers_.take() : nullptr;
    if (self != nullptr && self->buffers_.ready() < kFewBuffers) {
      EventLogs::process().wake().release();  // the decode thread makes more
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
    }
  }

  static uint64_t on_timestamp() { return static_cast<uint64_t>(base::Clock::process().now_ns()); }
};

Collector::~Collector() {
  unwatch_allocations();
  stop();
  Collector* self = this;
  active.compare_exchange_strong(self, nullptr);
}

Tier Collector::start(const Options& options) {
  const std::lock_guard lock(switching_);
  stop_recording();
  why_ = driver::cupti_shortcoming(cupti_);
  if (!why_.empty()) {
    return tier_;
  }
  base::Clock::process();  // measured now, not inside CUPTI's first request for a timestamp
  buffers_.provide(kFirstBuffers);
  dropped_ = 0;
  memory_why_.clear();
  why_ = subscribe(holder_);
  const bool sole = why_.empty();
  if (!sole && !options.may_share) {
    return tier_;
  }
  tier_ = sole ? Tier::Sole : Tier::Shared;
  set_attributes();
  active.store(this, std::memory_order_release);
  const auto registered =
      cupti_.register_callbacks(&BufferCallbacks::on_buffer_requested, &BufferCallbacks::on_buffer_completed);
  if (registered != driver::kCuptiSuccess) {
    return give_up("cuptiActivityRegisterCallbacks", registered);
  }
  enable_kinds(options);
  return tier_;
}

void Collector::set_attributes() {
  if (cupti_.get_attribute != nullptr && cupti_.set_attribute != nullptr) {
    // Both are safe to be refused: CUPTI then zeroes buffers itself, and threads share buffers.
    for (std::size_t index = 0; index < kAttributes.size(); ++index) {
      size_t size = sizeof(uint8_t);
      uint8_t on = 1;
      if (cupti_.get_attribute(kAttributes[index], &size, &attributes_before_[index]) == driver::kCuptiSuccess &&
          cupti_.set_attribute(kAttributes[index], &size, &on) == driver::kCuptiSuccess) {
        attributes_set_ |= 1U << index;
      }
    }
  }
  if (cupti_.set_thread_id_type != nullptr) {
    cupti_.set_thread_id_type(1);  // SYSTEM: gettid
  }
  // Once in a process, and never over another client's: a second registration garbles the first records of every
  // session that follows.
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
  for (const Kind kind : {kMemcpy, kMemcpyPeer, kMemset}) {
    enable(kind);
  }
  if (options.synchronization) {
    enable(kSynchronization);
  }
  if (options.graph_trace) {
    enable(kGraphTrace);
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
    enable(kRuntime);  // records, unlike callbacks, tell of a runtime call but not of the driver's call beneath it
  }
  const auto code = enable(kConcurrentKernel);  // last: from here on launches are recorded
  if (code != driver::kCuptiSuccess) {
    give_up("cuptiActivityEnable", code);
    return false;
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
    dropped_ += more;  // CUPTI starts again from zero at every question
  }
  return dropped_;
}

void Collector::stop() noexcept {
  if (!left_behind()) {
    const std::lock_guard lock(switching_);
    stop_recording();
  }
}

void Collector::stop_recording() noexcept {
  for (uint32_t kind = 0; kind < 64; ++kind) {
    if ((enabled_kinds_ >> kind & 1) != 0) {
      cupti_.activity_disable(static_cast<int>(kind));
    }
  }
  enabled_kinds_ = 0;
  if (std::exchange(names_libraries_, false)) {
    cupti_.enable_allocation_source(0);
  }
  if (tier_ == Tier::Sole) {
    switch_callbacks(kRecording, false);
  }
  restore_attributes();
  tier_ = Tier::None;
}

void Collector::restore_attributes() noexcept {
  // They hold for the whole process: the next client of CUPTI may hand out buffers that are not zeroed.
  for (std::size_t index = 0; index < kAttributes.size(); ++index) {
    size_t size = sizeof(uint8_t);
    if ((attributes_set_ >> index & 1) != 0) {
      cupti_.set_attribute(kAttributes[index], &size, &attributes_before_[index]);
    }
  }
  attributes_set_ = 0;
}

}  // namespace gpuscope::activity
