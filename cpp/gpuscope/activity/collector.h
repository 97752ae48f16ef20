// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "gpuscope/activity/buffers.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::activity {

/// What kernels call of the driver. It keeps memory on the device for each of these from the moment that a module with
/// such calls is loaded: 92 MiB for assert, 64 for printf, both in one; some 50 for malloc (driver 13.0 on an H200).
enum DeviceService : uint32_t { kAssert = 1, kPrintf = 2, kMalloc = 4 };

/// The device memory that a module takes, from its image, an ELF file.
struct Cubin {
  uint64_t device_bytes = 0;  // once all of it is loaded: CUDA's lazy loading does so function by function
  uint32_t services = 0;      // DeviceService bits
};

/// Nothing for an image that is damaged, or none. Any thread; reads headers and symbols only.
Cubin read_cubin(const void* bytes, std::size_t size) noexcept;

struct ApiCallback;
struct ResourceCallbackData;

/// How much of CUPTI this process can have.
enum class Tier {
  None,    // no CUPTI, or another tool holds it
  Shared,  // activity records without a subscription: an idle torch.profiler holds the slot
  Sole,    // records and callbacks
};

/// CUPTI's side of a recording: subscribes, enables and disables activity kinds, and moves what CUPTI delivers into the
/// buffer pool and the threads' event logs. Independent of it: the watch of the driver's allocations.
///
/// CUPTI has one subscription for a process, which both share: the first takes it, the last unsubscribes.
///
/// start, flush, disable_kinds, stop: one thread at a time. watch_allocations, unwatch_allocations: any thread, at any
/// time. One collector may be started at a time in a process, as CUPTI has one pair of buffer callbacks.
///
/// CUPTI calls the callbacks on any thread, with locks of its own held, so they only append, or call
/// base::allocation_sink, and wait for nothing but the ledger behind it, which calls nobody.
///
/// `switching_`, and the locks of its callers (Session::calls_, AllocationWatch::mutex_), are the one exception to the
/// rule that no lock is held over a call into CUPTI: a recording and a watch share one subscription, and if one's
/// unsubscribing came between the other's look at subscriber_ and its enabling, that would enable callbacks of a
/// subscription that is gone. CUPTI may wait within these calls for callbacks that run; no callback takes these locks,
/// so it never waits for us. Callers must not hold Python's GIL, for which a callback's thread may wait.
class Collector {
 public:
  struct Options {
    bool graph_trace = false;      // one record a graph launch instead of one a node
    bool synchronization = false;  // records of synchronizing calls as the GPU saw them
    bool overheads = false;        // records of what the driver and CUPTI take for themselves
    bool memory = false;           // records of memory taken from the driver and given back
    bool may_share = false;        // tier Shared is worth trying: the slot's holder is known to be idle
    bool raw_timestamps = false;   // of GPU work, on the GPU's own clock, where CUPTI can do so and nobody shares it
  };

  explicit Collector(driver::Cupti cupti) : cupti_(std::move(cupti)) {}
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;
  ~Collector();

  /// Never throws: what CUPTI refuses lowers the tier, and why() has the reason.
  Tier start(const Options& options);
  /// Asks CUPTI for finished buffers; `forced` also for those with records of running work, which then stay unfinished.
  void flush(bool forced) noexcept;
  /// What is launched from now on is not recorded; the records of what was launched before still come, until stop.
  void disable_kinds() noexcept;
  /// CUPTI gives back every buffer that it holds, as far as it can.
  void stop() noexcept;

  /// From now on base::allocation_sink is called for what the driver allocates and frees. Returns why that is not
  /// possible, "" when it is; does nothing while it is on.
  std::string watch_allocations();
  void unwatch_allocations() noexcept;
  bool watches_allocations() const noexcept;
  /// Contexts created and modules loaded while allocations were watched, since the collector was made.
  struct Loaded {
    uint64_t contexts = 0;
    uint64_t modules = 0;
    uint64_t code_bytes = 0;  // on the device, once all of each module is loaded
    uint32_t services = 0;    // DeviceService bits: what kernels of any module call
  };
  Loaded loaded() const noexcept;
  /// In the child of a fork after CUPTI was used: it does not survive the fork. Nothing here may be used again.
  bool in_forked_child() const noexcept;

