// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "gpuscope/activity/buffers.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/driver/cupti.h"

namespace gpuscope::activity {

struct ApiCallback;
struct ResourceCallbackData;

/// How much of CUPTI this process can have.
enum class Tier {
  None,    // no CUPTI, or another tool holds it
  Shared,  // activity records without a subscription: an idle torch.profiler holds the slot
  Sole,    // records and callbacks
};

/// CUPTI's side of a recording: subscribes, switches kinds on and off, and moves what CUPTI delivers into the buffer
/// pool and the threads' event logs. Beside it, and for as long as is wanted, the watch of the driver's allocations.
///
/// CUPTI has one subscription for a process, which both use: whoever comes first takes it, the last one gives it back.
///
/// start, flush, stop: one thread at a time. watch_allocations, unwatch_allocations: any thread, at any time. One may
/// be started at a time in a process, as CUPTI has one pair of buffer callbacks.
///
/// CUPTI calls the callbacks on any thread, with locks of its own held, so they only append, or tell
/// base::allocation_sink, and wait for nothing but the ledger behind it, which calls nobody. The mutex of the switching
/// is held while CUPTI is called, and CUPTI may wait for callbacks that run: they never take it, so they always end.
/// Whoever switches must not hold Python's GIL, for which a callback's thread may wait.
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

  /// From now on base::allocation_sink hears of what the driver gives and takes back. Returns why that cannot be had,
  /// "" when it can; does nothing while it is on.
  std::string watch_allocations();
  void unwatch_allocations() noexcept;
  bool watches_allocations() const noexcept;
  /// What came to be in the process while allocations were watched, since the collector was made.
  struct Loaded {
    uint64_t contexts = 0;
    uint64_t modules = 0;
    uint64_t code_bytes = 0;  // on the device, once all of each module is loaded
    uint32_t services = 0;    // DeviceService bits: what kernels of any module call
  };
  Loaded loaded() const noexcept;
  /// In the child of a fork: CUPTI was used before it, and did not come along. Nothing here may be used again.
  bool left_behind() const noexcept;

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
  struct BufferCallbacks;  // the C functions

  enum Wanted : uint32_t { kRecording = 1, kAllocations = 2 };

  static void on_callback(void* self, int domain, uint32_t callback, const void* data);
  void on_resource(uint32_t callback, const ResourceCallbackData* data) noexcept;
  void on_allocation_call(uint32_t callback, const ApiCallback& call) noexcept;
  // Those that follow: with switching_ held.
  /// Returns why not; `holder`: who has the slot, as far as CUPTI tells.
  std::string subscribe(std::string& holder);
  void switch_callbacks(Wanted who, bool on) noexcept;
  void stop_recording() noexcept;
  void set_attributes();
  void restore_attributes() noexcept;
  bool enable_kinds(const Options& options);
  Tier give_up(const std::string& call, driver::CuptiResult code);

  driver::Cupti cupti_;
  BufferPool buffers_;
  mutable std::mutex switching_;  // guards subscriber_; no callback takes it
  driver::CuptiSubscriber subscriber_ = nullptr;
  std::atomic<uint32_t> wanted_{0};
  std::atomic<int> process_{0};  // that first subscribed
  Tier tier_ = Tier::None;
  uint64_t enabled_kinds_ = 0;
  std::string why_;
  std::string holder_;
  std::string memory_why_;
  bool names_libraries_ = false;
  std::atomic<bool> broken_{false};
  std::atomic<uint64_t> unloads_{0};
  std::atomic<uint64_t> contexts_{0};
  std::atomic<uint64_t> modules_{0};
  std::atomic<uint64_t> code_bytes_{0};
  std::atomic<uint32_t> services_{0};
  uint64_t dropped_ = 0;
  std::array<uint8_t, 2> attributes_before_{};  // of kAttributes, as they were found
  unsigned attributes_set_ = 0;                 // a bit for each that was changed
};

}  // namespace gpuscope::activity
