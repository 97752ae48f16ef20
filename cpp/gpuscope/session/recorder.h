// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpuscope/activity/collector.h"
#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/attribution/decoder.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/counters/pm_sampling.h"
#include "gpuscope/driver/libraries.h"
#include "gpuscope/session/costs.h"
#include "gpuscope/session/gpu_clock_reader.h"
#include "gpuscope/session/shown_region.h"
#include "gpuscope/session/sources.h"
#include "gpuscope/session/spool.h"
#include "gpuscope/store/store.h"
#include "gpuscope/timing/region_timer.h"

namespace gpuscope::session {

/// The process's vendor libraries and collector: one each, opened on demand, never closed.
struct Vendor {
  explicit Vendor(const std::vector<std::string>& cupti_wheels)
      : cuda(driver::Cuda::open()), collector(driver::Cupti::open(cupti_wheels)), region_timer(cuda) {}
  Vendor(driver::Cuda with_cuda, const driver::Cupti& with_cupti)
      : cuda(std::move(with_cuda)), collector(with_cupti), region_timer(cuda) {}

  driver::Cuda cuda;
  activity::Collector collector;
  timing::RegionTimer region_timer;
  // Known costs of this machine. Only for the decode thread.
  Costs costs;
  bool knows_event_cost = false;
};

struct Options {
  attribution::Settings settings;
  bool cuda = true;
  std::string no_cuda_reason;  // why `cuda` is false
  bool synchronization = false;
  bool overheads = false;
  bool memory = false;  // driver allocations by libraries
  bool stacks = false;  // base::stack_source is called for regions and calls
  bool may_share_cupti = false;
  bool repeats = false;  // windows may come as long as the program runs
  // How long the start of a recording waits for a GPU's clock. Later readings wait a tenth of that, as they are
  // repeated.
  std::chrono::nanoseconds clock_wait = std::chrono::milliseconds(20);
  // From this age of CUPTI on, its timestamps are slow enough to be replaced: 0.1 us more per launch.
  std::chrono::nanoseconds old_cupti = std::chrono::seconds(20);
  counters::Request counters;
  std::chrono::nanoseconds device_interval{};  // of NVML's readings; 0: none
  driver::Nvml nvml;                           // where it is asked
  bool spools = false;                         // windows are written into folders as they grow
  SpoolOptions spool;                          // without the folder, which each window has
};

/// Adds the devices, if the process has called cuInit.
void write_devices(store::Store& store, const driver::Cuda& cuda);
/// Whether this process has a context. Creates none, and does not initialize the driver.
bool has_context(const driver::Cuda& cuda);

/// The clock of CUPTI's timestamps: ours, unless another client registered its own.
struct ClockMap {
  std::function<int64_t(uint64_t)> to_ns;  // empty: the timestamps are ns of our clock
  std::string note;                        // "" for our clock

  static ClockMap detect(const driver::Cupti& cupti);
};

/// The default time that the end of a window waits for its GPU work.
inline constexpr std::chrono::nanoseconds kGpuWaitLimit = std::chrono::seconds(2);

/// Flushes CUPTI's buffers on a separate thread. A flush waits for CUPTI's worker, and the worker loses records if the
/// thread that empties its buffers waits for it.
///
/// One thread at a time. The collector must not be called during a flush.
class Flusher {
 public:
  /// Throws NotAvailable if no thread can be started. `clocks`: read before each flush, with `clock_wait` for each.
  /// Null for none.
  explicit Flusher(activity::Collector& collector, GpuClockReader* clocks = nullptr,
                   std::chrono::nanoseconds clock_wait = {});
  /// Waits for the current flush.
  ~Flusher();
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;

  /// Begins a flush, unless one is active. Its end wakes the decode thread.
  void begin() noexcept;
  /// Waits for the current flush, at most `limit`. True if none is active.
  bool wait(std::chrono::nanoseconds limit) noexcept;

  /// Since the last call: CPU time of flushes, and the longest flush.
  struct Spent {
    int64_t cpu_ns = 0, longest_ns = 0;
  };
  Spent take_spent() noexcept { return {cpu_ns_.exchange(0), longest_ns_.exchange(0)}; }

