// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "gpuscope/activity/buffers.h"
#include "gpuscope/driver/cupti.h"

namespace gpuscope::activity {

struct ResourceCallbackData;

/// How much of CUPTI this process can have.
enum class Tier {
  None,    // no CUPTI, or another tool holds it
  Shared,  // activity records without a subscription: an idle torch.profiler holds the slot
  Sole,    // records and callbacks
};

/// CUPTI's side of a recording: subscribes, switches kinds on and off, and moves what CUPTI delivers into the buffer
/// pool and the threads' event logs.
///
/// start, flush, stop: one thread at a time. CUPTI calls the callbacks on any thread, with locks of its own held, so
/// they only append. One may be started at a time in a process, as CUPTI has one pair of buffer callbacks.
class Collector {
 public:
  struct Options {
    bool graph_trace = false;      // one record a graph launch instead of one a node
    bool synchronization = false;  // records of synchronizing calls as the GPU saw them
    bool memory = false;           // records of memory taken from the driver and given back
    bool may_share = false;        // tier Shared is worth trying: the slot's holder is known to be idle
  };

  explicit Collector(const driver::Cupti& cupti) : cupti_(cupti) {}
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;
  ~Collector();

  /// Never throws: what CUPTI refuses lowers the tier, and why() tells.
  Tier start(const Options& options);
  /// Asks CUPTI for finished buffers; `forced` also for those with records of running work, which then stay unfinished.
  void flush(bool forced) noexcept;
  void stop() noexcept;

  Tier tier() const noexcept { return tier_; }
  const std::string& why() const noexcept { return why_; }
  /// Who held the slot, as far as CUPTI tells.
  const std::string& holder() const noexcept { return holder_; }
  /// Why memory that was asked for is not recorded, in whole or in part; empty when it is.
  const std::string& memory_why() const noexcept { return memory_why_; }
  /// Records of memory name the library that asked for it.
  bool names_libraries() const noexcept { return names_libraries_; }
  /// CUPTI had to end by itself after an error in it or in the program.
  bool broken() const noexcept { return broken_.load(std::memory_order_relaxed); }
  /// Records that CUPTI itself threw away since start.
  uint64_t dropped() noexcept;
  /// Module unloads seen: name pointers from before may be reused.
  uint64_t unloads() const noexcept { return unloads_.load(std::memory_order_acquire); }
  BufferPool& buffers() noexcept { return buffers_; }
  const driver::Cupti& cupti() const noexcept { return cupti_; }

 private:
  struct Callbacks;  // the C functions

  void on_resource(uint32_t callback, const ResourceCallbackData* data) noexcept;
  bool subscribe();
  void set_attributes();
  void restore_attributes() noexcept;
  bool enable_kinds(const Options& options);
  Tier give_up(const std::string& call, driver::CuptiResult code);

  driver::Cupti cupti_;
  BufferPool buffers_;
  driver::CuptiSubscriber subscriber_ = nullptr;
  Tier tier_ = Tier::None;
  uint64_t enabled_kinds_ = 0;
  std::string why_;
  std::string holder_;
  std::string memory_why_;
  bool names_libraries_ = false;
  std::atomic<bool> broken_{false};
  std::atomic<uint64_t> unloads_{0};
  uint64_t dropped_ = 0;
  std::array<uint8_t, 2> attributes_before_{};  // of kAttributes, as they were found
  unsigned attributes_set_ = 0;                 // a bit for each that was changed
};

}  // namespace gpuscope::activity
