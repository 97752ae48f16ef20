// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/activity/collector.h"
#include "gpuscope/attribution/decoder.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/driver/cuda.h"
#include "gpuscope/session/clock_map.h"
#include "gpuscope/session/info.h"
#include "gpuscope/store/store.h"
#include "gpuscope/timing/region_timer.h"

namespace gpuscope::session {

/// The vendor libraries and the collector of this process: one each, opened when first wanted, never closed.
struct Vendor {
  explicit Vendor(const std::vector<std::string>& cupti_wheels)
      : cuda(driver::Cuda::open()), collector(driver::Cupti::open(cupti_wheels)), region_timer(cuda) {}
  Vendor(driver::Cuda with_cuda, const driver::Cupti& with_cupti)
      : cuda(std::move(with_cuda)), collector(with_cupti), region_timer(cuda) {}

  driver::Cuda cuda;
  activity::Collector collector;
  timing::RegionTimer region_timer;
};

struct Options {
  attribution::Settings settings;
  bool cuda = true;
  std::string no_cuda_reason;  // why `cuda` is false
  bool synchronization = false;
  bool memory = false;  // what libraries take from the driver
  bool stacks = false;  // base::stack_source is asked where regions and calls are
  bool may_share_cupti = false;
  int64_t settle_limit_ns = 2'000'000'000;  // how long the end of a window waits for its GPU work
};

/// What the decode thread does: fetches what was delivered, decodes it, and ends windows. That thread's alone, but for
/// the constructor, begin and window.
class Recorder {
 public:
  /// Called on the thread whose regions others inherit.
  Recorder(Vendor& vendor, const Options& options);

  /// `collecting`: CUPTI delivers.
  void begin(bool collecting);
  void enter_thread();
  attribution::Window& window() noexcept { return decoder_->window(); }

  /// Fetches and decodes once. Never throws: when memory runs out the rest of the window is thrown away.
  void pass(bool flush);
  /// Waits for the window's GPU work and hands its rows over. `about`: what the session knows of it.
  std::unique_ptr<store::Store> end_window(const Facts& about);
  /// Decodes what GPU work there is so far and gives CUPTI up.
  void let_go_of_gpu();
  /// In the child of a fork nothing here may be touched again.
  void leave_behind() noexcept { (void)decoder_.release(); }

 private:
  void make_decoder();
  void settle();
  void settle_without_callbacks();
  void read_gpu_spans();
  Facts gather_facts(Facts facts);

  Vendor& vendor_;
  const Options& options_;
  std::unique_ptr<attribution::Decoder> decoder_;
  uint64_t main_thread_;
  ClockMap clock_;
  bool collecting_ = false;
  bool has_collected_ = false;  // in this window
  bool failed_ = false;         // memory ran out: the rest of the window is thrown away
  int64_t decode_cpu_start_ns_ = 0;
  int64_t flush_cpu_ns_ = 0;
  int64_t decode_lag_max_ns_ = 0;
  uint64_t unloads_ = 0;
  uint64_t exhausted_start_;
  uint64_t foreign_start_;
  uint64_t dropped_start_ = 0;
};

}  // namespace gpuscope::session
