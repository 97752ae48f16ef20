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

/// Driver services that kernels call. For each, the driver reserves device memory when it loads a module with such
/// calls: 92 MiB for assert, 64 for printf, both in one; 50 for malloc (driver 13.0, H200).
enum DeviceService : uint32_t { kAssert = 1, kPrintf = 2, kMalloc = 4 };

/// The device memory of a module, from its ELF image.
struct Cubin {
  uint64_t device_bytes = 0;  // fully loaded; CUDA's lazy loading loads each function separately
  uint32_t services = 0;      // DeviceService bits
};

/// All zeros for a damaged image, or another format. Any thread. Reads only headers and symbols.
Cubin read_cubin(const void* bytes, std::size_t size) noexcept;

struct ApiCallback;
struct ResourceCallbackData;

/// The available access to CUPTI.
enum class Tier {
  None,    // no CUPTI, or another tool holds it
  Shared,  // activity records without a subscription: an idle torch.profiler holds the slot
  Sole,    // records and callbacks
};

/// CUPTI's side of a recording. Subscribes, enables and disables activity kinds, and moves CUPTI's data into the buffer
/// pool and the threads' event logs. It also watches the driver's allocations, independently of a recording.
///
/// CUPTI has one subscription per process. Both share it: the first user subscribes, the last unsubscribes.
///
/// start, flush, disable_kinds, stop: one thread at a time. watch_allocations, unwatch_allocations: any thread, at any
/// time. Only one collector may be started in a process, as CUPTI has one pair of buffer callbacks.
///
/// CUPTI calls the callbacks on any thread, with its own locks held. So they only append, or call
/// base::allocation_sink. They wait for no lock except the ledger's, which makes no calls.
///
/// No lock may be held during a call into CUPTI, except `switching_` and the locks of its callers (Session::calls_,
/// AllocationWatch::mutex_). Otherwise one user could unsubscribe between the other's check of subscriber_ and its
/// enabling of callbacks. CUPTI may wait in these calls for running callbacks. No callback takes these locks, so there
/// is no deadlock. Callers must not hold Python's GIL, as a callback's thread may wait for it.
class Collector {
 public:
  struct Options {
    bool graph_trace = false;      // one record per graph launch instead of one per node
    bool synchronization = false;  // records of synchronizing calls as the GPU saw them
    bool overheads = false;        // records of the overhead of the driver and CUPTI
    bool memory = false;           // records of driver memory allocated and freed
    bool may_share = false;        // tier Shared may be tried: the slot's holder is known to be idle
    bool raw_timestamps = false;   // of GPU work, with the GPU's own clock, if CUPTI supports it and is not shared
  };

  explicit Collector(driver::Cupti cupti) : cupti_(std::move(cupti)) {}
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;
  ~Collector();

  /// Never throws: a refusal by CUPTI lowers the tier, and why() returns the reason.
  Tier start(const Options& options);
  /// Requests finished buffers from CUPTI. `forced`: also buffers with records of running work, which then stay
  /// unfinished.
  void flush(bool forced) noexcept;
  /// Stops recording new launches. Records of earlier launches still come, until stop.
  void disable_kinds() noexcept;
  /// Makes CUPTI return its buffers, if it can.
  void stop() noexcept;

  /// Calls base::allocation_sink for allocations and releases by the driver from now on. Returns why that is
  /// impossible, "" on success. Has no effect if already on.
  std::string watch_allocations();
  void unwatch_allocations() noexcept;
  bool watches_allocations() const noexcept;
  /// Contexts created and modules loaded during watches, since the collector was made.
  struct Loaded {
    uint64_t contexts = 0;
    uint64_t modules = 0;
    uint64_t code_bytes = 0;  // on the device, with all modules fully loaded
    uint32_t services = 0;    // DeviceService bits of all kernels
  };
  Loaded loaded() const noexcept;
  /// Whether this is a forked child after CUPTI was used: CUPTI does not survive the fork. Nothing here may be used
  /// again.
  bool in_forked_child() const noexcept;

  Tier tier() const noexcept { return tier_; }
  const std::string& why() const noexcept { return why_; }
  /// The subscriber that holds the slot, if CUPTI names it.
  const std::string& holder() const noexcept { return holder_; }
  /// Why Options::memory is not recorded, in whole or in part. Empty if it is.
  const std::string& memory_why() const noexcept { return memory_why_; }
  /// Whether memory records name the allocating library.
  bool names_libraries() const noexcept { return names_libraries_; }
  /// Whether records of GPU work have times of the GPU's own clock.
  bool is_raw() const noexcept { return is_raw_; }
  /// Whether this CUPTI can use the GPU's own clock for records of GPU work.
  bool knows_raw_timestamps() const noexcept;
  /// The time since CUPTI was first started in this process. Zero before.
  std::chrono::nanoseconds age() const noexcept {
    return first_started_.has_value() ? std::chrono::steady_clock::now() - *first_started_
                                      : std::chrono::nanoseconds::zero();
  }
  /// Whether CUPTI ended by itself after an error in it or in the program.
  bool broken() const noexcept { return broken_.load(std::memory_order_relaxed); }
  /// Records that CUPTI dropped since start.
  uint64_t dropped() noexcept;
  /// The number of module unloads: afterwards, kernel name pointers may be reused.
  uint64_t unloads() const noexcept { return unloads_.load(std::memory_order_acquire); }
  BufferPool& buffers() noexcept { return buffers_; }
  const driver::Cupti& cupti() const noexcept { return cupti_; }

 private:
  struct BufferCallbacks;  // the C functions

  enum Wanted : uint32_t { kRecording = 1, kAllocations = 2 };

  static void on_callback(void* user_data, int domain, uint32_t callback, const void* data);
  void on_resource(uint32_t callback, const ResourceCallbackData* data) noexcept;
  void on_allocation_call(uint32_t callback, const ApiCallback& call) const noexcept;
  /// Before the lock is taken: a forked child of this process ignores it.
  void claim() noexcept;
  // The rest is called with switching_ held.
  /// Returns why it failed, "" on success. `found`: the slot's holder, if CUPTI names it.
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
  std::atomic<int> process_{0};  // the id of the first process that subscribed
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
  std::optional<uint8_t> zeroed_before_;  // the earlier value of kZeroedBuffers, if changed
};

}  // namespace gpuscope::activity