 private:
  void run() noexcept;

  activity::Collector& collector_;
  GpuClockReader* clocks_;
  std::chrono::nanoseconds clock_wait_;
  bool under_way_ = false;  // in the view of the caller
  std::counting_semaphore<> begins_{0};
  std::binary_semaphore ended_{0};
  std::atomic<bool> ends_thread_{false};
  std::atomic<int64_t> cpu_ns_{0};
  std::atomic<int64_t> longest_ns_{0};
  std::thread thread_;  // last: it uses the members above
};

/// The work of the decode thread: gets delivered buffers, decodes them, and ends windows. Only for that thread, except
/// the constructor, begin and window.
class Recorder {
 public:
  /// Called on the thread whose regions others inherit.
  Recorder(Vendor& vendor, const Options& options);

  /// Reads the GPUs' clocks. True if records may use their times. Before CUPTI is started.
  bool read_gpu_clocks();
  /// `collecting`: CUPTI delivers.
  void begin(bool collecting);
  /// Throws NotAvailable if no thread can be started.
  void start_flusher();
  /// Makes the requested sources. Throws InvalidArgument for metrics that the GPU does not have.
  void make_sources();
  /// Opens a window. Its rows are written into the folder, if one is given. Any thread, while no window is open. Throws
  /// Error if the folder cannot be opened.
  void open(const std::string& folder);
  void enter_thread();
  /// Afterwards any thread may call CUPTI.
  void leave_thread() noexcept {
    ShownRegion::process().show({});
    flusher_.reset();
    sources_.clear();
  }
  /// The last call: drops the decoder's state, the threads' logs and names.
  void close() noexcept { decoder_.reset(); }
  attribution::Window& window() noexcept { return decoder_->window(); }

  /// Decodes the delivered records. `flush`: requests more, which may come later. Never throws: if memory runs out, the
  /// rest of the window is dropped.
  void poll(bool flush);
  /// Waits for the window's GPU work, at most `wait_limit`, and returns its rows with these facts and its own. `last`:
  /// no other window follows.
  std::unique_ptr<store::Store> end_window(Facts facts, std::chrono::nanoseconds wait_limit, bool last);
  /// Decodes the GPU work so far and stops the collector.
  void release_cupti();

 private:
  void make_decoder();
  void take_sources();
  void write_segment(int64_t at_ns);
  void end_segment(int64_t at_ns);
  void lose_segment(int64_t at_ns);
  void add_lost_rows(Facts& facts);
  void count_missing(Facts& facts) const;
  void flush_and_decode();
  void wait_for_gpu_work(std::chrono::nanoseconds limit, bool last);
  void wait_for_gpu_records(std::chrono::nanoseconds limit);
  void measure_launches(bool others_call) noexcept;
  bool awaits_gpu_work() const;
  std::chrono::nanoseconds grace() const;
  void fetch_unfinished();
  void read_gpu_spans();
  void gather(Facts& facts, int64_t close_ns);

  Vendor& vendor_;
  const Options& options_;
  std::unique_ptr<attribution::Decoder> decoder_;
  std::unique_ptr<Spool> spool_;  // of the window, if its rows are written
  uint64_t lost_rows_ = 0;        // of the window
  int64_t begins_ns_ = 0;         // of the window, or of its segment
  int64_t counted_ns_ = 0;        // when its facts were written last
  std::vector<std::unique_ptr<Source>> sources_;
  GpuClockReader* clock_reader_ = nullptr;  // of the sources, if records have times of the GPUs' clocks
  std::unique_ptr<Flusher> flusher_;        // where CUPTI delivers
  Flusher::Spent spent_before_;             // of a flusher that ended in this window
  uint64_t main_thread_;
  ClockMap clock_;
  bool collecting_ = false;
  bool has_collected_ = false;  // in this window
  bool failed_ = false;         // memory ran out: the rest of the window is dropped
  int64_t decode_cpu_start_ns_ = 0;
  int64_t decode_lag_max_ns_ = 0;
  uint64_t unloads_ = 0;
  uint64_t exhausted_start_;
  uint64_t foreign_start_;
  uint64_t dropped_start_ = 0;
};

}  // namespace gpuscope::session