  Tier tier() const noexcept { return tier_; }
  const std::string& why() const noexcept { return why_; }
  /// The subscriber that holds the slot, where CUPTI names it.
  const std::string& holder() const noexcept { return holder_; }
  /// Why Options::memory is not recorded, in whole or in part; empty when it is.
  const std::string& memory_why() const noexcept { return memory_why_; }
  /// Memory records name the library that allocated.
  bool names_libraries() const noexcept { return names_libraries_; }
  /// Records of GPU work have the time of the GPU's own clock.
  bool is_raw() const noexcept { return is_raw_; }
  /// This CUPTI can give records of GPU work the time of the GPU's own clock.
  bool knows_raw_timestamps() const noexcept;
  /// Since CUPTI was first started in this process; zero before.
  std::chrono::nanoseconds age() const noexcept {
    return first_started_.has_value() ? std::chrono::steady_clock::now() - *first_started_
                                      : std::chrono::nanoseconds::zero();
  }
  /// CUPTI had to end by itself after an error in it or in the program.
  bool broken() const noexcept { return broken_.load(std::memory_order_relaxed); }
  /// Records that CUPTI dropped since start.
  uint64_t dropped() noexcept;
  /// Number of module unloads: after one, kernel name pointers may be reused.
  uint64_t unloads() const noexcept { return unloads_.load(std::memory_order_acquire); }
  BufferPool& buffers() noexcept { return buffers_; }
  const driver::Cupti& cupti() const noexcept { return cupti_; }

 private:
  struct BufferCallbacks;  // the C functions

  enum Wanted : uint32_t { kRecording = 1, kAllocations = 2 };

  static void on_callback(void* user_data, int domain, uint32_t callback, const void* data);
  void on_resource(uint32_t callback, const ResourceCallbackData* data) noexcept;
  void on_allocation_call(uint32_t callback, const ApiCallback& call) const noexcept;
  /// Before the lock is taken: a forked child of this process leaves it alone.
  void claim() noexcept;
  // The rest is called with switching_ held.
  /// Returns why not; `found`: who has the slot, where CUPTI names it.
  std::string subscribe(std::string& found);
  void switch_callbacks(Wanted who, bool on) noexcept;
  void bring_buffers_home() noexcept;
  void stop_recording() noexcept;
  void set_attributes();
  void switch_raw_timestamps();
  bool enable_kinds(const Options& options);
  Tier give_up(const std::string& call, driver::CuptiResult code);

  driver::Cupti cupti_;
  BufferPool buffers_;
  std::mutex switching_;  // guards subscriber_; no callback takes it
  driver::CuptiSubscriber subscriber_ = nullptr;
  std::atomic<uint32_t> wanted_{0};
  std::atomic<int> process_{0};  // the id of the process that first would subscribe
  Tier tier_ = Tier::None;
  uint64_t enabled_kinds_ = 0;
  std::string why_;
  std::string holder_;
  std::string memory_why_;
  bool names_libraries_ = false;
  bool is_raw_ = false;
  std::optional<std::chrono::steady_clock::time_point> first_started_;
  std::atomic<bool> broken_{false};
  std::atomic<uint64_t> unloads_{0};
  std::atomic<uint64_t> contexts_{0};
  std::atomic<uint64_t> modules_{0};
  std::atomic<uint64_t> code_bytes_{0};
  std::atomic<uint32_t> services_{0};
  uint64_t dropped_ = 0;
  std::optional<uint8_t> zeroed_before_;  // kZeroedBuffers as it was found, where it was changed
};

}  // namespace gpuscope::activity
